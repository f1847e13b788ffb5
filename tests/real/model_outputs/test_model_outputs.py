"""What models write becomes the right message, of every template that llama.cpp publishes."""

from __future__ import annotations

import json
from functools import cache
from itertools import takewhile
from typing import Any

import assets
import pytest
from model_outputs.families import ALL, MessagesFamily
from model_outputs.shapes import TOOLS, Case, cases

from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.errors import RequestError
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.output_parser import OutputParser
from sterna.llm.tool_choice import ToolChoice
from sterna.outputs import Delta

#: What turns reasoning on, in the words of several families.
THINKING = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
FEWEST = 1000


@cache
def answers(name: str) -> AnswerFormat:
    """How a model with a published template answers a question with tools."""
    path = assets.llama_cpp() / "models" / "templates" / f"{name}.jinja"
    tokens = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
    template = ChatTemplate.from_source(path.read_text(encoding="utf-8"), tokens)
    asked = [{"role": "user", "content": "Q"}]
    try:
        prompt = template.render(asked, tools=TOOLS, variables=THINKING)
    except RequestError:  # firefunction's reads variables that nobody sets
        prompt = ""
    state = template.reasoning_state(prompt)
    return AnswerFormat(template, ToolChoice.of_tools(TOOLS), state)


def of_template(name: str) -> list[Case]:
    """The cases of a template, with reasoning where the prompt leaves room for it."""
    family, state = ALL[name], answers(name).state
    closed = state is ReasoningState.CLOSED and not isinstance(family, MessagesFamily)
    thinks = family.thinks is not None and not closed
    return list(cases(family, state is ReasoningState.OPENED, thinks))


class Client:
    """What a client has of an answer: of its message, or of all pieces of a stream."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.reasoning: str = message.get("reasoning_content") or ""
        self.content: str = message.get("content") or ""
        functions = [call["function"] for call in message.get("tool_calls", ())]
        self.calls = [(one["name"], one["arguments"]) for one in functions]

    @classmethod
    def of_stream(cls, deltas: list[Delta]) -> Client:
        made = cls({})
        for delta in deltas:
            if delta.kind == "content":
                made.content += delta.text
            elif delta.kind == "reasoning_content":
                made.reasoning += delta.text
            elif delta.id:
                assert delta.index == len(made.calls)
                made.calls.append((delta.name, delta.text))
            else:
                name, arguments = made.calls[delta.index]
                made.calls[delta.index] = name, arguments + delta.text
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def streamed(parser: OutputParser, text: str, step: int = 1) -> Client:
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    return Client.of_stream([d for piece in pieces for d in parser.feed(piece)] + parser.end())


def wrong(name: str, case: Case) -> str:
    """What is wrong with the message of a case; empty if nothing is."""
    parser = answers(name).parser()
    client = Client(parser.message(case.raw))
    if client != (other := streamed(answers(name).parser(), case.raw)):
        return f"streamed {vars(other)}, but whole {vars(client)}"
    found = client.reasoning.strip(), client.content, decoded(client)
    wanted = case.reasoning.strip(), case.content, list(case.calls)
    if found != wanted:
        return f"got {found}"
    return "" if parser.has_tool_calls == bool(case.calls) else "has_tool_calls"


def decoded(client: Client) -> list[tuple[str, Any]]:
    found = []
    for name, arguments in client.calls:
        try:
            found.append((name, json.loads(arguments)))
        except ValueError:
            found.append((name, arguments))
    return found


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_shape(name: str) -> None:
    """As a whole and character by character."""
    made = of_template(name)
    misses = {case.name: problem for case in made if (problem := wrong(name, case))}
    assert not misses, "\n".join(
        f"{case.name}: {case.raw!r}\n    {misses[case.name]}"
        for case in made
        if case.name in misses
    )
    assert len({case.name for case in made}) == len(made)


#: Shapes whose answers are cut: texts, reasoning and calls in all orders.
CUT = ("reasoning, a text, a call", "a text before and behind", "a call in reasoning", "types")
#: Every so many cuts are streamed as well.
STREAMED = 12


def wrong_cut(answer: AnswerFormat, case: Case, end: int) -> str:
    """What is wrong with an answer that was cut; empty if nothing is.

    What was certain before stays as it is. Of what was cut, a mark or a call may be text.
    """
    text, parser = case.raw[:end], answer.parser()
    client = Client(parser.message(text))
    if end % STREAMED == 0 and client != streamed(answer.parser(), text):
        return "streamed"
    for found, whole in ((client.content, case.content), (client.reasoning, case.reasoning)):
        pairs = zip(found.rstrip(), whole, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if not text.endswith(found[same:]) and found[same:].strip():
            return f"got {vars(client)}"
    for (name, arguments), wanted in zip(client.calls, case.calls, strict=False):
        if name != wanted[0] or not _begins(arguments, wanted[1]):
            return f"got {vars(client)}"
    calls = decoded(client)
    if len(calls) > len(case.calls) or (
        parser.has_tool_calls and calls != [*case.calls][: len(calls)]
    ):
        return f"got {vars(client)}, complete"
    return ""


def _begins(arguments: str, whole: dict[str, Any]) -> bool:
    """Whether a JSON object was cut, and is right so far."""
    texts = [json.dumps(whole, ensure_ascii=False), json.dumps(whole)]
    found = "".join(arguments.split())
    return any("".join(text.split()).startswith(found) for text in texts)


@pytest.mark.parametrize("name", sorted(ALL))
def test_cut_at_every_character(name: str) -> None:
    """As the limit of tokens cuts answers."""
    answer = answers(name)
    for case in of_template(name):
        if case.name in CUT:
            for end in range(len(case.raw)):
                problem = wrong_cut(answer, case, end)
                assert not problem, f"{case.name}: {case.raw[:end]!r}: {problem}"


def test_the_corpus_is_large() -> None:
    """It has all templates that are published, and enough cases."""
    templates = assets.llama_cpp() / "models" / "templates"
    assert {path.stem for path in templates.glob("*.jinja")} == ALL.keys()
    count = sum(len(of_template(name)) for name in ALL)
    print(f"{count} cases of {len(ALL)} templates")
    assert count >= FEWEST
