"""Readers of a call's arguments, as they come: JSON objects, and arguments between tags."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.llm.tool_call_formats.base import Nesting

__all__ = ["ArgumentsReader", "JsonReader", "TaggedReader", "finite", "loads", "read_json"]

_SPACE = " \t\r\n"


class ArgumentsReader(Protocol):
    """Reads the arguments of one call as they come."""

    def read(self, held: str, final: bool) -> tuple[str, int, bool]:
        """Return (JSON that is certain by now, characters of `held` consumed, whether it ends)."""


class JsonReader:
    """Reads arguments that are a JSON object, and passes them on as they come."""

    def __init__(self) -> None:
        self._nesting, self._begun = Nesting(), False

    def read(self, held: str, final: bool) -> tuple[str, int, bool]:
        """Read as `ArgumentsReader`."""
        start = 0 if self._begun else len(held) - len(held.lstrip(_SPACE))
        if not self._begun and start < len(held) and held[start] != "{":
            return "{}", 0, True
        self._begun = self._begun or start < len(held)
        end = self._nesting.end(held[start:], 0)
        if end < 0:
            return held[start:], len(held), False
        return held[start : start + end], start + end, True


class TaggedReader:
    """Reads arguments between tags, one at a time.

    after: the text after the last argument. schema: of the arguments.
    """

    def __init__(self, form: TaggedArguments, after: str, schema: Mapping[str, Any]) -> None:
        self._form, self._schema, self._count, self._begun = form, schema, 0, False
        self._after = after.strip()
        self._patterns = _patterns(form)

    def read(self, held: str, final: bool) -> tuple[str, int, bool]:
        """Read as `ArgumentsReader`."""
        found, at = "" if self._begun else "{", 0
        self._begun = True
        while one := self._next(held, at):
            name, text = one["name"], _DATA.sub(r"\1", one["value"])
            value = read_json(text, self._is_text(one, name))
            comma = ", " if self._count else ""
            found += f"{comma}{json.dumps(name, ensure_ascii=False)}: {value}"
            at, self._count = one.end(), self._count + 1
        rest = held[at:].lstrip(_SPACE)
        ended = rest.startswith(self._after) if self._after else final or bool(rest)
        return found + "}" * ended, at, ended

    def _next(self, held: str, at: int) -> re.Match[str] | None:
        """Return the match of the next argument."""
        matches = (pattern.match(held, at) for pattern in self._patterns.values())
        return next(filter(None, matches), None)

    def _is_text(self, one: re.Match[str], name: str) -> bool:
        """Whether an argument is a text as it stands, not JSON."""
        if self._form.quotes:
            return False
        if self._form.opens_other:
            return one.re is self._patterns[self._form.opens]
        properties = self._schema.get("properties")
        given = properties.get(name) if isinstance(properties, dict) else None
        return isinstance(given, dict) and given.get("type") == "string"


def _patterns(form: TaggedArguments) -> dict[str, re.Pattern[str]]:
    """Return a pattern of an argument for each tag that may open it."""
    closes, found = re.escape(form.closes.rstrip(_SPACE)), {}
    for tag in (form.opens, *(tag for _, tag in form.opens_other)):
        before, after = tag.lstrip(_SPACE).split("{}")
        name = rf"(?P<name>[^\n{re.escape(after[:1])}]*)"
        whole = rf"\s*{re.escape(before)}{name}{re.escape(after)}(?P<value>.*?){closes}\s*"
        found[tag] = re.compile(whole, re.DOTALL)
    return found


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
