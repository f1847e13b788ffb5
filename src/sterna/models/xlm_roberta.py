"""XLM-RoBERTa, and cross-encoders of it: BERT, whose positions begin after the pad token's id.
arXiv 1911.02116.

A cross-encoder scores a pair by its first token: out_proj(tanh(dense(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import bert, classifier
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields

ARCHITECTURES = ("XLMRobertaModel", "XLMRobertaForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = bert.DEFAULTS | {"pad_token_id": 1}
PREFIXES = {name.replace("bert.", "roberta."): own for name, own in bert.PREFIXES.items()}


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with this many positions."""
    positions = f.count("max_position_embeddings") - _first(f)
    if positions < 1:
        f.fail("max_position_embeddings", f"more than {_first(f)}, as pad_token_id says", positions)
    return {**bert.complete(f), "max_position_embeddings": positions}


def _first(f: Fields) -> int:
    """Return the row of the first position."""
    return f.count("pad_token_id", least=0) + 1


def unread(c: TransformerConfig) -> set[str]:
    """Return what BERT's files may have, too."""
    return {"model.embeddings", "model.pooler.dense"}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the scores of a cross-encoder."""
    x = bert.encode(m, _first(m.config.fields))
    if not m.config.labels:
        return m.logits(x)
    x = classifier.dense(m, x, "classifier.dense", "tanh")
    return classifier.head(m, x, "classifier.out_proj")
