"""Qwen3: Llama's graph with an RMSNorm of every head of q and k. arXiv 2505.09388.

    x = x + o(attention(rope(norm(q), norm(k)), v));   x = x + down(silu(gate) * up)

The width of a head is not hidden_size / heads, and is 128 where config.json leaves it out.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import classifier, llama, qwen2, towers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import INPUT_NORMS, LINEARS, QK_NORMS, READS, GgufArchitecture
from sterna.models.layers import AttentionOptions, HeadNorms
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification")
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {**qwen2.DEFAULTS, "head_dim": 128, "attention_bias": False}
GGUF = {
    "qwen3": GgufArchitecture(
        ARCHITECTURES[0], modules=LINEARS | READS | QK_NORMS | INPUT_NORMS, written=True,
        outer={"score": "cls.output"},
    )
}  # fmt: skip


def complete(f: Fields) -> dict[str, Any]:
    """Return windows, and of a classifier that it reads a text's last token."""
    return {**qwen2.complete(f), "labels": classifier.labels_of(f), "label_row": "last"}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    attention = AttentionOptions(qk_norm=HeadNorms())
    return llama.build(g, towers.placed(c), w, attention=attention, behind=towers.behind(g, c))
