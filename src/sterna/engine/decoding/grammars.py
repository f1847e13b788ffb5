"""Grammars built from others: tool calls in a text, and an answer after its reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sterna.engine.decoding.special_tokens import SpecialTokens
from sterna.engine.decoding.tagged_arguments import ArgumentsForm

__all__ = [
    "NO_FRAME",
    "CallGroup",
    "CallRules",
    "Frame",
    "Messages",
    "TextArgument",
    "ToolCall",
    "after_reasoning",
    "calls",
    "calls_within",
]

#: Any text, and the line breaks that may follow reasoning.
_TEXT, _BREAKS = r"/(.|\n)*/", r"/\n{0,2}/"
#: The name of an argument that no schema lists.
_NAME = r"NAME: /[^<>\"'=:,{}()\[\]\n]+/"


@dataclass(frozen=True)
class TextArgument:
    """The only argument of a call: a text of a Lark grammar."""

    name: str
    lark: str


@dataclass(frozen=True)
class ToolCall:
    """How an answer calls one tool: `begin`, then a JSON value of the schema, then `end`.

    For example, `{"name": "f", "arguments": ...}` between tags, with the schema of f's parameters.
    strict: refuse a schema of which any part cannot be enforced, else leave these parts out.
    tagged: how arguments are written if they are no JSON object. begin and end may have the holes
    of `special_tokens`. text: takes the place of the schema.
    """

    begin: str
    schema: Mapping[str, Any] | bool
    end: str = ""
    strict: bool = True
    tagged: ArgumentsForm | None = None
    text: TextArgument | None = None


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
class CallGroup:
    """A way to write calls: the calls, the trigger of each group, and the text around them."""

    calls: Sequence[ToolCall]
    trigger: str
    frame: Frame = NO_FRAME

    @property
    def opening(self) -> str:
        """The whole text before a call that its tool does not change.

        A text that mentions the trigger seldom has all of it.
        """
        begins = sorted(call.begin for call in self.calls)
        pairs = zip(begins[0], begins[-1], strict=False)
        common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return self.frame.opens or common


@dataclass(frozen=True)
class CallRules:
    """The places of calls in an answer.

    bodies: (call, grammar of its value, rules that this uses). trigger: opens each group of calls.
    required: the answer consists of calls; several: there may be more than one. messages: the
    answer consists of these. others: more ways to call, where the answer may have any text.
    """

    bodies: Sequence[tuple[ToolCall, str, Sequence[str]]]
    trigger: str
    frame: Frame = NO_FRAME
    required: bool = False
    several: bool = True
    messages: Messages | None = None
    others: Sequence[CallRules] = ()


def calls(rules: CallRules, special: SpecialTokens, answer: str | None) -> str:
    """Return the grammar of a text in which a trigger opens a group of tool calls.

    answer: the grammar of an answer without calls; None: any text, with calls in it.
    """
    if rules.messages:
        return _with_messages(rules, rules.messages, special, answer)
    if rules.required or answer:
        head = [f"call_head: {special.in_grammar(rules.trigger)}"]
        some = "group" + "+" * rules.several
        start = some if rules.required else f"{some} | @answer"
        lines = _answer(head, rules, special)
    else:
        group, lines = _groups([rules, *rules.others], special)
        start = f"{group}* TEXT" if rules.several else f"{group} | TEXT"
    text = "\n".join(["%llguidance {}", f"start: {start}", *_SHARED, *lines])
    return _with(text, "answer", answer) if answer and not rules.required else text


def calls_within(rules: CallRules, special: SpecialTokens, only: bool) -> str:
    """Return the grammar of calls within reasoning that is left open, up to the last of them.

    Any text may come before the first. only: no text may come between them.
    """
    group, lines = _groups([rules] if only else [rules, *rules.others], special)
    start = group + "+" * (rules.several and not only)
    if rules.several and only:
        start = f"{group} again*"
        lines.append(f"again: {special.in_grammar(rules.trigger)} calls")
    return "\n".join(["%llguidance {}", f"start: {start}", *_SHARED, *lines])


def _groups(ways: Sequence[CallRules], special: SpecialTokens) -> tuple[str, list[str]]:
    """Return a text and then a group of calls, in one of several ways, and the grammar lines."""
    lines = []
    for i, way in enumerate(ways):
        end = f"_{i}" if i else ""
        lines += _answer(special.up_to(f"call_head{end}", way.trigger), way, special, end)
    return f"({' | '.join(f'group_{i}' if i else 'group' for i in range(len(ways)))})", lines


#: Rules that all calls use.
_SHARED = (f"TEXT: {_TEXT}", _NAME)


def _answer(head: list[str], rules: CallRules, special: SpecialTokens, end: str = "") -> list[str]:
    """Return the grammar lines of a group of calls: its trigger is `call_head`, `calls` the rest.

    end: the end of the names of these rules.
    """
    frame, trigger, lines = rules.frame, rules.trigger, [*head]
    first, between = frame.opens.removeprefix(trigger), frame.separator
    if not frame.opens:
        between += trigger
    names = []
    for i, (call, body, others) in enumerate(rules.bodies):
        begin = call.begin if frame.opens else call.begin.removeprefix(trigger)
        parts = (special.in_grammar(begin), body, special.in_grammar(special.without_end(call.end)))
        name = f"call{end}_{i}"
        lines.append(f"{name}: {' '.join(filter(None, parts)) or chr(34) * 2}")
        lines += others
        names.append(name)
    one = f"({' | '.join(names)})"
    grouped = rules.several and (between or frame.opens)
    more = f"({special.in_grammar(between)} {one})*" if grouped else ""
    closes = special.in_grammar(special.without_end(frame.closes))
    whole = (special.in_grammar(first), one, more, closes)
    lines.append(f"calls{end}: {' '.join(filter(None, whole))}")
    return [*lines, f"group{end}: call_head{end} calls{end}"]


def _with_messages(
    rules: CallRules, messages: Messages, special: SpecialTokens, answer: str | None
) -> str:
    """Return the grammar of an answer of several messages: reasoning, texts and calls."""
    write, mark = special.in_grammar, special.quoted(messages.separator)
    lines = [*_SHARED, *_answer([f"call_head: {special.quoted(rules.trigger)}"], rules, special)]
    lines += special.up_to("up_to", messages.separator)
    lines += [
        f"reasoning: {write(messages.reasoning)} up_to",
        f"said: ({' | '.join(map(write, (messages.content, *messages.other)))}) up_to",
        f"rest: {write(messages.content)} TEXT",
    ]
    calls = f"group ({mark} group)*" if rules.several else "group"
    if not rules.bodies:
        lines = [line for line in lines if not line.startswith(("group", "call"))]
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
    grammar: str,
    special: SpecialTokens,
    opened: bool,
    marks: tuple[str, str],
    within: str | None,
    ends: bool = False,
) -> str:
    """Return the grammar of an answer after its reasoning, any text up to the mark that closes it.

    opened: whether the answer begins within reasoning; else it may open it, or have none. marks:
    the marks that open and close it. within: the grammar of calls that leave it open, if it may
    have calls. ends: whether the answer may end within it, or go on behind such calls.
    """
    opens, closes = marks
    inside = "thought | TEXT" if ends else "thought"
    if within is not None:
        inside += f" | @within ({inside})" if ends else " | @within"
    start = inside if opened else f"@behind | {special.in_grammar(opens)} ({inside})"
    rules = [
        "%llguidance {}",
        f"start: {start}",
        "thought: closed BREAKS @behind",
        *special.up_to("closed", closes),
        f"TEXT: {_TEXT}",
        f"BREAKS: {_BREAKS}",
    ]
    combined = _with("\n".join(rules), "behind", grammar)
    return combined if within is None else _with(combined, "within", within)


def _with(outer: str, name: str, inner: str) -> str:
    """Join a grammar and the one that it refers to as @name."""
    (first, *others), outers = _parts(inner), _parts(outer)
    return json.dumps({"grammars": [*outers, {**first, "name": name}, *others]})


def _parts(grammar: str) -> list[dict[str, Any]]:
    """Return the grammars of which one consists."""
    if grammar.startswith("{"):  # several, in llguidance's JSON
        parts: list[dict[str, Any]] = json.loads(grammar)["grammars"]
        return parts
    return [{"lark_grammar": grammar}]
