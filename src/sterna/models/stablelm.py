"""StableLM: LayerNorms, and a part of each head is rotated. arXiv 2402.17834.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each sublayer reads LayerNorm(x); with `use_parallel_residual` both read the same.
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

ARCHITECTURES = ("StableLmForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912}
    | {"num_key_value_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    | {"partial_rotary_factor": 0.25, "use_qkv_bias": False, "qk_layernorm": False}
    | {"use_parallel_residual": False}
)
ALIASES = {"layer_norm_eps": "rms_norm_eps"}
GGUF = {
    "stablelm": GgufArchitecture(
        ARCHITECTURES[0],
        partial=True,
        layer_norm=True,
        biases=("output_norm",),
        qkv_bias="use_qkv_bias",
        keys={"use_parallel_residual": "use_parallel_residual"},
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated."""
    f.supported("qk_layernorm", f.flag("qk_layernorm"), False)
    return partly_rotated(f)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(bias=m.config.fields.flag("use_qkv_bias"))
    parallel = m.config.fields.flag("use_parallel_residual")
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.input_layernorm")
        a = m.attention(h, i, f"{p}.self_attn", attention)
        x = m.output(a, x, f"{p}.self_attn.o_proj")
        if not parallel:
            h = m.layer_norm(x, f"{p}.post_attention_layernorm")
        x = m.feed_forward(h, x, f"{p}.mlp")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
