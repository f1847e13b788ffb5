"""The head of a cross-encoder, which scores a text, or a pair of texts, by its first token."""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.layers import linear
from sterna.weights.sources import Linear, WeightSource

__all__ = ["dense", "gives_raw_scores", "head", "labels_of"]


def labels_of(f: Fields) -> int | None:
    """Return 1 for a class of sequence classification, else None; more labels are refused."""
    names = f.config.get("architectures") or [""]
    if not str(names[0]).endswith("ForSequenceClassification"):
        return None
    labels = f.mapping("id2label")
    f.supported("num_labels", len(labels) or f.count("num_labels", 2), 1)
    gives_raw_scores(f)
    return 1


def gives_raw_scores(f: Fields) -> bool:
    """Whether scores are the head's own, and not their sigmoid, as sentence-transformers says."""
    nested: dict[str, Any] = f.mapping("sentence_transformers")
    named = nested.get("activation_fn") or f.config.get("sbert_ce_default_activation_function")
    kind = str(named or "Sigmoid").rpartition(".")[2]
    if kind != "Identity":
        f.supported("activation_fn", kind, "Sigmoid")
    return kind == "Identity"


def dense(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str, activation: str,
    *, bias: bool = True,
) -> Value:  # fmt: skip
    """act(x W^T (+ bias)) of the rows that are scored, in the checkpoint's own format."""
    d = c.hidden_size
    return g.activation(
        linear(g, c, w, x, name, [Linear(name, d, d, bias, exact=True)]), activation, f"{name}.act"
    )


def head(g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str) -> Value:
    """Write the label's logit."""
    table = w.table(name, c.labels, c.hidden_size)
    return g.head(x, table, None, name, bias=w.vector(f"{name}.bias", c.labels))
