"""`Choices`: the possible answers to a question, and the line that asks for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sterna.checks import checked_items
from sterna.errors import RequestError, shown

__all__ = ["Choices", "parse_choices"]

YES_NO = ("Yes", "No")
MOST_OPTIONS = 1024


@dataclass(frozen=True)
class Choices:
    """The possible answers: the options, the line that asks for one, the numbers of a score."""

    texts: tuple[str, ...]
    request: str
    values: tuple[int, ...] | None = None


def parse_choices(options: object, score: object) -> Choices:
    """Return the possible answers: yes or no, one of several texts, or a number. RequestError."""
    if options is not None and score is not None:
        raise RequestError("options: must be left out where score is given, but got both")
    if score is not None:
        return _numbers(score)
    if options is None:
        return Choices(YES_NO, "Answer the question with Yes or No only.")
    if isinstance(options, str):
        raise RequestError(f"options: must be several texts, but got {shown(options)}")
    texts = tuple(checked_items("options", options, "several texts"))
    good = all(isinstance(text, str) and text.strip() for text in texts)
    if not good or len(set(texts)) < len(texts) or not 2 <= len(texts) <= MOST_OPTIONS:
        raise RequestError(
            f"options: must be 2 to {MOST_OPTIONS} different texts, but got {shown(texts)}"
        )
    described = options if isinstance(options, Mapping) else {}
    listed = [f"- {t}: {described[t]}" if described.get(t) else f"- {t}" for t in texts]
    return Choices(texts, "\n".join(["Answer the question with one of these only:", *listed]))


def _numbers(score: object) -> Choices:
    bounds = list(checked_items("score", score, "the lowest and the highest number"))
    whole = all(isinstance(bound, (int, np.integer)) for bound in bounds)
    if len(bounds) != 2 or not whole or not 1 <= bounds[1] - bounds[0] < MOST_OPTIONS:
        raise RequestError(
            f"score: must be two whole numbers, the lower first, less than {MOST_OPTIONS} apart, "
            f"but got {shown(score)}"
        )
    values = tuple(range(int(bounds[0]), int(bounds[1]) + 1))
    request = f"Answer the question with a whole number from {values[0]} to {values[-1]} only."
    return Choices(tuple(map(str, values)), request, values)
