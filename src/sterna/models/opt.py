"""OPT: learned positions, LayerNorms, biases everywhere, and an FFN without a gate.
arXiv 2205.01068.

    x = x + out_proj(attention(q, k, v));   x = x + fc2(relu(fc1))

Each sublayer reads LayerNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.graph.ops import PositionsOp
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("OPTForCausalLM",)
ACTIVATION = "relu"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    | {"max_position_embeddings": 2048, "num_attention_heads": 12, "hidden_act": ACTIVATION}
    | {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "word_embed_proj_dim": 768}
    | {"enable_bias": True, "layer_norm_elementwise_affine": True, "tie_word_embeddings": True}
)
ALIASES = {"ffn_dim": "intermediate_size", "activation_function": "hidden_act"}
#: Published checkpoints of the smaller models have no `model.`.
PREFIXES = {
    outer + name: "model." + to
    for outer in ("model.decoder.", "decoder.")
    for name, to in {"final_layer_norm.": "norm.", "": ""}.items()
}
FIRST = 2  # row of position 0


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, which no field has, and that no layer has rotations."""
    for name in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        f.supported(name, f.flag(name), True)
    f.supported("_remove_final_layer_norm", f.flag("_remove_final_layer_norm"), False)
    hidden = f.count("hidden_size")
    f.supported("word_embed_proj_dim", f.count("word_embed_proj_dim", hidden), hidden)
    heads = f.count("num_attention_heads")
    return {
        "num_key_value_heads": heads,
        "rms_norm_eps": 1e-5,
        "no_rope_layers": [0] * f.n_layers,
        "learned_positions": True,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(bias=True)
    x = m.embedding()
    name = "model.embed_positions"
    positions = m.weights.vector(
        f"{name}.weight", FIRST + m.config.max_position, m.config.hidden_size
    )
    x = m.add(PositionsOp(name=name, x=x, table=positions, first=FIRST))
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.self_attn_layer_norm")
        h = m.attention(h, i, f"{p}.self_attn", attention)
        x = m.output(h, x, f"{p}.self_attn.out_proj", bias=True)
        h = m.layer_norm(x, f"{p}.final_layer_norm")
        x = m.ungated(h, x, f"{p}.fc1", f"{p}.fc2")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x)
