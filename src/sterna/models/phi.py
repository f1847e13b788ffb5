"""Phi 1, 1.5 and 2: attention and an FFN without a gate side by side, biases everywhere.
arXiv 2309.05463.

    x = x + dense(attention(rope(q, k), v)) + fc2(gelu(fc1))

Both read the same LayerNorm(x). A part of each head is rotated; the head has a bias, too.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("PhiForCausalLM",)
ACTIVATION = "gelu_new"  # the same as gelu_pytorch_tanh
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24}
    | {"hidden_act": ACTIVATION, "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}
    | {"qk_layernorm": False}
)
GGUF = {
    "phi2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.dense": "attn_output",
            "mlp.fc1": "ffn_up",
            "mlp.fc2": "ffn_down",
            "input_layernorm": "attn_norm",
        },
        partial=True,
        renamed={"rms_norm_eps": "layer_norm_eps"},
        layer_norm=True,
        biases=("output_norm", "output"),
    )
}
PREFIXES = {"model.final_layernorm.": "model.norm."}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, and the part of a head that is rotated."""
    f.supported("qk_layernorm", f.flag("qk_layernorm"), False)
    return {"rms_norm_eps": f.number("layer_norm_eps"), **partly_rotated(f)}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(bias=True)
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.input_layernorm")
        a = m.attention(h, i, f"{p}.self_attn", attention)
        x = m.output(a, x, f"{p}.self_attn.dense", bias=True)
        x = m.ungated(h, x, f"{p}.mlp.fc1", f"{p}.mlp.fc2")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x, bias=True)
