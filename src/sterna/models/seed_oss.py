"""Seed-OSS: Llama's graph with biases of q, k and v."""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("SeedOssForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 155136, "intermediate_size": 27648, "num_hidden_layers": 64}
    | {"num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128}
    | {"max_position_embeddings": 524288, "attention_bias": True, "attention_out_bias": False}
)
GGUF = {
    "seed_oss": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS
        | {"input_layernorm": "attn_norm"}
        | {"post_attention_layernorm": "post_attention_norm"},
        qkv_bias="attention_bias",
        renamed={"attention_bias": "attention_out_bias"},
    )
}
QKV_BIAS = "qkv_bias"  # a field of ours: attention_bias, which leaves out that of o here


def complete(f: Fields) -> dict[str, Any]:
    """Return which layers have biases."""
    return {QKV_BIAS: f.flag("attention_bias"), "attention_bias": f.flag("attention_out_bias")}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return llama.build(m, attention=AttentionOptions(bias=m.config.fields.flag(QKV_BIAS)))
