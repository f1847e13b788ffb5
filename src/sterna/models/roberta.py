"""RoBERTa, and cross-encoders of it: XLM-RoBERTa with another vocabulary. arXiv 1907.11692."""

from __future__ import annotations

from typing import Any

from sterna.models import xlm_roberta
from sterna.models.xlm_roberta import build as build
from sterna.models.xlm_roberta import complete as complete
from sterna.models.xlm_roberta import unread as unread

ARCHITECTURES = ("RobertaModel", "RobertaForSequenceClassification")
ACTIVATION = "gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = xlm_roberta.DEFAULTS | {"vocab_size": 50265}
PREFIXES = xlm_roberta.PREFIXES
