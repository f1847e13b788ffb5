"""Cross-encoders, which score a pair of texts: the head of one that has a head, and `scoring`,
Sterna's field in config.json, of one whose files say more.

    {"activation": "torch.nn.modules.linear.Identity", "true": 9693, "false": 2152,
     "system": null, "opens": false, "format": null}

activation: what becomes of scores; null: their sigmoid. true, false: tokens, the difference of
whose logits after a prompt is the score; false may be null. The prompt is that of the chat template
for messages of the roles query and document, and one of the role system, and `opens` says whether
it ends with what opens an answer; or `format`, a text with {query} and {document}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sterna.graph import Value
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields

__all__ = ["SCORING", "Scoring", "dense", "head", "labels_of", "pooled"]

SCORING = "scoring"


@dataclass(frozen=True)
class Scoring:
    """How a pair is put to a model, and its score read; the fields are those above."""

    raw: bool
    true: int | None
    false: int | None
    system: str | None
    opens: bool
    format: str | None

    @classmethod
    def of(cls, f: Fields) -> Scoring:
        """Read the field; UnsupportedModelError for another activation."""
        s = f.having(f.mapping(SCORING))
        most = f.count("vocab_size") - 1

        def token(name: str) -> int | None:
            return None if s.config.get(name) is None else s.count(name, most=most)

        system, form = s.config.get("system"), s.config.get("format")
        raw, opens = _gives_raw_scores(f), s.flag("opens")
        return cls(raw, token("true"), token("false"), system, opens, form)


def labels_of(f: Fields) -> int | None:
    """Return 1 for a class of sequence classification, else None; more labels are refused, but for
    the two of `format`, whose difference is the score."""
    names = f.config.get("architectures") or [""]
    if not str(names[0]).endswith("ForSequenceClassification"):
        return None
    labels = f.mapping("id2label")
    wanted = 2 if f.mapping(SCORING).get("format") else 1
    f.supported("num_labels", len(labels) or f.count("num_labels", 2), wanted)
    _gives_raw_scores(f)
    return wanted


def _gives_raw_scores(f: Fields) -> bool:
    """Whether scores are the head's own, and not their sigmoid, as sentence-transformers says."""
    nested: dict[str, Any] = f.mapping("sentence_transformers")
    named = f.mapping(SCORING).get("activation") or nested.get("activation_fn")
    named = named or f.config.get("sbert_ce_default_activation_function")
    kind = str(named or "Sigmoid").rpartition(".")[2]
    if kind != "Identity":
        f.supported("activation_fn", kind, "Sigmoid")
    return kind == "Identity"


def dense(m: ModelBuilder, x: Value, name: str, activation: str, *, bias: bool = True) -> Value:
    """act(x W^T (+ bias)) of the rows that are scored, in the checkpoint's own format."""
    x = m.linear(x, name, m.config.hidden_size, bias=bias, exact=True)
    return m.graph.activation(x, activation, f"{name}.act")


def head(m: ModelBuilder, x: Value, name: str) -> Value:
    """Compute the logits of the labels: [rows, labels]."""
    labels = m.config.labels
    table = m.weights.table(name, labels, m.config.hidden_size)
    return m.graph.head(x, table, None, name, bias=m.weights.vector(f"{name}.bias", labels))


def pooled(m: ModelBuilder, x: Value) -> Value:
    """Compute the labels' logits by BERT's pooler; of a model without labels the tokens' logits."""
    if not m.config.labels:
        return m.logits(x)
    x = dense(m, x, "model.pooler.dense", "tanh")
    return head(m, x, "classifier")
