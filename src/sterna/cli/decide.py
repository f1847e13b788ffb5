"""`sterna decide`: probabilities of given answers to questions about texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import flag, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import chat_template_option, json_option, model_options, open_model
from sterna.cli.terminal import VISIBLE, print_json
from sterna.cli.texts import piped_text
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from sterna.llm import Decision
    from sterna.llm.options import DecideOptions


@grouped_command(short_help="Choose among given answers, with probabilities.")
@click.argument("questions", nargs=-1, required=True)
@model_options
@chat_template_option
@option(
    "--file files",
    "A text for the questions; may be repeated. Default: stdin.",
    type=click.Path(path_type=Path),
    multiple=True,
)
@option(
    "--option texts",
    "An answer to choose from; repeat it for each. Default: Yes and No.",
    multiple=True,
)
@option("--score", "Choose a whole number in this range, such as 1-5.", metavar="LOW-HIGH")
@option(
    "--neutral",
    "A neutral text, such as N/A, whose log-probabilities are subtracted.",
    metavar="TEXT",
)
@flag("--normalise", "Divide each answer's log-probability by its number of tokens.")
@json_option
def command(
    questions: tuple[str, ...],
    files: tuple[Path, ...],
    texts: tuple[str, ...],
    score: str | None,
    neutral: str | None,
    normalise: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose among given answers to QUESTIONS about a text, with probabilities.

    Generates nothing. Prints a line for each question: the likeliest answer, its probability and
    the question. Asks all questions about each file. Probabilities have the same bits on every
    machine.
    """
    asked: DecideOptions = {
        "options": texts or None,
        "score": _range(score),
        "neutral": neutral,
        "normalise": normalise,
    }
    names, contexts = _contexts(files)
    llm = open_model(options)
    decisions = llm.decide(contexts, list(questions), **asked)
    pairs = [(name, question) for name in names for question in questions]
    rows = [_row(*pair, decision) for pair, decision in zip(pairs, decisions, strict=True)]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        named = "" if row["file"] is None else f"{row['file']}: "
        value = "" if row["value"] is None else f"  ({row['value']:.2f})"
        line = f"{row['probability']:.4f}  {row['answer']}{value}  {named}{row['question']}"
        click.echo(line.translate(VISIBLE))


def _contexts(files: tuple[Path, ...]) -> tuple[list[str | None], list[str]]:
    """Return names and texts of the contexts of the questions."""
    if files:
        from sterna.evaluate.perplexity import read_text

        return [str(file) for file in files], [read_text(file) for file in files]
    if sys.stdin.isatty():
        raise click.UsageError("text: must be given as --file or piped in")
    return [None], [piped_text()]


def _range(text: str | None) -> tuple[int, int] | None:
    """Parse --score; RequestError."""
    if text is None:
        return None
    low, dash, high = text.partition("-")
    if not dash or not low.isdecimal() or not high.isdecimal():
        raise RequestError(f"score: must be a range such as 1-5, but got {shown(text)}")
    return int(low), int(high)


def _row(file: str | None, question: str, decision: Decision) -> dict[str, Any]:
    return {
        "file": file,
        "question": question,
        "answer": decision.answer,
        "probability": decision.probability,
        "value": decision.value,
        "probabilities": decision.probabilities,
        "logprobs": decision.logprobs,
        "lengths": decision.lengths,
        "neutral_logprobs": decision.neutral_logprobs,
        "normalised": decision.normalised,
    }
