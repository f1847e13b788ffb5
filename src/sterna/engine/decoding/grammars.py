"""Grammars built from others: tool calls in a text, and an answer after its reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.special_tokens import SpecialTokens
from sterna.engine.decoding.tagged_arguments import ArgumentsForm

__all__ = ["NO_FRAME", "CallRules", "Frame", "Messages", "ToolCall", "after_reasoning", "calls"]

#: Any text, and the line breaks that may follow reasoning.
_TEXT, _BREAKS = r"/(.|\n)*/", r"/\n{0,2}/"
#: The name of an argument that no schema lists.
_NAME = r"NAME: /[^<>\"'=:,{}()\[\]\n]+/"


@dataclass(frozen=True)
class ToolCall:
    """How an answer calls one tool: `begin`, then a JSON value of the schema, then `end`.

    For example, `{"name": "f", "arguments": ...}` between tags, with the schema of f's parameters.
    strict: refuse a schema of which any part cannot be enforced, else leave these parts out.
    tagged: how arguments are written if they are no JSON object. begin and end may have the holes
    of `special_tokens`.
    """

    begin: str
    schema: Mapping[str, Any] | bool
    end: str = ""
    strict: bool = True
    tagged: ArgumentsForm | None = None


@dataclass(frozen=True)
class Frame:
    """The text around the calls of a group: before the first, between them, after the last."""

    opens: str = ""
    separator: str = ""
    closes: str = ""


NO_FRAME = Frame()


@dataclass(frozen=True)
class Messages:
    """Answers that consist of several messages, each with a header for its kind.

    ends: ends a message that another one follows; starts: what then begins that one. reasoning,
    content: the headers of reasoning and of the answer's text; other: headers of more text.
    """

    ends: str
    starts: str
    reasoning: str
    content: str
    other: tuple[str, ...] = ()

    @property
    def separator(self) -> str:
        """The text between two messages."""
        return self.ends + self.starts


@dataclass(frozen=True)
class CallRules:
    """The places of calls in an answer.

    bodies: (call, grammar of its value, rules that this uses). trigger: opens each group of calls.
    required: the answer consists of calls; several: there may be more than one. messages: the
    answer consists of these.
    """

    bodies: Sequence[tuple[ToolCall, str, Sequence[str]]]
    trigger: str
    frame: Frame = NO_FRAME
    required: bool = False
    several: bool = True
    messages: Messages | None = None


def calls(rules: CallRules, special: SpecialTokens, answer: str | None) -> str:
    """Return the grammar of a text in which a trigger opens a group of tool calls.

    answer: the grammar of an answer without calls; None: any text, with calls in it.
    """
    if rules.messages:
        return _with_messages(rules, rules.messages, special, answer)
    found = _answer(special.up_to("call_head", rules.trigger), rules, special)
    group = "group"
    start = f"{group}* TEXT" if rules.several else f"{group} | TEXT"
    if rules.required or answer:
        found = _answer([f"call_head: {special.in_grammar(rules.trigger)}"], rules, special)
        some = group + "+" * rules.several
        start = some if rules.required else f"{some} | @answer"
    text = "\n".join(["%llguidance {}", f"start: {start}", *found])
    return _with(text, "answer", answer) if answer and not rules.required else text


def _answer(head: list[str], rules: CallRules, special: SpecialTokens) -> list[str]:
    """Return the grammar lines of a group of calls, whose trigger is `call_head`."""
    frame, trigger, lines = rules.frame, rules.trigger, [*head, f"TEXT: {_TEXT}", _NAME]
    first, between = frame.opens.removeprefix(trigger), frame.separator
    if not frame.opens:
        between += trigger
    names = []
    for i, (call, body, others) in enumerate(rules.bodies):
        begin = call.begin if frame.opens else call.begin.removeprefix(trigger)
        parts = (special.in_grammar(begin), body, special.in_grammar(special.without_end(call.end)))
        lines.append(f"call_{i}: {' '.join(filter(None, parts)) or chr(34) * 2}")
        lines += others
        names.append(f"call_{i}")
    one = f"({' | '.join(names)})"
    grouped = rules.several and (between or frame.opens)
    more = f"({special.in_grammar(between)} {one})*" if grouped else ""
    closes = special.in_grammar(special.without_end(frame.closes))
    whole = ("call_head", special.in_grammar(first), one, more, closes)
    return [*lines, f"group: {' '.join(filter(None, whole))}"]


def _with_messages(
    rules: CallRules, messages: Messages, special: SpecialTokens, answer: str | None
) -> str:
    """Return the grammar of an answer of several messages: reasoning, texts and calls."""
    write, mark = special.in_grammar, special.quoted(messages.separator)
    lines = _answer([f"call_head: {special.quoted(rules.trigger)}"], rules, special)
    lines += special.up_to("up_to", messages.separator)
    lines += [
        f"reasoning: {write(messages.reasoning)} up_to",
        f"said: ({' | '.join(map(write, (messages.content, *messages.other)))}) up_to",
        f"rest: {write(messages.content)} TEXT",
    ]
    calls = f"group ({mark} group)*" if rules.several else "group"
    if not rules.bodies:
        lines = [line for line in lines if not line.startswith(("group", "call_head"))]
        start = f"reasoning* {write(messages.content)} @answer"
    elif rules.required:
        start = f"reasoning* {calls}"
    elif answer:
        start = f"reasoning* ({calls} | {write(messages.content)} @answer)"
    else:
        start = f"(reasoning | said)* (rest | {calls})"
    text = "\n".join(["%llguidance {}", f"start: {start}", *lines])
    return _with(text, "answer", answer) if "@answer" in start and answer else text


def after_reasoning(
    grammar: str, special: SpecialTokens, opened: bool, opens: str, closes: str
) -> str:
    """Return the grammar of an answer after its reasoning, any text up to `closes`.

    opened: whether the answer begins within reasoning; else it may open it, or have none.
    """
    start = "reasoning" if opened else f"({special.in_grammar(opens)} reasoning)?"
    rules = [
        "%llguidance {}", f"start: {start} @behind", "reasoning: closed BREAKS",
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
