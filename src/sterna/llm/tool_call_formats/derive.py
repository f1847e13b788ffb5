"""Derives how a chat template writes tool calls, by rendering probes and comparing the texts.

One call and two calls, arguments of several types, and an answer without calls are rendered. Where
two texts agree is the layout; where they differ are names, ids, numbers and arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sterna.chat import ChatTemplate
from sterna.engine.decoding.grammars import Frame
from sterna.engine.decoding.special_tokens import ID, INDEX
from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.errors import ModelFormatError, RequestError
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat
from sterna.llm.tool_call_formats.pythonic import PYTHONIC, PythonReader
from sterna.turn_tokens import ALL_TURN_TOKENS

__all__ = ["derived_format", "without_turn_end"]

_FIRST, _SECOND = "probe_first", "other_second"
_IDS = ("a1b2c3d4e", "z9y8x7w6v")
_ANSWER = "WITHOUT CALLS"
_KEYS, _VALUES = ("alpha_key", "beta_key"), ("VALUE ONE", "VALUE TWO")
_TEXTS = dict(zip(_KEYS, _VALUES, strict=True))
#: Values of other types, and the type by which a schema names them.
_OTHERS: dict[str, Any] = {
    **{"integer": 7, "number": 1.5, "boolean": True, "null": None},
    **{"array": [1, True], "object": {"deep": True}},
}

_TURN_END = re.compile(r"<[^<>]*(?:eos|eot|eom|end[_▁]of)[^<>]*>$", re.IGNORECASE)

Calls = list[tuple[str, Mapping[str, Any]]]


def derived_format(template: ChatTemplate) -> LayoutFormat | None:
    """Return the format in which a template writes calls; None if it writes none that is known."""
    probes = _Probes(template)
    one, two = probes.calls([(_FIRST, _TEXTS)]), probes.calls([(_FIRST, _TEXTS), (_SECOND, _TEXTS)])
    if one is None or _FIRST not in one:
        return None
    for derive in (_with_json, _with_keywords, _with_tags):
        if derived := derive(probes, one, two):
            return derived
    return None


class _Probes:
    """Renders answers of calls."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def calls(self, calls: Calls) -> str | None:
        """Return the part of a rendering that is the calls; ids are the hole ID.

        It begins where an answer without calls differs, and ends where that ends its turn.
        """
        made = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": dict(arguments)}}
            for (name, arguments), id in zip(calls, _IDS, strict=False)
        ]
        called = self._rendered({"content": "", "tool_calls": made}, calls)
        plain = self._rendered({"content": _ANSWER}, calls)
        if called is None or plain is None:
            return None
        begin = _common_start(called, plain)
        end = _common_end(called[begin:], plain[begin:])
        text = called[begin : len(called) - end]
        for id in _IDS:
            text = text.replace(id, ID)
        marks = self._template.reasoning_marks
        if marks:
            text = marks.without(text)
        return without_turn_end(text, self._template.after_answer().strip())

    def _rendered(self, answer: dict[str, Any], calls: Calls) -> str | None:
        said = [{"role": "user", "content": "Q"}, {"role": "assistant", **answer}]
        tools = [_tool(name) for name in (_FIRST, _SECOND, *(name for name, _ in calls))]
        try:
            return self._template.render(said, add_generation_prompt=False, tools=tools)
        except (RequestError, ModelFormatError):
            return None


