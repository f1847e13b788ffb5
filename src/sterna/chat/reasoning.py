"""Reasoning: the text before the content of an answer, between the family's markers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = [
    "CLOSE",
    "OPEN",
    "ReasoningMarks",
    "ReasoningState",
    "disables_reasoning",
    "marks_of",
    "with_switches",
]

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ReasoningMarks:
    """The marks around reasoning.

    opens, closes: marks around reasoning. dropped: marks around the content, which are no part of
    it. closing: text that ends reasoning early; default: `closes`. calls: marks that open calls,
    which end reasoning as well.
    """

    opens: str = OPEN
    closes: str = CLOSE
    dropped: tuple[str, ...] = ()
    closing: str = f"\n{CLOSE}\n\n"
    calls: tuple[str, ...] = ()

    @property
    def marks(self) -> str:
        """All markers whose special tokens must reach a parser."""
        return "\n".join((self.opens, self.closes, *self.dropped))

    def without(self, text: str) -> str:
        """Return a text without empty reasoning, and marks of content, at its start."""
        rest = text.lstrip()
        for mark in (self.opens.strip(), self.closes.strip(), *self.dropped):
            if mark and rest.startswith(mark):
                return self.without(rest[len(mark) :]).lstrip()
        return text


#: Marks of families other than <think>.
_FAMILIES = tuple(
    ReasoningMarks(opens, closes, tuple(dropped), closes)
    for opens, closes, *dropped in (
        ("[THINK]", "[/THINK]"),  # Magistral, Ministral 3
        ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command R7B, Command A
        ("<|channel>thought\n", "<channel|>"),  # Gemma 4
        ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
        ("<seed:think>", "</seed:think>"),  # Seed-OSS
        ("<mm:think>", "</mm:think>"),  # MiniMax M3
        ("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
        (  # Kimi K3
            *("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),
            *("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|sep|>"),
        ),
        (  # Apriel
            *("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
        ),
    )
)

#: Variables by which templates turn reasoning on or off: of Qwen and most others, of DeepSeek.
SWITCHES = ("enable_thinking", "thinking")
#: The answers of a conversation whose reasoning a template may leave out: one for each family.
_THOUGHTS = [
    (family, f"THOUGHT {i}", f"ANSWER {i}")
    for i, family in enumerate((ReasoningMarks(), *_FAMILIES))
]
_ASKED = {"role": "user", "content": "Q"}
_FIELDS = {"reasoning_content": "T", "thinking": "T", "reasoning": "T"}
_BLOCKS = {"blocks": [{"type": "thoughts", "text": "T"}, {"type": "response", "text": "A"}]}
#: Conversations in which templates show their marks, and variables for them.
_SHOWING: tuple[tuple[list[dict[str, Any]], dict[str, Any]], ...] = (
    ([_ASKED], {}),
    ([_ASKED], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ([_ASKED], {"enable_thinking": False, "thinking": False}),
    ([_ASKED, {"role": "assistant", "content": "A", **_FIELDS}], {}),
    ([_ASKED, {"role": "assistant", "content": "A", **_FIELDS}, _ASKED], {}),
    ([_ASKED, {"role": "assistant", "content": _BLOCKS}], {}),
)


def marks_of(
    render: Callable[[list[dict[str, Any]], dict[str, Any]], str],
) -> ReasoningMarks | None:
    """Return the marks that a template renders or cuts out; None if it has no reasoning we know.

    render: renders messages with variables; empty if the template refuses them.
    """
    text = "\n".join(render(messages, variables) for messages, variables in _SHOWING)
    for family in (ReasoningMarks(), *_FAMILIES):
        opens, closes = family.opens.strip(), family.closes.strip()
        if closes in text and (family.opens == OPEN or opens in text):
            return family
    said = [f"{one.opens}{thought}{one.closes}{answer}" for one, thought, answer in _THOUGHTS]
    turns = ({"role": "assistant", "content": content} for content in (*said, "A"))
    history = render([one for turn in turns for one in (_ASKED, turn)], {})
    for family, thought, answer in _THOUGHTS:
        if answer in history and thought not in history:
            return family
    return None


class ReasoningState(Enum):
    """How an answer begins.

    OPENED: within reasoning that the prompt has opened. FREE: with reasoning or without. CLOSED:
    with the content.
    """

    OPENED = "opened"
    FREE = "free"
    CLOSED = "closed"

    @classmethod
    def after_prompt(cls, prompt: str, marks: ReasoningMarks | None) -> ReasoningState:
        """Return the state after a prompt. marks: those of its template, if it has such."""
        text = prompt.rstrip()
        if marks is None:
            return cls.CLOSED
        if text.endswith(marks.opens.strip()):
            return cls.OPENED
        return cls.CLOSED if text.endswith(marks.closes.strip()) else cls.FREE

    @classmethod
    def after_start(cls, answer: str, marks: ReasoningMarks | None = None) -> ReasoningState:
        """Return the state after the start of an answer that is to be continued."""
        marks = marks or ReasoningMarks()
        opened = answer.rfind(marks.opens.strip()) > answer.rfind(marks.closes.strip())
        return cls.OPENED if opened else cls.CLOSED


def disables_reasoning(variables: Mapping[str, Any]) -> bool:
    """Whether variables of a template turn reasoning off, as Qwen, DeepSeek or OpenAI spell it."""
    said = [variables.get(name) for name in SWITCHES]
    return False in said or variables.get("reasoning_effort") == "none"


def with_switches(variables: Mapping[str, Any], on: bool) -> dict[str, Any]:
    """Return variables that turn reasoning on or off in any family, unless they have a switch."""
    if {*SWITCHES} & {*variables}:
        return dict(variables)
    return {**variables, **dict.fromkeys(SWITCHES, on)}
