"""`JsonCall`: a call as a JSON object with a name and arguments, in any order of its members."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from sterna.llm.tool_call_formats.arguments_readers import loads
from sterna.llm.tool_call_formats.pieces import NAME, Unfinished, offered, skipped

__all__ = ["Head", "JsonCall", "JsonHead", "json_call_of"]

#: The beginning of such a call in a layout: its name and its arguments have keys.
_CALL = re.compile(rf'\{{\s*(?:"\w+": "[^"]*",\s*)*?"(\w+)": "{NAME}",[^{{}}]*"(\w+)": $')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_SCALAR_START = re.compile(r"[-0-9.eE+a-z]*\Z|\"(?:[^\"\\]|\\.)*\\?\Z", re.DOTALL)
#: Keys of arguments: models of a family write those of another one.
_ARGUMENTS = ("arguments", "parameters")
#: Keys that may come before a call's name.
_OTHERS = frozenset(("type", "id", "tool_call_id", "index", "function", *_ARGUMENTS))


class JsonHead(NamedTuple):
    """The beginning of a call: its name, and where its arguments begin.

    A call whose name does not come first has no name here and must be read as a whole (`whole`).
    """

    name: str | None
    at: int


@dataclass(frozen=True)
class JsonCall:
    """The keys of a call's name and arguments; unmarked: whether no text marks the object."""

    name: str
    arguments: str
    unmarked: bool

    def head(self, text: str, at: int, names: Collection[str] | None) -> JsonHead | None:
        """Read a call up to its arguments; None if it is none, Unfinished if more must come."""
        if at == len(text):
            raise Unfinished
        if text[at] != "{":
            return None
        name, first, at = None, True, at + 1
        while True:
            member = self._member(text, at)
            if member is None:
                return None
            key, at = member
            if first and key != self.name and key not in (self.arguments, *_OTHERS):
                return None
            if text[at] in "{[" or key in (self.arguments, *_ARGUMENTS):
                return JsonHead(name if text[at] == "{" and key != "function" else None, at)
            value, at = self._scalar(text, at)
            if key == self.name:
                name = offered(value, names) if isinstance(value, str) else None
                if name is None:
                    return None
            elif self.unmarked and key not in (self.arguments, *_OTHERS):
                return None
            at = skipped(text, at)
            if at == len(text):
                raise Unfinished
            if text[at] != ",":
                return JsonHead(None, at) if text[at] == "}" and name is not None else None
            first, at = False, at + 1

    @staticmethod
    def _member(text: str, at: int) -> tuple[str, int] | None:
        """Read a key; returns it, and where its value begins."""
        at = skipped(text, at)
        key = _TEXT.match(text, at)
        if key is None:
            if at == len(text) or (_SCALAR_START.match(text, at) and text[at] == '"'):
                raise Unfinished
            return None
        at = skipped(text, key.end())
        if at == len(text):
            raise Unfinished
        if text[at] != ":":
            return None
        at = skipped(text, at + 1)
        if at == len(text):
            raise Unfinished
        return key[0][1:-1], at

    @staticmethod
    def _scalar(text: str, at: int) -> tuple[Any, int]:
        """Read a value that is no list and no object; returns it, and its end."""
        match = _TEXT.match(text, at) or _SCALAR.match(text, at)
        if _SCALAR_START.match(text, at):  # a text without its end, or a number that may go on
            raise Unfinished
        if match is None:
            return None, at
        try:
            return json.loads(match[0]), match.end()
        except ValueError:
            return None, match.end()

    def whole(self, text: str, names: Collection[str] | None) -> tuple[str, str] | None:
        """Return the name of a whole object, and its arguments as JSON; None if it is no call."""
        try:
            value = loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        name = value.get(self.name) if isinstance(value, dict) else None
        known = offered(name, names) if isinstance(name, str) else None
        if known is None or (self.unmarked and not value.keys() <= {self.name, *_OTHERS}):
            return None
        keys = (key for key in (self.arguments, *_ARGUMENTS) if key in value)
        arguments = value.get(next(keys, ""), {})
        if isinstance(arguments, str):
            return known, arguments
        return known, json.dumps(arguments, ensure_ascii=False)


def json_call_of(begin: str) -> tuple[str, JsonCall] | None:
    """Return the text before the object with which a layout's call begins, and its keys.

    None if it does not begin with such an object.
    """
    match = _CALL.search(begin)
    if match is None:
        return None
    before = begin[: match.start()]
    return before, JsonCall(match[1], match[2], unmarked=not before.strip())


class Head(NamedTuple):
    """The beginning of a call in a text.

    name: the tool's name; None if the call must be read as a whole, by `json`. at: where its
    arguments begin; of a whole call, where it begins. id: if the model writes one. json: the keys
    of a call that is an object.
    """

    name: str | None
    at: int
    id: str = ""
    json: JsonCall | None = None
