"""Ministral: Mistral's graph, some layers within a window."""

from __future__ import annotations

from sterna.models import mistral
from sterna.models.mistral import build as build
from sterna.models.mistral import complete as complete

ARCHITECTURES = ("MinistralForCausalLM",)
DEFAULTS = mistral.DEFAULTS
