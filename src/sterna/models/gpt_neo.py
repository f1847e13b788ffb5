"""GPT-Neo: GPT-2's graph, every other layer within a window, scores without a scale."""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import gpt2
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.gpt2 import unread as unread
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("GPTNeoForCausalLM",)
ACTIVATION = "gelu_new"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50257, "max_position_embeddings": 2048, "hidden_size": 2048}
    | {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_act": ACTIVATION}
    | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "sliding_window": 256}
    | {"attention_types": [[["global", "local"], 12]]}
)
ALIASES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "window_size": "sliding_window",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "rms_norm_eps",
}
PREFIXES = gpt2.PREFIXES
KINDS = {"global": FULL, "local": SLIDING}


def complete(f: Fields) -> dict[str, Any]:
    """Return the FFN's width, which layers have a window, and that none has rotations."""
    n = f.n_layers
    kinds = f.items("attention_layers", n, tuple(KINDS)) or _listed(f, n)
    return {
        "intermediate_size": f.count("intermediate_size", 4 * f.count("hidden_size")),
        "num_key_value_heads": f.count("num_attention_heads"),
        "layer_types": [KINDS[kind] for kind in kinds],
        "no_rope_layers": [0] * n,
        "learned_positions": True,
    }


def _listed(f: Fields, n: int) -> list[str]:
    """Return the kinds of layers of attention_types: lists of kinds, and how often each comes."""
    name = "attention_types"
    try:
        kinds = [kind for of, times in f.config[name] for _ in range(times) for kind in of]
    except (TypeError, ValueError):
        f.fail(name, "pairs of kinds of layers and a number", f.config[name])
    return f.having({name: kinds}).items(name, n, tuple(KINDS)) or []


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(scale=1.0)
    return gpt2.write(m, attention, ("attn.attention", "out_proj"))
