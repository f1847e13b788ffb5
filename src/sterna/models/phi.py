"""Phi 1, 1.5 and 2: attention and an FFN without a gate side by side, biases everywhere.
arXiv 2309.05463.

    x = x + dense(attention(rope(q, k), v)) + fc2(gelu(fc1))

Both read the same LayerNorm(x). A part of each head is rotated; the head has a bias, too.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import MAX_HEAD_DIM, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.rotations import rotated_part
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("PhiForCausalLM",)
ACTIVATION = "gelu_new"  # the same as gelu_pytorch_tanh
TERNARY = False  # float tensors of linear layers are the weights themselves
PREFIXES = {"model.final_layernorm.": "model.norm."}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, and the part of a head that is rotated."""
    f.supported("qk_layernorm", f.flag("qk_layernorm"), False)
    head_dim = f.count("hidden_size") // f.count("num_attention_heads")
    head_dim = f.count("head_dim", head_dim, MAX_HEAD_DIM)
    rotary_dim, rope = rotated_part(f, f.mapping("rope_parameters"), head_dim)
    return {
        "rms_norm_eps": f.number("layer_norm_eps"),
        "rope_parameters": rope,
        "rotary_dim": rotary_dim,
        "partial_rotary_factor": None,
    }


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    attention = layers.AttentionOptions(bias=True)
    x, table = layers.embedding(g, c, w)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.layer_norm(g, c, w, x, f"{p}.input_layernorm")
        a = layers.attention(g, c, w, h, i, f"{p}.self_attn", attention)
        x = layers.output(g, c, w, a, x, f"{p}.self_attn.dense", bias=True)
        names = f"{p}.mlp.fc1", f"{p}.mlp.fc2"
        x = layers.ungated(g, c, w, h, x, names, "gelu_pytorch_tanh")
    x = layers.layer_norm(g, c, w, g.select(x), "model.norm")
    return layers.logits(g, c, w, x, table, bias=True)
