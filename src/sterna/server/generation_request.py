"""`GenerationRequest`: the form into which every endpoint turns its protocol's request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sterna.engine.decoding.answer_parts import PartMarks
from sterna.engine.decoding.reasoning_budget import ReasoningBudget
from sterna.images import PromptImage

__all__ = ["GenerationRequest"]


@dataclass
class GenerationRequest:
    """One prompt and how to answer it.

    Attributes:
        prompt: token ids.
        options: keyword arguments of `LLM.generate`.
        n: the number of answers.
        chat: end an answer at the end of the assistant's turn.
        salt: requests share cached prefixes only if their salts are equal.
        priority: higher goes first in the queue.
        deadline_s: seconds that the answer may take.
        constraint: the grammar that the answer must match.
        prediction: token ids that the answer probably contains.
        reasoning_budget: the most tokens of reasoning; None is no limit.
        reasoning: the object that enforces this budget.
        visible: special tokens whose text is part of the answer's.
        marks: of the reasoning.
        rendered_at: the time in ISO 8601 that the chat template was given, if it asked for it.
        images: the images of the prompt, with their positions.
    """

    prompt: list[int]
    options: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    chat: bool = False
    salt: str = ""
    priority: int = 0
    deadline_s: float | None = None
    constraint: Any = None
    prediction: list[int] | None = None
    rendered_at: str | None = None
    visible: frozenset[int] = frozenset()
    marks: PartMarks | None = None
    reasoning_budget: int | None = None
    reasoning: ReasoningBudget | None = None
    images: tuple[PromptImage, ...] = ()
