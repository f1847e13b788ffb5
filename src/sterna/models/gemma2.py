"""Gemma 2: norms around each half, soft caps, every other layer within a window. arXiv 2408.00118.

    x = x + norm(o(attention(rope(q, k), v)));   x = x + norm(down(gelu(gate) * up))

Each half reads RMSNorm(x). Norms multiply by 1 + their weight, the embedding is scaled by the root
of its width, scores and logits are capped: c tanh(s / c).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Graph, Value
from sterna.models import layers
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.fields import Fields
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Gemma2ForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS = {
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": ACTIVATION,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def complete(f: Fields) -> dict[str, Any]:
    """The fields that follow from others: the first layer has a window, the second none."""
    f.supported("use_bidirectional_attention", f.flag("use_bidirectional_attention"), False)
    if f.config.get("layer_types") is not None:
        return {}
    n = f.n_layers
    return {"layer_types": [FULL if i % 2 else SLIDING for i in range(n)]}


def build(g: Graph, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return write(g, c, w)


def write(g: Graph, c: TransformerConfig, w: WeightSource, *, qk_norm: bool = False) -> Value:
    """The layers; qk_norm: as in `layers.attention`."""
    scale = c.fields.factor("query_pre_attn_scalar") ** -0.5
    cap = c.fields.cap("attn_logit_softcapping")
    final_cap = c.fields.cap("final_logit_softcapping")
    x, table = layers.embedding(g, c, w, c.hidden_size**0.5)
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.norm(g, c, w, x, f"{p}.input_layernorm", plus_one=True)
        h = layers.attention(
            g, c, w, h, i, f"{p}.self_attn", bias=c.attention_bias, qk_norm=qk_norm, plus_one=True,
            scale=scale, cap=cap,
        )  # fmt: skip
        h = layers.output(g, c, w, h, None, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        name = f"{p}.post_attention_layernorm"
        x = layers.norm(g, c, w, h, name, residual=x, plus_one=True)
        h = layers.norm(g, c, w, x, f"{p}.pre_feedforward_layernorm", plus_one=True)
        h = g.glu(layers.gate_up(g, c, w, h, f"{p}.mlp"), ACTIVATION, f"{p}.mlp.act")
        h = layers.output(g, c, w, h, None, f"{p}.mlp.down_proj")
        name = f"{p}.post_feedforward_layernorm"
        x = layers.norm(g, c, w, h, name, residual=x, plus_one=True)
    return layers.head(g, c, w, x, table, plus_one=True, cap=final_cap)
