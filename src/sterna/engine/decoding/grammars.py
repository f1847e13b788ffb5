"""Grammars built from others: tool calls in a text, and an answer after its reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.tagged_arguments import TaggedArguments

__all__ = ["SpecialTokens", "ToolCall", "after_reasoning", "calls", "quoted"]

#: Any text, and the line breaks that may follow reasoning.
_TEXT, _BREAKS = r"/(.|\n)*/", r"/\n{0,2}/"


@dataclass(frozen=True)
class ToolCall:
    """How an answer calls one tool: `begin`, then a JSON value of the schema, then `end`.

    For example, `{"name": "f", "arguments": ...}` between tags, with the schema of f's parameters.
    strict: refuse a schema of which any part cannot be enforced, else leave these parts out.
    tagged: how arguments are written if they are no JSON object.
    """

    begin: str
    schema: Mapping[str, Any] | bool
    end: str = ""
    strict: bool = True
    tagged: TaggedArguments | None = None


class SpecialTokens:
    """Special tokens such as <|im_end|>, which a grammar can only match by their ids.

    ids: of special tokens, by their text.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        longest_first = sorted(map(re.escape, ids), key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(longest_first)})") if ids else None

    def in_grammar(self, text: str) -> str:
        """Return a text as a grammar writes it, with special tokens by id; empty for empty."""
        parts = self._any.split(text) if self._any else [text]
        return " ".join(map(self._one, filter(None, parts)))

    def _one(self, part: str) -> str:
        return f"<[{self._ids[part]}]>" if part in self._ids else quoted(part)

    def up_to(self, rule: str, mark: str) -> list[str]:
        """Return grammar lines: the rule is any TEXT up to the first `mark`."""
        if mark in self._ids:
            return [f"{rule}: TEXT {self.in_grammar(mark)}"]
        return [f"{rule}[lazy]: TEXT {quoted(mark)}"]


def quoted(text: str) -> str:
    """Return a text as a grammar's string literal."""
    return json.dumps(text, ensure_ascii=False)


def calls(
    bodies: Sequence[tuple[ToolCall, str, Sequence[str]]],
    special: SpecialTokens,
    trigger: str,
    *,
    required: bool,
    several: bool,
    answer: str | None,
) -> str:
    """Return the grammar of a text in which a trigger opens a tool call.

    bodies: (call, grammar of its value, rules that this uses). answer: the grammar of an answer
    without calls; None: any text, with calls in it.
    """
    head = [f"call_head: {special.in_grammar(trigger)}"]
    if not (required or answer):
        head = special.up_to("call_head", trigger)
    rules, names = [*head, f"TEXT: {_TEXT}"], []
    for i, (call, body, others) in enumerate(bodies):
        begin = special.in_grammar(call.begin.removeprefix(trigger))
        parts = ("call_head", begin, body, special.in_grammar(call.end))
        rules.append(f"call_{i}: {' '.join(part for part in parts if part)}")
        rules += others
        names.append(f"call_{i}")
    one = f"({' | '.join(names)})"
    some = one + "+" * several
    start = f"{one}* TEXT" if several else f"{one} | TEXT"
    if required:
        start = some
    elif answer:
        start = f"{some} | @answer"
    text = "\n".join(["%llguidance {}", f"start: {start}", *rules])
    return _with(text, "answer", answer) if answer and not required else text


def after_reasoning(
    grammar: str, special: SpecialTokens, opened: bool, opens: str, closes: str
) -> str:
    """Return the grammar of an answer after its reasoning, any text up to `closes`.

    opened: whether the answer begins within reasoning; else it may open it, or have none.
    """
    start = "thoughts" if opened else f"({special.in_grammar(opens)} thoughts)?"
    rules = [
        "%llguidance {}", f"start: {start} @behind", "thoughts: closed BREAKS",
        *special.up_to("closed", closes), f"TEXT: {_TEXT}", f"BREAKS: {_BREAKS}",
    ]  # fmt: skip
    return _with("\n".join(rules), "behind", grammar)


def _with(outer: str, name: str, inner: str) -> str:
    """Join a Lark grammar and the one that it refers to as @name."""
    parts = [{"lark_grammar": inner}]
    if inner.startswith("{"):  # several grammars, in llguidance's JSON
        parts = json.loads(inner)["grammars"]
    first, *others = parts
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**first, "name": name}, *others]})
