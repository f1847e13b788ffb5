"""MobileLLM: Llama's graph; `share_embedding` is its word for tied embeddings. arXiv 2402.14905."""

from __future__ import annotations

from typing import Any

from sterna.models import llama
from sterna.models.llama import build as build

ARCHITECTURES = ("MobileLLMForCausalLM",)
DEFAULTS: dict[str, Any] = llama.DEFAULTS
