"""`sterna bench figure quality`: what a model's answers lose in each format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.decorators import FILE
from sterna.cli.options import fetch_model, offline_option, threads_options
from sterna.cli.report import NAMES, Row, isa_option, output_options, plot_option
from sterna.cli.texts import Texts, text_options
from sterna_papers.cli.sections import Rows, Section, run_figure, write_sections

__all__ = ["quality"]

FILES = 4  # of the standard library: some 28,000 tokens, which take minutes
QUALITY = {
    "format": "format",
    "bits": "bits",
    "activations": "activations",
    "perplexity": "perplexity",
    "perplexity_stderr": "±",
    "kl_mean": "KL",
    "top1_agreement": "same choice",
    "lossless": "lossless",
}
TASKS = {
    "winogrande": "WinoGrande acc",
    "winogrande_stderr": "±",
    "hellaswag": "HellaSwag acc_norm",
    "hellaswag_stderr": "±",
}


@click.command()
@click.option(
    "--model", default="nano", show_default=True,
    help="A model as sterna run takes it: a folder, a .gguf file, a name.",
)  # fmt: skip
@offline_option
@click.option(
    "--formats", "format_names", type=NAMES,
    help="Weight formats; default: the paper's kernels and others for ternary models. f16 is "
    "always among them.",
)  # fmt: skip
@text_options
@click.option("--context", type=int, help="Tokens of a window; default: the model's context.")
@click.option("--winogrande", type=FILE, help="The task's file, as sterna eval reads it.")
@click.option("--hellaswag", type=FILE, help="The task's file, as sterna eval reads it.")
@click.option(
    "--questions", type=click.IntRange(min=1),
    help="Number of questions of each task to use, from the first on.",
)  # fmt: skip
@threads_options
@isa_option
@plot_option
@output_options
def quality(
    output: str,
    plot: Path | None,
    model: str,
    offline: bool,
    context: int | None,
    winogrande: Path | None,
    hellaswag: Path | None,
    **options: Any,
) -> None:
    """Measure perplexity, distance from float16, and accuracy of a model in each format.

    Table 2 of arXiv 2502.11880 (Bitnet.cpp). The texts are by default the first four of --stdlib.
    """
    from sterna_papers.figures import plots
    from sterna_papers.figures import quality as source

    if not options["files"] and options["folder"] is None and not options["stdlib"]:
        options |= {"stdlib": True, "limit": options["limit"] or FILES}
    texts = Texts.of(options)
    windows = source.Windows(context, options.pop("convention"), options.pop("stride"))
    given = {"winogrande": winogrande, "hellaswag": hellaswag}
    tasks = {task: path for task, path in given.items() if path is not None}
    fetch_model(model, offline)

    def show(rows: Rows) -> None:
        write_sections(rows, output, lambda shown: _sections(shown, [*tasks]))

    run_figure(
        source.run, plot, plots.quality, show, model=model, texts=texts, source=texts.source,
        windows=windows, tasks=tasks, **options,
    )  # fmt: skip


def _sections(shown: Sequence[Row], tasks: Sequence[str]) -> list[Section]:
    first = shown[0]
    title = (
        f"{first['model']}, {first['source']}, {first['tokens']:,} tokens in windows of "
        f"{first['context']} ({first['convention']}); head {first['head']}, KV cache "
        f"{first['kv_dtype']}."
    )
    named = tuple(tasks)
    columns = QUALITY | {key: head for key, head in TASKS.items() if key.startswith(named)}
    lines = [_written(row) for row in shown if not row["skipped"]]
    return [(title, lines, columns)]


def _written(row: Row) -> dict[str, Any]:
    """Return the row with its figures as texts, where three digits say too little or too much."""
    return {
        **row,
        "perplexity": f"{row['perplexity']:.4f}",
        "kl_mean": f"{row['kl_mean']:.2g}",
        "top1_agreement": f"{row['top1_agreement']:.2%}",
        "lossless": "yes" if row["lossless"] else "no",
    }
