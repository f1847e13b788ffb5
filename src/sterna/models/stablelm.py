"""StableLM: LayerNorms, and a part of each head is rotated. arXiv 2402.17834.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each half reads LayerNorm(x); with `use_parallel_residual` both read the same.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers, llama
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.rotations import partly_rotated
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("StableLmForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912,
    "num_key_value_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25, "use_qkv_bias": False, "qk_layernorm": False,
    "use_parallel_residual": False,
}  # fmt: skip
ALIASES = {"layer_norm_eps": "rms_norm_eps"}
GGUF = {
    "stablelm": GgufArchitecture(
        ARCHITECTURES[0],
        partial=True, layer_norm=True, biases=("output_norm",), qkv_bias="use_qkv_bias",
        keys={"use_parallel_residual": "use_parallel_residual"},
    )
}  # fmt: skip


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated."""
    f.supported("qk_layernorm", f.flag("qk_layernorm"), False)
    return partly_rotated(f)


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    attention = layers.AttentionOptions(bias=c.fields.flag("use_qkv_bias"))
    parallel = c.fields.flag("use_parallel_residual")
    x, table = layers.embedding(g, c, w)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.layer_norm(g, c, w, x, f"{p}.input_layernorm")
        a = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(g, c, w, a, x, f"{p}.self_attn.o_proj")
        if not parallel:
            h = layers.layer_norm(g, c, w, x, f"{p}.post_attention_layernorm")
        x = llama.feed_forward(g, c, w, h, x, f"{p}.mlp")
    x = layers.layer_norm(g, c, w, g.select(x), "model.norm")
    return layers.logits(g, c, w, x, table)
