"""`sterna eval`: multiple-choice tasks from their standard files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import FOLDER, option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option, model_options, open_model
from sterna.cli.progress import progress_bar
from sterna.cli.report import weights
from sterna.cli.terminal import console, print_json, with_error
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.evaluate.tasks import Accuracy

METRICS = {"acc": "right", "acc_norm": "right_norm", "acc_bytes": "right_bytes"}


@grouped_command(short_help="Measure accuracy in HellaSwag or WinoGrande.")
@click.argument("task", type=click.Choice(["hellaswag", "winogrande"]))
@option(
    "--data",
    "The task's file: a JSON object with its standard fields in each line.",
    type=click.Path(path_type=Path),
    required=True,
)
@option("--limit", "Number of questions to use, from the first on.", type=click.IntRange(min=1))
@option(
    "--torch checkpoint",
    "A folder that transformers opens, such as the checkpoint that --model was made from: its "
    "module answers the same questions in PyTorch, in the same run.",
    type=FOLDER,
)
@model_options
@json_option
def command(
    task: str, data: Path, limit: int | None, checkpoint: Path | None, as_json: bool, **options: Any
) -> None:
    """Measure how often the right choice has the highest log-probability.

    acc compares the log-probabilities of the endings, acc_norm those per character, acc_bytes those
    per byte, as in lm-evaluation-harness; with standard errors. WinoGrande's two choices share one
    ending, and have only acc. --torch also answers with a module of PyTorch, and prints the largest
    difference of log-probabilities.
    """
    from sterna.evaluate.tasks import evaluate, read_questions

    questions = read_questions(data, task, limit)
    llm = open_model(options)
    torch_fields: dict[str, Any] = {}
    if checkpoint is None:
        with progress_bar("scoring", "questions", 1, len(questions)) as progress:
            result = evaluate(llm, questions, progress)
    else:
        module = opened(checkpoint)
        with progress_bar("scoring", "questions", 1, 2 * len(questions)) as progress:
            both = module(llm, questions, progress)
        result = both.sterna
        theirs = _numbers(both.torch, task)
        of_torch = {"checkpoint": str(checkpoint), **theirs, "difference": both.difference}
        torch_fields = {"torch": of_torch}
    info = llm.info()
    row = {
        "task": task,
        "data": str(data),
        "model": info["model"],
        **_numbers(result, task),
        "context": llm.context,
        **{
            key: info[key]
            for key in ("format", "head", "bits", "kv_dtype", "activations", "isa", "threads")
        },
        **torch_fields,
    }
    if as_json:
        print_json([row])
    else:
        _show(row)


def opened(checkpoint: Path) -> Callable[..., Any]:
    """Return a function that answers questions with a folder's module and with an LLM.

    RequestError if torch or transformers is missing, or cannot open the folder.
    """
    try:
        from sterna.integrations.evaluating import opened
    except ImportError as e:
        raise RequestError(f"torch: needs {e.name}: pip install 'sterna[train]'") from None
    return opened(checkpoint)


def _numbers(result: Accuracy, task: str) -> dict[str, Any]:
    row: dict[str, Any] = {"questions": result.n}
    for name, field in METRICS.items():
        normed = task == "winogrande" and name != "acc"
        share = (None, None) if normed else result.share(getattr(result, field))
        row[name], row[f"{name}_stderr"] = share
    return {**row, "seconds": round(result.seconds, 3)}


def _show(row: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table("", "", show_header=False, box=None, pad_edge=False)
    for name in METRICS:
        if row[name] is not None:
            table.add_row(name, with_error(row[name], row[f"{name}_stderr"]))
    table.add_row("of", f"{row['questions']:,} questions of {row['task']} ({row['data']})")
    table.add_row("model", f"{row['model']}, {weights(row)}, {row['seconds']:.1f} s")
    if (module := row.get("torch")) is not None:
        for name in METRICS:
            if module[name] is not None:
                figures = with_error(module[name], module[f"{name}_stderr"])
                table.add_row(f"{name} in torch", figures)
        of = f"{module['checkpoint']}, {module['seconds']:.1f} s; log-probabilities of choices"
        table.add_row("module", f"{of} differ by at most {module['difference']:.2g}")
    console().print(table, soft_wrap=True)
