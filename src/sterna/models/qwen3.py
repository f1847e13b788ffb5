"""Qwen3: Llama's graph with an RMSNorm of every head of q and k. arXiv 2505.09388.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + down(silu(gate) * up)

The width of a head is not hidden_size / heads, and is 128 where config.json leaves it out.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import classifier, llama, qwen2, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import INPUT_NORMS, LINEARS, QK_NORMS, READS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification")
DEFAULTS: dict[str, Any] = qwen2.DEFAULTS | {"head_dim": 128, "attention_bias": False}
GGUF = {
    "qwen3": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS | READS | QK_NORMS | INPUT_NORMS,
        written=True,
        outer={"score": "cls.output"},
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return windows, and of a classifier that it reads a text's last token."""
    return {**qwen2.complete(f), "labels": classifier.labels_of(f), "label_row": "last"}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(qk_norm=QKNorm())
    m = towers.with_axes(m)
    return llama.build(m, attention=attention, after_layer=towers.add_features)
