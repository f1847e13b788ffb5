"""MiniMax M3: arguments as nested tags, each of which follows a token of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sterna.engine.decoding.grammars import Frame
from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.engine.decoding.tagged_arguments import resolved
from sterna.llm.tool_call_formats.arguments_readers import read_argument
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_MARK = "]<]minimax[>["
_END = f"{_MARK}</invoke>\n"


class NestedReader:
    """Reads arguments up to the end of the call, all at once; the schema tells texts apart."""

    def __init__(self, after: str, schema: Mapping[str, Any]) -> None:
        self._schema, self._searched = schema, 0

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Return (JSON, characters consumed, whether the call ends); nothing before the end."""
        end = _END.rstrip()
        at = pending.find(end, self._searched)
        if at < 0:
            self._searched = max(0, len(pending) - len(end))
            return "", 0, False
        parts = pending[:at].split(_MARK)
        try:
            value, _ = _inside(parts, 0, {"type": "object", **self._schema}, self._schema)
        except (IndexError, RecursionError):
            value = {}
        return json.dumps(value, ensure_ascii=False), at, True


def _inside(parts: list[str], at: int, subschema: Any, whole: Mapping[str, Any]) -> tuple[Any, int]:
    """Read a value whose parts begin after its opening tag; returns it, and its end."""
    schema, members = resolved(subschema, whole), list[tuple[str, Any]]()
    at += 1
    properties = schema.get("properties")
    while at < len(parts) and not parts[at].startswith("</"):
        name, _, text = parts[at].removeprefix("<").partition(">")
        known = properties.get(name) if isinstance(properties, dict) else None
        inner = schema.get("items") if name == "item" and known is None else known
        if at + 1 < len(parts) and parts[at + 1].startswith("</"):
            leaf, at = _leaf(text, inner, whole), at + 1
            members += [] if leaf is None else [(name, json.loads(leaf))]
        else:
            value, at = _inside(parts, at, inner, whole)
            members.append((name, value))
        at += 1
    if schema.get("type") != "object" and members and all(n == "item" for n, _ in members):
        return [value for _, value in members], at
    return dict(members), at


def _leaf(text: str, subschema: Any, whole: Mapping[str, Any]) -> str | None:
    """Return a value without members as JSON; None if it is left out."""
    kind = resolved(subschema, whole).get("type")
    if not text and kind in ("array", "object"):
        return "[]" if kind == "array" else "{}"
    return read_argument(text, subschema, whole)


FORMAT = LayoutFormat(
    trigger=f"{_MARK}<tool_call>",
    begin=f'{_MARK}<invoke name="{NAME}">',
    end=_END,
    frame=Frame(f"{_MARK}<tool_call>\n", "", f"{_MARK}</tool_call>"),
    form=SpelledValues(
        f"{_MARK}<{{}}>",
        after="</{}>",
        key=f"{_MARK}<{{}}>",
        member_end="</{}>",
        comma="",
        object=("", ""),
        array=("", ""),
        item=f"{_MARK}<item>",
        item_end="</item>",
        text=("", _MARK),
        value_end=_MARK,
        words=("true", "false", "null"),
    ),
    reader=NestedReader,
)
