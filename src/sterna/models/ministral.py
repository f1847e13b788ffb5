"""Ministral: Mistral's graph, some layers within a window."""

from __future__ import annotations

from typing import Any

from sterna.models import mistral
from sterna.models.mistral import build as build
from sterna.models.mistral import complete as complete

ARCHITECTURES = ("MinistralForCausalLM",)
DEFAULTS: dict[str, Any] = mistral.DEFAULTS
