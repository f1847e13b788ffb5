"""Grammars made of others: calls of tools in a text, and an answer behind thoughts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.tool_arguments import TaggedArguments

__all__ = ["Marks", "ToolCall", "behind_thoughts", "calls", "quoted"]

#: Any text, and the line breaks that may follow thoughts.
_TEXT, _BREAKS = r"/(.|\n)*/", r"/\n{0,2}/"


@dataclass(frozen=True)
class ToolCall:
    """How an answer calls one tool: `begin`, a JSON value of the schema, `end`.

    <tool_call>{"name": "f", "arguments": ...}</tool_call>, say, has the schema of f's parameters.
    strict: whether a schema of which something would not be enforced is refused; else that is left
    out. members: how the arguments are written, where they are no JSON object.
    """

    begin: str
    schema: Mapping[str, Any] | bool
    end: str = ""
    strict: bool = True
    members: TaggedArguments | None = None


class Marks:
    """Tokens that no text spells, such as <|im_end|>: a grammar of letters never matches them.

    ids: by their names.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        longest_first = sorted(map(re.escape, ids), key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(longest_first)})") if ids else None

    def spelt(self, text: str) -> str:
        """A text as a grammar has it: letters, and marks by their ids. Empty for an empty one."""
        parts = self._any.split(text) if self._any else [text]
        return " ".join(map(self._one, filter(None, parts)))

    def _one(self, part: str) -> str:
        return f"<[{self._ids[part]}]>" if part in self._ids else quoted(part)

    def up_to(self, rule: str, mark: str) -> list[str]:
        """Lines of a grammar: a rule of this name is any TEXT up to the first such mark."""
        if mark in self._ids:
            return [f"{rule}: TEXT {self.spelt(mark)}"]
        return [f"{rule}[lazy]: TEXT {quoted(mark)}"]


def quoted(text: str) -> str:
    """As a grammar spells a text."""
    return json.dumps(text, ensure_ascii=False)


def calls(
    bodies: Sequence[tuple[ToolCall, str, Sequence[str]]],
    marks: Marks,
    trigger: str,
    *,
    required: bool,
    several: bool,
    answer: str | None,
) -> str:
    """The grammar of a text in which a trigger opens a call of a tool.

    bodies: calls with what describes their value, and the rules that this names. answer: the
    grammar of an answer without calls; None: any text, within which calls may be.
    """
    head = [f"call_head: {marks.spelt(trigger)}"]
    if not (required or answer):
        head = marks.up_to("call_head", trigger)
    rules, names = [*head, f"TEXT: {_TEXT}"], []
    for i, (call, body, others) in enumerate(bodies):
        begin = marks.spelt(call.begin.removeprefix(trigger))
        parts = ("call_head", begin, body, marks.spelt(call.end))
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


def behind_thoughts(grammar: str, marks: Marks, opened: bool, opens: str, closes: str) -> str:
    """The grammar of an answer behind thoughts, which are any text up to what closes them.

    opened: whether the answer begins within them; else it may open them, or have none.
    """
    start = "thoughts" if opened else f"({marks.spelt(opens)} thoughts)?"
    rules = [
        "%llguidance {}", f"start: {start} @behind", "thoughts: closed BREAKS",
        *marks.up_to("closed", closes), f"TEXT: {_TEXT}", f"BREAKS: {_BREAKS}",
    ]  # fmt: skip
    return _with("\n".join(rules), "behind", grammar)


def _with(outer: str, name: str, inner: str) -> str:
    """Of Lark, which names another grammar, and that one."""
    parts = [{"lark_grammar": inner}]
    if inner.startswith("{"):  # several, as llguidance has them in JSON
        parts = json.loads(inner)["grammars"]
    first, *others = parts
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**first, "name": name}, *others]})
