"""Sequences and the pages that they hold, what is drawn from their logits, and the engine."""

from __future__ import annotations

from sterna.engine.engine import KV_DTYPES, PREFILL_CHUNK, SLOTS, Engine, Kept
from sterna.engine.pages import PAGE, PagePool, Sequence
from sterna.engine.sampling import SamplingParams, Top

__all__ = [
    "KV_DTYPES",
    "PAGE",
    "PREFILL_CHUNK",
    "SLOTS",
    "Engine",
    "Kept",
    "PagePool",
    "SamplingParams",
    "Sequence",
    "Top",
]
