"""GTE (gte-multilingual, gte-en-v1.5), and cross-encoders of it: Jina v3's layers with gated FFNs.
arXiv 2407.19669.

    x = attn_ln(x + o_proj(attention(rope(q, k), v)))
    x = mlp_ln(x + down_proj(gelu(gate) * up)), [up | gate] = up_gate_proj(x)

A cross-encoder scores a pair by its first token: classifier(tanh(pooler(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Piece, Value
from sterna.models import classifier, jina_embeddings_v3, nomic_bert
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.jina_embeddings_v3 import complete as complete

ARCHITECTURES = ("GteModel", "GteForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    jina_embeddings_v3.DEFAULTS
    | {"vocab_size": 250048, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    | {"intermediate_size": 3072, "max_position_embeddings": 8192, "layer_norm_eps": 1e-12}
    | {"rope_theta": 160000.0}
)
PREFIXES = {
    f"{outer}{name}": own
    for outer in ("gte.", "new.", "")
    for name, own in {
        "embeddings.word_embeddings.": "model.embed_tokens.",
        "embeddings.": "model.embeddings.",
        "encoder.layer.": "model.layers.",
        "pooler.": "model.pooler.",
    }.items()
}
_NAMES = nomic_bert.Names("attention", "qkv_proj", "o_proj", ("attn_ln", "mlp_ln"), bias=True)


def unread(c: TransformerConfig) -> set[str]:
    """Return an unused pooler."""
    return set() if c.labels else {"model.pooler.dense"}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    return classifier.pooled(m, nomic_bert.encode(m, _NAMES, _ffn))


def _ffn(m: ModelBuilder, x: Value, name: str) -> Value:
    ff, both = m.config.intermediate_size, f"{name}.up_gate_proj"
    h = m.linear(x, both, 2 * ff)
    h = m.graph.place(2 * ff, [(h, Piece(ff, begin=ff)), (h, Piece(ff, column=ff))], both)
    return m.output(m.glu(h, f"{name}.act"), x, f"{name}.down_proj", bias=True)
