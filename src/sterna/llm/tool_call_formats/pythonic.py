"""Pythonic calls, f(a='x', b=1), of LFM2 and of Llama 3.2 and 4."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.llm.tool_call_formats.arguments_readers import finite

__all__ = ["PYTHONIC", "PythonReader"]

#: Arguments by keyword, after "f(".
PYTHONIC = SpelledValues("{}=")
_NAMES = {"true": True, "false": False, "null": None}


class PythonReader:
    """Reads arguments up to the parenthesis that closes the call, all at once."""

    def __init__(self, after: str, schema: Mapping[str, Any]) -> None:
        self._scanned, self._depth = 0, 1
        self._quote, self._escaped = "", False

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Return (JSON, characters consumed, whether the call ends); nothing before the end."""
        for i in range(self._scanned, len(pending)):
            if self._closes(pending[i]):
                return _arguments(pending[:i]), i, True
        self._scanned = len(pending)
        return "", 0, False

    def _closes(self, c: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = True
            elif c == self._quote:
                self._quote = ""
        elif c in "'\"":
            self._quote = c
        elif c in "([{":
            self._depth += 1
        elif c in ")]}":
            self._depth -= 1
        return self._depth == 0


def _arguments(text: str) -> str:
    """Return keyword arguments as a JSON object; {} if there are none."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        arguments = {word.arg: _value(word.value) for word in getattr(call, "keywords", ())}
        return json.dumps(arguments, ensure_ascii=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return "{}"


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key else "" for key in node.keys]
        return dict(zip(keys, map(_value, node.values), strict=True))
    value = ast.literal_eval(node)
    return finite(value) if isinstance(value, float) else value
