"""VaultGemma: Gemma 2's graph without the norms of the halves' outputs. arXiv 2510.15001."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import gemma2
from sterna.models.config import TransformerConfig
from sterna.models.gemma2 import complete as complete
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("VaultGemmaForCausalLM",)
ACTIVATION = gemma2.ACTIVATION
TERNARY = gemma2.TERNARY
DEFAULTS: dict[str, Any] = gemma2.DEFAULTS


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return gemma2.write(g, c, w, None, replace(gemma2.NORMS, adds=(None, None)))
