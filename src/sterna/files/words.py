"""Tables of names, written as text: several names a line, in the order that reads best."""

from __future__ import annotations

__all__ = ["words"]


def words(text: str) -> tuple[str, ...]:
    """Split text at white space."""
    return tuple(text.split())
