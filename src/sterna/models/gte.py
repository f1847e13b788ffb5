"""GTE (gte-multilingual, gte-en-v1.5), and cross-encoders of it: Jina v3's layers with gated FFNs.
arXiv 2407.19669.

    x = attn_ln(x + o_proj(attention(rope(q, k), v)))
    x = mlp_ln(x + down_proj(gelu(gate) * up)), [up | gate] = up_gate_proj(x)

A cross-encoder scores a pair by its first token: classifier(tanh(pooler(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Piece, Value
from sterna.models import classifier, jina_embeddings_v3, layers, nomic_bert
from sterna.models.config import TransformerConfig
from sterna.models.jina_embeddings_v3 import complete as complete
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("GteModel", "GteForSequenceClassification")
ACTIVATION = jina_embeddings_v3.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {
    **jina_embeddings_v3.DEFAULTS, "vocab_size": 250048, "hidden_size": 768,
    "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "max_position_embeddings": 8192, "layer_norm_eps": 1e-12, "rope_theta": 160000.0,
}  # fmt: skip
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


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the scores of a cross-encoder."""

    def ffn(x: Value, name: str) -> Value:
        ff, both = c.intermediate_size, f"{name}.up_gate_proj"
        h = layers.linear(g, c, w, x, both, [Linear(both, 2 * ff, c.hidden_size)])
        gate, up = Piece(ff, begin=ff), Piece(ff, column=ff)
        h = g.place(2 * ff, [(h, gate), (h, up)], both)
        h = g.glu(h, ACTIVATION, f"{name}.act")
        return layers.output(g, c, w, h, x, f"{name}.down_proj", bias=True)

    x, table = nomic_bert.encode(g, c, w, _NAMES, ffn)
    return classifier.pooled(g, c, w, x, table)
