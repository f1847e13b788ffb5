"""Cohere's Command R, its first generation: LayerNorm without biases, and attention and FFN side by
side.

    x = x + o(attention(rope(q, k), v)) + down(silu(gate) * up)

Both read the same LayerNorm(x). Neighbours are rotated together, and logits have a factor.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers, llama
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("CohereForCausalLM",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms and the kind of rotations, by the names of other files."""
    f.supported("use_qk_norm", f.flag("use_qk_norm"), False)
    return {"rms_norm_eps": f.number("layer_norm_eps"), "rope_interleaved": True}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    attention = layers.AttentionOptions(bias=c.attention_bias)
    x, table = layers.embedding(g, c, w)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.layer_norm(g, c, w, x, f"{p}.input_layernorm", bias=False)
        a = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(g, c, w, a, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        x = llama.feed_forward(g, c, w, h, x, f"{p}.mlp")
    factor = c.fields.factor("logit_scale")
    x = layers.layer_norm(g, c, w, g.select(x), "model.norm", bias=False, factor=factor)
    return layers.logits(g, c, w, x, table)