def _tool(name: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": "Any."} for key in _KEYS}
    parameters = {"type": "object", "properties": properties, "required": [*_KEYS]}
    function = {"name": name, "description": "Tries a call.", "parameters": parameters}
    return {"type": "function", "function": function}


@dataclass(frozen=True)
class _Parts:
    """The texts before a call's name, between it and the arguments, and after the arguments."""

    before: str
    between: str
    after: str

    def format(self, middle: str | None, **options: Any) -> LayoutFormat | None:
        """Make the format. middle: the text between two calls; None if there cannot be two."""
        after, separator, before = self.after, "", self.before
        closes = opens = ""
        if middle is not None:
            after = _whole_marks(_alike(self.after, middle))
            rest = middle[len(after) :]
            before = _alike(self.before[::-1], rest[::-1])[::-1]
            before = _from_mark(self.before, rest, before)
            separator = rest[: len(rest) - len(before)]
            opens = self.before[: len(self.before) - len(before)]
            closes = self.after[len(after) :]
        if not opens.strip():
            separator += before[: len(before) - len(before.lstrip())]
            before = before.lstrip()
        begin, opens = f"{before}{NAME}{self.between}", opens.lstrip()
        trigger = _trigger(opens or begin)
        if not trigger:
            return None
        frame = Frame(opens, separator, closes)
        return LayoutFormat(trigger, begin, after, frame, **options)


def _with_json(probes: _Probes, one: str, two: str | None) -> LayoutFormat | None:
    """Derive calls whose arguments are a JSON object."""
    place = _json_at(one, one.find(_FIRST))
    if place is None:
        return None
    start, end = place
    parts = _split(one, start, end)
    middle = None
    if two is not None and (first := _json_at(two, two.find(_FIRST))):
        middle = _middle(two, first[1])
        numbered = _number(parts, two, middle)
        if numbered:
            parts, middle = numbered
    return parts.format(middle)


def _json_at(text: str, at: int) -> tuple[int, int] | None:
    """Find the probe's arguments as JSON after a position; returns their begin and end."""
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        if value == _TEXTS:
            return at, end
        at += 1
    return None


def _split(one: str, start: int, end: int) -> _Parts:
    name = one.rfind(_FIRST, 0, start)
    before = one[:name].replace(_FIRST, NAME)
    return _Parts(before, one[name + len(_FIRST) : start], one[end:])


def _middle(two: str, end: int) -> str | None:
    """Return the text between the first call's arguments and the second call's name."""
    last = two.rfind(_SECOND)
    return two[end:last].replace(_SECOND, NAME) if last >= end else None


def _number(parts: _Parts, two: str, middle: str | None) -> tuple[_Parts, str] | None:
    """Find numbers that count calls, and put the hole INDEX in their places."""
    if middle is None:
        return None
    between = two[two.rfind(_SECOND) + len(_SECOND) :]
    if not between.startswith(parts.between):
        for first, second in (("0", "1"), ("1", "2")):
            at = len(_alike(parts.between, between))
            if (parts.between[at : at + 1], between[at : at + 1]) == (first, second):
                holed = parts.between[:at] + INDEX + parts.between[at + 1 :]
                return _Parts(parts.before, holed, parts.after), middle
    for first, second in (("0", "1"), ("1", "2")):
        at, rest = parts.before.rfind(f'"{first}"'), middle.rfind(f'"{second}"')
        if at >= 0 and rest >= 0 and parts.before[at + 3 :] == middle[rest + 3 :]:
            before = f'{parts.before[:at]}"{INDEX}"{parts.before[at + 3 :]}'
            holed = f'{middle[:rest]}"{INDEX}"{middle[rest + 3 :]}'
            return _Parts(before, parts.between, parts.after), holed
    return None


def _with_keywords(probes: _Probes, one: str, two: str | None) -> LayoutFormat | None:
    """Derive calls in Python's form."""
    at = one.find(f"{_FIRST}({_KEYS[0]}=")
    if at < 0:
        return None
    end = one.find(")", at)
    parts = _Parts(one[:at], "(", one[end:])
    middle = _middle(two, two.find(")", two.find(_FIRST))) if two is not None else None
    return parts.format(middle, form=PYTHONIC, reader=PythonReader)


def _with_tags(probes: _Probes, one: str, two: str | None) -> LayoutFormat | None:
    """Derive calls with arguments between tags."""
    tagged = _tags(one)
    if tagged is None:
        return None
    parts, opens, closes = tagged
    numbered, others, prints = None, [], False
    for kind, value in _OTHERS.items():
        text = probes.calls([(_FIRST, {_KEYS[0]: _VALUES[0], _KEYS[1]: value})])
        value_tag = _value_tag(text, opens, closes) if text is not None else None
        if value_tag is None:
            continue
        tag, spelled = value_tag
        prints = prints or spelled != json.dumps(value)
        others.append((kind, tag))
    if not others:
        return None
    quotes = opens.endswith('"') and all(tag + '"' == opens for _, tag in others)
    if quotes:
        opens, closes = opens[:-1], closes[1:]
    changed = () if all(tag == opens for _, tag in others) else tuple(others)
    middle = None
    if two is not None:
        end = two.find(_VALUES[1]) + len(_VALUES[1]) + len(closes)
        middle = _middle(two, end)
        numbered = _number(parts, two, middle)
    if numbered:
        parts, middle = numbered
    form = TaggedArguments(opens, closes, changed, quotes)
    return parts.format(middle, form=form, prints_values=prints)


def _tags(one: str) -> tuple[_Parts, str, str] | None:
    """Return the parts of a call, and the tags around its arguments."""
    pieces = []
    at = one.rfind(_FIRST, 0, max(0, one.find(_KEYS[0])))
    before, rest = one[: max(0, at)].replace(_FIRST, NAME), one[at + len(_FIRST) :]
    for mark in (_KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1]):
        piece, mark_there, rest = rest.partition(mark)
        pieces.append(piece)
        if not mark_there:
            return None
    start, opens, middle, _ = pieces
    closes = _whole_marks(_alike(rest, middle))
    first = _alike(start[::-1], middle[len(closes) :][::-1])[::-1]
    if len(closes) + len(first) != len(middle) or not first + opens:
        return None
    parts = _Parts(before, start[: len(start) - len(first)], rest[len(closes) :])
    return parts, f"{first}{{}}{opens}", closes


