"""Mistral: Llama's graph, within one window of attention.

A file that says nothing of a window has one of 4,096 positions; null means none.
"""

from __future__ import annotations

from sterna.models import llama

ARCHITECTURES = ("MistralForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS = {"sliding_window": 4096}
build = llama.build
