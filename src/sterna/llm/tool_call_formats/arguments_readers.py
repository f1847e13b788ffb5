"""Readers of a call's arguments, as they come: JSON objects, and values between tags."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from sterna.engine.decoding.tagged_arguments import resolved

__all__ = [
    "ArgumentsReader",
    "JsonReader",
    "Nesting",
    "finite",
    "loads",
    "read_argument",
    "read_json",
]

_SPACE = " \t\r\n"
_KINDS = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
    (type(None), "null"),
)


class ArgumentsReader(Protocol):
    """Reads the arguments of one call as they come."""

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Return (JSON that is certain by now, characters consumed, whether the argument ends)."""


class Nesting:
    """Counts JSON's open braces and brackets outside of strings."""

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def end(self, text: str, floor: int) -> int:
        """Return the index after which the text's depth falls to `floor`; -1 if it does not."""
        for i, c in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = self._quoted
            elif c == '"':
                self._quoted = not self._quoted
            elif not self._quoted and c in "{[":
                self._depth += 1
            elif not self._quoted and c in "}]":
                self._depth -= 1
                if self._depth <= floor:
                    return i + 1
        return -1


class JsonReader:
    """Reads arguments that are a JSON object, and passes them on as they come.

    The object may stand in a JSON text. Anything else is no argument.
    """

    def __init__(self) -> None:
        self._nesting, self._begun = Nesting(), False

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Read as `ArgumentsReader`."""
        start = 0 if self._begun else len(pending) - len(pending.lstrip(_SPACE))
        if not self._begun and start < len(pending) and pending[start] != "{":
            return self._quoted(pending, start, final)
        self._begun = self._begun or start < len(pending)
        end = self._nesting.end(pending[start:], 0)
        if end < 0:
            return pending[start:], len(pending), False
        return pending[start : start + end], start + end, True

    @staticmethod
    def _quoted(pending: str, start: int, final: bool) -> tuple[str, int, bool]:
        match = _TEXT.match(pending, start)
        if match is None:
            waits = pending[start] == '"' and not final
            return ("", 0, False) if waits else ("{}", 0, True)
        try:
            text = json.loads(match[0])
            return (text, match.end(), True) if isinstance(loads(text), dict) else ("{}", 0, True)
        except (ValueError, RecursionError):
            return "{}", 0, True


_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


_DATA = re.compile(r"^<!\[CDATA\[(.*)\]\]>$", re.DOTALL)  # how MiniCPM quotes texts with <
#: Words of Python, which models write whose templates print values as Python does.
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def finite(number: float | str) -> float:
    """Return a number as a float, at most the largest: JSON has no infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(number)))


def loads(text: str) -> Any:
    """Decode JSON whose numbers become finite; ValueError if it is none."""
    return json.loads(text, parse_float=finite, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(word)


def read_json(text: str, as_text: bool) -> str:
    """Return an argument as JSON. as_text: its schema says string, so do not parse it."""
    if as_text:
        return json.dumps(text, ensure_ascii=False)
    try:
        value = loads(_PYTHON.get(text, text))
    except (ValueError, RecursionError):
        value = text
    return json.dumps(value, ensure_ascii=False)


def read_argument(
    text: str, subschema: Any, schema: Mapping[str, Any], is_text: bool | None = None
) -> str | None:
    """Return the text of an argument as JSON; None if it is empty where no text may be.

    subschema: the argument's own schema, possibly invalid; schema: that of all arguments. is_text:
    whether the call itself says that it is a text, which counts unless the schema rules it out. A
    text that may be several kinds of values is the first of them that it spells, before it is a
    text.
    """
    data = _DATA.sub(r"\1", text)
    kinds = _kinds(resolved(subschema, schema), schema)
    if kinds and "string" not in kinds and not data.strip():
        return None
    as_text = bool(is_text) and (not kinds or "string" in kinds)
    value = read_json(data, as_text=as_text or kinds == {"string"})
    if "string" in kinds and not _is_of(json.loads(value), kinds):
        return json.dumps(data, ensure_ascii=False)
    return value


def _kinds(subschema: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
    """Return the types of JSON that a schema allows; empty if it says none."""
    kinds = subschema.get("type")
    if kinds is not None:
        return {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])}
    values = subschema.get("enum", [subschema["const"]] if "const" in subschema else [])
    if isinstance(values, list) and values:
        return {_kind(value) for value in values}
    several = subschema.get("anyOf") or subschema.get("oneOf")
    parts = several if isinstance(several, list) else []
    each = [_kinds(resolved(one, schema), schema) for one in parts]
    return set().union(*each) if all(each) else set()


def _is_of(value: Any, kinds: set[str]) -> bool:
    kind = _kind(value)
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kind(value: Any) -> str:
    return next(name for kind, name in _KINDS if isinstance(value, kind))
