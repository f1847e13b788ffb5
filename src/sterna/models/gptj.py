"""GPT-J: attention and an FFN without a gate side by side.

    x = x + out_proj(attention(rope(q, k), v)) + fc_out(gelu(fc_in))

Both read the same LayerNorm(x). A part of each head is rotated, neighbours together. The FFN and
the head have biases.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import gpt2
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gpt2 import unread as unread

ARCHITECTURES = ("GPTJForCausalLM",)
ACTIVATION = "gelu_new"
DEFAULTS: dict[str, Any] = (
    {"vocab_size": 50400, "max_position_embeddings": 2048, "hidden_size": 4096}
    | {"num_hidden_layers": 28, "num_attention_heads": 16, "hidden_act": ACTIVATION}
    | {"rms_norm_eps": 1e-5, "tie_word_embeddings": False, "rotary_dim": 64}
)
ALIASES = gpt2.ALIASES
PREFIXES = gpt2.PREFIXES


def complete(f: Fields) -> dict[str, Any]:
    """Return the FFN's width, and the kind of rotations."""
    return {
        "intermediate_size": f.count("intermediate_size", 4 * f.count("hidden_size")),
        "num_key_value_heads": f.count("num_attention_heads"),
        "rope_interleaved": True,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.layer_norm(x, f"{p}.ln_1")
        a = m.attention(h, i, f"{p}.attn")
        x = m.output(a, x, f"{p}.attn.out_proj")
        x = m.ungated(h, x, f"{p}.mlp.fc_in", f"{p}.mlp.fc_out")
    x = m.layer_norm(m.select(x), "model.norm")
    return m.logits(x, bias=True)
