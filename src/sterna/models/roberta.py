"""RoBERTa, and cross-encoders of it: XLM-RoBERTa with another vocabulary. arXiv 1907.11692."""

from __future__ import annotations

from typing import Any

from sterna.models import xlm_roberta

ARCHITECTURES = ("RobertaModel", "RobertaForSequenceClassification")
ACTIVATION = xlm_roberta.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
ENCODER = True
DEFAULTS: dict[str, Any] = {**xlm_roberta.DEFAULTS, "vocab_size": 50265}
PREFIXES = xlm_roberta.PREFIXES
complete, unread, build = xlm_roberta.complete, xlm_roberta.unread, xlm_roberta.build
