"""Budgets of reasoning, from the fields of a request and the server's settings."""

from __future__ import annotations

from typing import Any

from sterna.server.errors import invalid

__all__ = ["checked_budget"]


def checked_budget(fields: dict[str, Any], default: int | None) -> int | None:
    """Return the first budget that is given among fields; None for none. ApiError 400.

    default: the server's budget. -1 is no limit.
    """
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise invalid(name, "must be a number of tokens, or -1 for no limit", value)
        return None if value < 0 else value
    return default
