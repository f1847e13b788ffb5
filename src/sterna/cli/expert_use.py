"""Words about experts that stay on disk, for the line after an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sterna.llm import LLM

__all__ = ["expert_use"]


def expert_use(llm: LLM) -> str:
    """Return how often experts were in memory since the start; empty if all weights are."""
    if llm.model.experts is None:
        return ""
    counts = llm.model.experts.counts
    hits, used = counts["hits"], counts["hits"] + counts["misses"]
    share = hits / used if used else 0
    return f"; experts from memory {share:.0%}, {counts['bytes'] / 1e9:.2f} GB from disk so far"
