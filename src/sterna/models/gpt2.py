"""GPT-2: learned positions, LayerNorms, biases everywhere, and an FFN without a gate.

    x = x + c_proj(attention(q, k, v));   x = x + c_proj(gelu(c_fc))

Each sublayer reads LayerNorm(x). q, k and v are one matrix; checkpoints store matrices transposed.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.graph.ops import PositionsOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("GPT2LMHeadModel",)
ACTIVATION = "gelu_new"  # the same as gelu_pytorch_tanh
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50257, "max_position_embeddings": 1024, "hidden_size": 768}
    | {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_act": ACTIVATION}
    | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "scale_attn_weights": True}
    | {"scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}
)
ALIASES = {
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
GGUF = {
    "gpt2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {
            "attn.c_attn": "attn_qkv",
            "attn.c_proj": "attn_output",
            "mlp.c_fc": "ffn_up",
            "mlp.c_proj": "ffn_down",
            "ln_1": "attn_norm",
            "ln_2": "ffn_norm",
        },
        outer={"model.wpe": "position_embd"},
        layer_norm=True,
        biases=("output_norm",),
    )
}
#: Published checkpoints have no transformer.
PREFIXES = {
    outer + name: to
    for outer in ("transformer.", "")
    for name, to in {
        "wte.": "model.embed_tokens.",
        "wpe.": "model.wpe.",
        "ln_f.": "model.norm.",
        "h.": "model.layers.",
    }.items()
}
TRANSPOSED = ("c_attn", "c_proj", "c_fc")


def complete(f: Fields) -> dict[str, Any]:
    """Return the FFN's width, and that no layer has rotations."""
    f.supported("scale_attn_weights", f.flag("scale_attn_weights"), True)
    for name in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        f.supported(name, f.flag(name), False)
    return {
        "intermediate_size": f.count("intermediate_size", 4 * f.count("hidden_size")),
        "num_key_value_heads": f.count("num_attention_heads"),
        "no_rope_layers": [0] * f.n_layers,
        "learned_positions": True,
    }


def unread(c: TransformerConfig) -> set[str]:
    """Return the masks, which older checkpoints have as tensors."""
    return {f"model.layers.{i}.attn" for i in range(c.n_layers)}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return write(m, AttentionOptions(bias=True, stored="c_attn"))


def write(
    m: ModelBuilder, attention: AttentionOptions, names: tuple[str, str] = ("attn", "c_proj")
) -> Value:
    """Add the layers; names: the names of attention and of its output projection."""
    c = m.config
    x = m.embedding()
    table = m.weights.vector("model.wpe.weight", c.max_position, c.hidden_size)
    x = m.add(PositionsOp(name="model.wpe", x=x, table=table))
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.ln_1")
        name = f"{p}.{names[0]}"
        h = m.attention(h, i, name, attention)
        x = m.output(h, x, f"{name}.{names[1]}", bias=True)
        h = m.layer_norm(x, f"{p}.ln_2")
        x = m.ungated(h, x, f"{p}.mlp.c_fc", f"{p}.mlp.c_proj")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