def _value_tag(text: str, opens: str, closes: str) -> tuple[str, str] | None:
    """Return the tag before the second argument, and how its value is spelled."""
    first = opens.split("{}")[0]
    at = text.find(first + _KEYS[1])
    end = text.find(closes.rstrip(), at)
    if at < 0 or end < 0:
        return None
    inner = text[at + len(first) + len(_KEYS[1]) : end]
    match = re.search(r"(\[.*\]|\{.*\}|[\w.]+)\s*$", inner, re.DOTALL)
    if match is None:
        return None
    return f"{first}{{}}{inner[: match.start()]}", match[1]


# ------------------------------------------------------------------------------------- texts


def _alike(one: str, other: str) -> str:
    """Return what two texts begin with in common."""
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(a for a, _ in pairs)


def _inside_mark(text: str) -> int:
    """Return where a mark such as <tag> begins that is open at the end of a text; -1 without."""
    opened = max(text.rfind("<"), text.rfind("["))
    closing = {"<": ">", "[": "]"}.get(text[opened : opened + 1], "")
    inner = text[opened + 1 :]
    plain = all(c.isalnum() or c in "_-|/:=｜▁~" for c in inner)
    return opened if opened >= 0 and closing not in inner and plain else -1


def _whole_marks(text: str) -> str:
    """Return a text without the beginning of a mark at its end."""
    at = _inside_mark(text)
    return text if at < 0 else text[:at]


def _from_mark(whole: str, other: str, tail: str) -> str:
    """Return a common end of two texts without the end of a mark with which it begins."""
    for text in (whole, other):
        before = text[: len(text) - len(tail)]
        at = _inside_mark(before)
        if at < 0 or not tail or before.endswith("["):
            continue
        closing = {"<": ">", "[": "]"}[before[at]]
        cut = tail.find(closing)
        if cut >= 0:
            tail = tail[cut + 1 :]
    return tail


def _common_start(called: str, plain: str) -> int:
    """Return where a rendering with calls begins to differ, not within a mark."""
    return len(_whole_marks(_alike(called, plain)))


def _common_end(called: str, plain: str) -> int:
    """Return the length of the common end of two renderings, not within a mark."""
    tail = _alike(called[::-1], plain[::-1])[::-1]
    return len(_from_mark(called, plain, tail))


def without_turn_end(text: str, end: str = "") -> str:
    """Return a text without the tokens that end a turn, at its end. end: the template's own."""
    trimmed = text.rstrip()
    for mark in filter(None, (end, *ALL_TURN_TOKENS)):
        if trimmed.endswith(mark):
            return without_turn_end(trimmed.removesuffix(mark), end)
    named = _TURN_END.search(trimmed)
    return without_turn_end(trimmed[: named.start()], end) if named else text


def _trigger(text: str) -> str:
    """Return the first mark of a text, or all of it up to its first hole."""
    start = re.split(f"[{ID}{INDEX}{NAME}]", text, maxsplit=1)[0]
    match = re.match(r"<[^<>\s]+>|\[[A-Z_]+\]", start)
    return match[0] if match else start.rstrip("\n") or start
