"""Multiple-choice tasks from their standard files: HellaSwag and WinoGrande, scored by likelihood.

Texts, choices and metrics are those of lm-evaluation-harness, so that figures can be compared.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sterna.errors import RequestError, brief, reason, shown
from sterna.evaluate.loglikelihood import Score, ScoringRequest, encode_pair, score
from sterna.files.reading import require_regular
from sterna.llm import LLM

__all__ = [
    "TASKS",
    "Accuracy",
    "Question",
    "Scorer",
    "Scores",
    "accuracy",
    "evaluate",
    "hellaswag",
    "question_scores",
    "read_questions",
    "winogrande",
]

MAX_LINE_BYTES = 1 << 20  # a question has some 1,500
_BRACKETS = re.compile(r"\[.*?\]")


@dataclass(frozen=True)
class Question:
    """Choices, each a context and an ending; number `gold` is right.

    An ending follows its context after a space.
    """

    choices: tuple[tuple[str, str], ...]
    gold: int


class _FieldError(ValueError):
    """(field, the rule, the value)"""


def hellaswag(record: Mapping[str, Any]) -> Question:
    """activity_label, ctx_a and ctx_b (or ctx), endings, label: the context is common."""
    endings = record.get("endings")
    if not isinstance(endings, list) or len(endings) < 2:
        raise _FieldError("endings", "a list of two texts or more", endings)
    if record.get("ctx_a") is None and record.get("ctx_b") is None:
        context = _text(record, "ctx")
    else:
        context = f"{_text(record, 'ctx_a')} {_text(record, 'ctx_b', empty=True).capitalize()}"
    context = _cleaned(f"{_text(record, 'activity_label')}: {context}")
    choices = []
    for i in range(len(endings)):
        ending = _cleaned(_text({f"endings[{i}]": endings[i]}, f"endings[{i}]"))
        if not ending:
            raise _FieldError(f"endings[{i}]", "a text outside of brackets", endings[i])
        choices.append((context, ending))
    return Question(tuple(choices), _number(record, "label", 0, len(endings) - 1))


def winogrande(record: Mapping[str, Any]) -> Question:
    """sentence with a gap _, option1, option2, answer: the text after the gap is scored.

    Partial evaluation (arXiv 1806.02847): both choices have the same ending after another context.
    """
    sentence = _text(record, "sentence")
    before, gap, after = sentence.partition("_")
    if not gap or not after.strip():
        raise _FieldError("sentence", "a text with a gap _ and more after it", sentence)
    options = (_text(record, "option1"), _text(record, "option2"))
    choices = tuple((before + option, after.strip()) for option in options)
    return Question(choices, _number(record, "answer", 1, 2) - 1)


#: How a line of a task's file becomes a question.
TASKS: dict[str, Callable[[Mapping[str, Any]], Question]] = {
    "hellaswag": hellaswag,
    "winogrande": winogrande,
}


def _cleaned(text: str) -> str:
    """Remove WikiHow's marks in brackets from a text; a title ends a sentence."""
    text = _BRACKETS.sub("", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def _text(record: Mapping[str, Any], field: str, empty: bool = False) -> str:
    value = record.get(field)
    if not isinstance(value, str) or (not value.strip() and not empty):
        raise _FieldError(field, "a text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _FieldError(field, "valid Unicode", value) from None
    return value


def _number(record: Mapping[str, Any], field: str, low: int, high: int) -> int:
    value = record.get(field)
    number = value
    if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise _FieldError(
            field, f"a number in {low}..{high} (files without answers have none)", value
        )
    return number


def read_questions(path: Path, task: str, limit: int | None = None) -> list[Question]:
    """Read the first `limit` questions of a file with a JSON object in each line.

    RequestError for an unknown task, an unreadable or empty file, or a bad line: it names the
    file, the line and the field.
    """
    if task not in TASKS:
        raise RequestError(f"task: must be one of {', '.join(TASKS)}, but got {shown(task)}")
    questions: list[Question] = []
    require_regular(path)
    try:
        with path.open("rb") as file:
            number = 0
            while limit is None or len(questions) < limit:
                line = file.readline(MAX_LINE_BYTES + 1)
                if not line:
                    break
                number += 1
                if line.strip():
                    questions.append(_question(line, task, f"{path}: line {number}"))
    except OSError as error:
        raise RequestError(
            f"{path}: must be a readable file, but got {reason(error)}; check the path"
        ) from None
    if not questions:
        raise RequestError(f"{path}: must hold a question, but has none; check the file")
    return questions


def _question(line: bytes, task: str, where: str) -> Question:
    if len(line) > MAX_LINE_BYTES:
        raise RequestError(f"{where}: must be at most {MAX_LINE_BYTES} bytes; check the file")
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{where}: must be a JSON object, but {brief(error)}; the file needs one in each line"
        ) from None
    if not isinstance(record, dict):
        raise RequestError(f"{where}: must be a JSON object, but got {type(record).__name__}")
    try:
        return TASKS[task](record)
    except _FieldError as error:
        field, rule, value = error.args
        got = "none" if value is None else ascii(value)
        short = got if len(got) <= 80 else f"{got[:77]}..."
        raise RequestError(
            f"{where}: {field}: must be {rule}, but got {short}; is it a file of {task}?"
        ) from None


@dataclass
class Accuracy:
    """Right answers to the questions so far, the likeliest choice being the answer.

    right: by the sum of log-probabilities; right_norm: by the sum over the ending's characters;
    right_bytes: over its bytes.
    """

    n: int = 0
    right: int = 0
    right_norm: int = 0
    right_bytes: int = 0
    seconds: float = 0.0

    def add(self, question: Question, scores: Iterable[Score]) -> None:
        """Count one question; of equal choices the first is the answer."""
        logprobs = [s.logprob for s in scores]
        endings = [ending for _, ending in question.choices]

        def is_right(sizes: list[int]) -> bool:
            values = [x / size for x, size in zip(logprobs, sizes, strict=True)]
            return values.index(max(values)) == question.gold

        self.n += 1
        self.right += is_right([1] * len(endings))
        self.right_norm += is_right([len(ending) for ending in endings])
        self.right_bytes += is_right([len(ending.encode()) for ending in endings])

    def share(self, right: int) -> tuple[float, float]:
        """Return (share of right answers, its standard error); NaN if there are too few."""
        if not self.n:
            return math.nan, math.nan
        p = right / self.n
        return p, math.sqrt(p * (1 - p) / (self.n - 1)) if self.n > 1 else math.nan


class Scorer(Protocol):
    """A scorer other than an `LLM`, such as a module of torch (`sterna.train.TorchModel`)."""

    @property
    def tokenizer(self) -> Any:
        """Sterna's, whose tokens the module reads."""

    def scores(
        self, groups: Sequence[Sequence[ScoringRequest]], progress: Callable[[int], None]
    ) -> list[list[Score]]:
        """Score as `loglikelihood.score`."""


class Scores(NamedTuple):
    """Of the choices of each question; seconds that they took."""

    of: list[list[Score]]
    seconds: float


def evaluate(
    llm: LLM | Scorer,
    questions: list[Question],
    progress: Callable[[int], None] = lambda done_questions: None,
) -> Accuracy:
    """Score every choice of every question; the same bits for any number of threads."""
    return accuracy(questions, question_scores(llm, questions, progress))


def question_scores(
    llm: LLM | Scorer,
    questions: list[Question],
    progress: Callable[[int], None] = lambda done_questions: None,
) -> Scores:
    """Return the scores of the choices of each question."""
    started = time.perf_counter()
    groups = [
        [encode_pair(llm.tokenizer.encode, context, f" {ending}") for context, ending in q.choices]
        for q in questions
    ]
    if isinstance(llm, LLM):
        made = score(llm.engine, groups, progress, llm.adapters.chosen(None))
    else:
        made = llm.scores(groups, progress)
    return Scores(made, time.perf_counter() - started)


def accuracy(questions: list[Question], scores: Scores) -> Accuracy:
    """Compute the accuracy of scored questions."""
    result = Accuracy(seconds=scores.seconds)
    for question, of_choices in zip(questions, scores.of, strict=True):
        result.add(question, of_choices)
    return result
