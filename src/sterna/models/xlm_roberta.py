"""XLM-RoBERTa, and cross-encoders of it: BERT, whose positions begin after the pad token's id.
arXiv 1911.02116.

A cross-encoder scores a pair by its first token: out_proj(tanh(dense(x))).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import bert, classifier, layers
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("XLMRobertaModel", "XLMRobertaForSequenceClassification")
ACTIVATION = bert.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {**bert.DEFAULTS, "pad_token_id": 1}
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


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the scores of a cross-encoder."""
    x, table = bert.encode(g, c, w, _first(c.fields))
    if not c.labels:
        return layers.logits(g, c, w, x, table)
    x = classifier.dense(g, c, w, x, "classifier.dense", "tanh")
    return classifier.head(g, c, w, x, "classifier.out_proj")
