"""Seed-OSS: Llama's graph with biases of q, k and v."""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import llama
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.models.layers import AttentionOptions
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("SeedOssForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {
    **llama.DEFAULTS, "vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64,
    "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 524288, "attention_bias": True, "attention_out_bias": False,
}  # fmt: skip
GGUF = {
    "seed_oss": GgufArchitecture(
        ARCHITECTURES[0],
        modules={
            **LINEARS, "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attention_norm",
        },
        qkv_bias="attention_bias", renamed={"attention_bias": "attention_out_bias"},
    )
}  # fmt: skip
QKV_BIAS = "qkv_bias"  # a field of ours: attention_bias, which leaves out that of o here


def complete(f: Fields) -> dict[str, Any]:
    """Return which layers have biases."""
    return {QKV_BIAS: f.flag("attention_bias"), "attention_bias": f.flag("attention_out_bias")}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return llama.build(g, c, w, attention=AttentionOptions(bias=c.fields.flag(QKV_BIAS)))
