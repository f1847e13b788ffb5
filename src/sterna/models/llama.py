"""Llama and what shares its graph: TinyLlama, Falcon3, and ternary Llamas such as Falcon-E.

    x = x + o(attention(rope(q, k), v));   x = x + down(silu(gate) * up)

Each half reads RMSNorm(x). Packed ternary layers quantise their input to int8; float layers do not.
"""

from __future__ import annotations

from sterna.graph import Graph, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("LlamaForCausalLM",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves


def build(
    g: Graph,
    c: TransformerConfig,
    w: WeightSource,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    stored_fused: bool = False,
    scale: float | None = None,
    embedding_factor: float = 1.0,
    residual_factor: float = 1.0,
    logits_factor: float = 1.0,
) -> Value:
    """Write the model's layers into `g`; returns the logits.

    qkv_bias: q, k and v have biases even if config.json's attention_bias, which is of o as well,
    does not say so; qk_norm, scale: as in `layers.attention`; stored_fused: as there, and in
    `layers.gate_up`; residual_factor: of what each half adds to x.
    """
    x, table = layers.embedding(g, c, w, embedding_factor)
    r = residual_factor
    for i in range(c.n_layers):
        p = f"model.layers.{i}"
        h = layers.norm(g, c, w, x, f"{p}.input_layernorm")
        h = layers.attention(
            g, c, w, h, i, f"{p}.self_attn", bias=qkv_bias or c.attention_bias, qk_norm=qk_norm,
            scale=scale, stored_fused=stored_fused,
        )  # fmt: skip
        x = layers.output(g, c, w, h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias, factor=r)
        h = layers.norm(g, c, w, x, f"{p}.post_attention_layernorm")
        h = layers.gate_up(g, c, w, h, f"{p}.mlp", stored_fused=stored_fused)
        h = g.glu(h, ACTIVATION, f"{p}.mlp.act")
        x = layers.output(g, c, w, h, x, f"{p}.mlp.down_proj", bias=c.mlp_bias, factor=r)
    return layers.head(g, c, w, x, table, factor=logits_factor)
