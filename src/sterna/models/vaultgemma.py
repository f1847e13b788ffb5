"""VaultGemma: Gemma 2's graph without the norms of the sublayers' outputs. arXiv 2510.15001."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Value
from sterna.models import gemma2
from sterna.models.builder import ModelBuilder
from sterna.models.gemma2 import complete as complete

ARCHITECTURES = ("VaultGemmaForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = gemma2.DEFAULTS


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return gemma2.write(m, None, replace(gemma2.NORMS, post=(None, None)))
