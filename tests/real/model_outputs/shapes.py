"""The shapes of answers that models give, and the message that each must become.

Reports of such answers are in the trackers of llama.cpp, vLLM, SGLang, ollama and others: calls in
reasoning that is not closed, drafts of calls in reasoning that is, text around calls, missing
marks, values that look like marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from model_outputs.families import Called, Family, MessagesFamily, Part, Said, Thought
from model_outputs.writers import Call, Calls


def tool(name: str, properties: dict[str, Any], required: Sequence[str]) -> dict[str, Any]:
    described = {key: {**given, "description": "Some."} for key, given in properties.items()}
    schema = {"type": "object", "properties": described, "required": list(required)}
    function = {"name": name, "description": "Does it.", "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = [
    tool("get_weather", {"city": {"type": "string"}}, ["city"]),
    tool("run", {
        "cmd": {"type": "string"}, "n": {"type": "integer"}, "ratio": {"type": "number"},
        "opts": {"type": "object"}, "l": {"type": "array", "items": {"type": "string"}},
        "b": {"type": "boolean"}, "x": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "s": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }, ["cmd"]),
    tool("get_time", {}, []),
]  # fmt: skip
PARIS: Call = ("get_weather", {"city": "Paris"})
ROME: Call = ("get_weather", {"city": "Rome"})
LIST: Call = ("run", {"cmd": "ls -l", "n": 3})
TYPES: Call = (
    "run",
    {"cmd": "007", "n": -3, "ratio": 1.5, "opts": {"a": [1, {"b": None}], "c": "d"},
     "l": ["x", "y, z"], "b": True, "x": None, "s": "5"},
)  # fmt: skip
UNKNOWN: Call = ("not_a_tool", {"city": "Paris"})
LOOKS = "I look."
#: Values of texts that parsers were seen to break on.
HOSTILE = {
    "quotes": 'say "hi" & \'bye\' \\ \\" \\n',
    "braces": 'mkdir -p test/{a,b && echo "}}]" )',
    "markup": '<a href="x">&amp;</a> <b> <!-- -->',
    "code": "def f(x):\n\treturn {1: [2]}\n\n\n# end",
    "unicode": "Zürich 東京 🙂 \u200d|",
    "marks": "<tool_call> </tool_call> <think> </think> [TOOL_CALLS] <|im_end|> <function=run>",
    "ends": "a</parameter>b </arg_value> </function> </invoke> ```",
    "call": '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>',
    "number": "42",
    "word": "true",
    "empty": "",
    "spaces": "  x  ",
}


@dataclass(frozen=True)
class Case:
    """An answer, and what the client must get. parts: of which it is made, for the cuts."""

    name: str
    raw: str
    reasoning: str
    content: str
    calls: tuple[Call, ...]


def cases(family: Family, opened: bool, thinks: bool) -> Iterator[Case]:
    """All cases of a family. thinks: whether the prompt leaves room for reasoning."""
    made = Maker(family, opened)
    yield from made.ordinary(thinks)
    yield from made.values()
    for what, write in family.writer.slips.items():
        yield made.case(f"slip: {what}", Called([PARIS], write))
        yield made.case(f"slip behind a text: {what}", Said(LOOKS), Called([LIST], write))
        yield made.case(f"slip before a text: {what}", Called([LIST], write), Said("Done."))
    if thinks:
        yield from made.thoughts()
    if thinks and not isinstance(family, MessagesFamily):
        yield from made.open_thoughts()


@dataclass(frozen=True)
class Maker:
    """Makes the cases of a family."""

    family: Family
    opened: bool

    def case(self, name: str, *parts: Part, calls: Calls | None = None, content: str = "") -> Case:
        """calls, content: what the client must get, if it is not what the parts say."""
        family = self.family
        called = [call for part in parts if isinstance(part, Called) for call in part.calls]
        thought = "".join(part.text for part in parts if isinstance(part, Thought))
        if self.opened and not any(isinstance(part, Thought) for part in parts):
            assert family.thinks is not None
            raw = family.thinks[1].lstrip("\n") + family.ends + family.raw(parts, False)
        else:
            raw = family.raw(parts, self.opened)
        said = content or family.content(parts)
        return Case(name, raw, thought, said, tuple(called if calls is None else calls))

    def called(self, call: Call = PARIS) -> str:
        return self.family.writer.write([call])

    def ordinary(self, thinks: bool) -> Iterator[Case]:
        """Texts and calls in any order, and texts that only look like calls."""
        case, mark = self.case, self.family.writer.mark
        yield case("a text", Said("Hello, it is <b> & {x: [1]}."))
        yield case("a call", Called([PARIS]))
        yield case("without arguments", Called([("get_time", {})]))
        yield case("a text before", Said("Let me look.\n\nNow:"), Called([PARIS]))
        yield case("a text behind", Called([PARIS]), Said("Done."))
        yield case("a text before and behind", Said(LOOKS), Called([LIST]), Said("Done."))
        yield case("a mark in a text", Said(f"Use `{mark}` or {mark} to call."))
        yield case("a mark in a text, then a call", Said(f"I use {mark} now."), Called([PARIS]))
        if not self.family.one:
            yield case("two calls", Called([PARIS, LIST]))
            yield case("two calls behind a text", Said(LOOKS), Called([ROME, PARIS]))
            yield case("a text between", Called([PARIS]), Said("Then."), Called([ROME]))
        text = self.called(UNKNOWN)
        for drop in self.family.drops:
            text = mark + text.removeprefix(mark).replace(drop, "")
        yield case("a tool that nobody offered", Called([UNKNOWN]), calls=(), content=text)

    def values(self) -> Iterator[Case]:
        """Values of all types, and texts that look like something else."""
        yield self.case("types", Called([TYPES]))
        for what, value in HOSTILE.items():
            if not any(text in value for text in self.family.cannot):
                yield self.case(f"value: {what}", Called([("run", {"cmd": value, "n": 1})]))
                yield self.case(
                    f"value at the end: {what}", Called([("get_weather", {"city": value})])
                )
        mark = self.family.writer.mark
        if not any(text in mark for text in self.family.cannot):
            yield self.case("value: a mark", Called([("get_weather", {"city": f"a {mark} b"})]))
        if self.family.writer.tags:
            for name in ("n", "b", "l", "x"):
                given = Called([("run", {"cmd": "ls", name: ""})])
                yield self.case(f"an empty {name}", given, calls=[("run", {"cmd": "ls"})])
            yield self.case("an empty text", Called([("run", {"cmd": "", "n": 1})]))

    def thoughts(self) -> Iterator[Case]:
        """Reasoning that is closed."""
        case, mark = self.case, self.family.writer.mark
        yield case("reasoning", Thought("As so.\n\nI see."), Said("Hi."))
        yield case("reasoning, then a call", Thought("I need it."), Called([PARIS]))
        yield case("reasoning, a text, a call", Thought("I need it."), Said(LOOKS), Called([LIST]))
        yield case("a mark in reasoning", Thought(f"I may write {mark} here."), Said("Hi."))
        yield case("a mark in reasoning, then a call", Thought(f"Use {mark}."), Called([PARIS]))

    def open_thoughts(self) -> Iterator[Case]:
        """Calls in reasoning: of models that forget to close it, and drafts of others."""
        case, called, closes = self.case, self.called(), (self.family.thinks or ("", ""))[1]
        needed = Thought("I need it.\n", open=True)
        yield case("a call in reasoning", needed, Called([PARIS]))
        yield case("a call in reasoning, then a text", needed, Called([PARIS]), Said("Done."))
        yield case("a call that reasoning begins with", Thought("", open=True), Called([LIST]))
        if not self.family.one:
            yield case("two calls in reasoning", needed, Called([PARIS, ROME]))
        value = ("run", {"cmd": f"a {closes.strip()} b"})
        yield case("a call in reasoning with the end of it", needed, Called([value]))
        late = self.case("", needed, Called([PARIS]))
        yield Case("a call, then the end of reasoning", late.raw + closes, *_client(late))
        draft = Thought(f"I could write {called} or not.")
        yield case("a draft, then a text", draft, Said("Hi."))
        yield case("a draft, then a call", draft, Called([ROME]))
        yield case("a draft at the end, then a call", Thought(f"So: {called}"), Called([PARIS]))
        for what, write in self.family.writer.slips.items():
            yield case(f"slip in reasoning: {what}", needed, Called([PARIS], write))
        unknown = self.called(UNKNOWN)
        yield case("an unknown tool in reasoning", Thought(f"I do {unknown} now."), Said("Hi."))


def _client(case: Case) -> tuple[str, str, tuple[Call, ...]]:
    return case.reasoning, case.content, case.calls
