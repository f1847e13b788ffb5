"""GPT-BigCode (SantaCoder, StarCoder): GPT-2's graph, where all heads may share keys and values.
arXiv 2305.06161.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import gpt2
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gpt2 import unread as unread
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("GPTBigCodeForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = without(gpt2.DEFAULTS, "scale_attn_by_inverse_layer_idx") | {
    "hidden_act": ACTIVATION,
    "multi_query": True,
    "num_key_value_heads": 1,
}
ALIASES = gpt2.ALIASES
GGUF = {
    "starcoder": replace(gpt2.GGUF["gpt2"], architecture=ARCHITECTURES[0], activation=ACTIVATION)
}
PREFIXES = gpt2.PREFIXES


def complete(f: Fields) -> dict[str, Any]:
    """Return GPT-2's fields, and the heads of keys and values."""
    heads = f.count("num_attention_heads")
    return gpt2.complete(f) | {"num_key_value_heads": 1 if f.flag("multi_query") else heads}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(bias=True, stored="c_attn", by_head=True)
    return gpt2.write(m, attention)
