"""`sterna bench figure`: the papers' tables and figures, measured on this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.options import (
    console,
    cores_option,
    deterministic_option,
    threads_options,
)
from sterna.cli.report import (
    NAMES,
    NUMBERS,
    Row,
    isa_option,
    limit_option,
    measured,
    output_options,
    plot_option,
    print_raw,
    table,
    team_option,
    varying,
)

__all__ = ["Section", "figure", "run_figure", "write_sections"]

Rows = Sequence[Mapping[str, Any]]
#: A table of a figure: its title, its rows, and its columns (field -> heading).
Section = tuple[str, Sequence[Row], Mapping[str, str]]

E2E = {
    "model": "model",
    "format": "format",
    "tok_s": "tok/s",
    "tok_s_range": "range",
    "fraction_of_bandwidth": "of memory",
    "speedup": "speed-up",
    "amdahl": "Amdahl",
    "alpha": "α",
    "x": "x",
    "amdahl_bytes": "Amdahl, bytes",
    "x_bytes": "x, bytes",
}
PROMPT = {
    "model": "model",
    "format": "format",
    "prompt_tok_s": "prompt tok/s",
    "prompt_tok_s_range": "range",
    "eval_tok_s": "eval tok/s",
    "eval_tok_s_range": "range",
    "peer_format": "llama.cpp",
    "peer_prompt_tok_s": "prompt tok/s",
    "peer_prompt_tok_s_range": "range",
    "peer_eval_tok_s": "eval tok/s",
    "peer_eval_tok_s_range": "range",
    "prompt_ratio": "prompt, ×",
    "eval_ratio": "eval, ×",
}
THREADS = {
    "model": "model",
    "format": "format",
    "threads": "threads",
    "tok_s": "tok/s",
    "tok_s_range": "range",
    "gb_s": "GB/s read",
    "bandwidth_gb_s": "memory GB/s",
    "fraction_of_bandwidth": "of memory",
}
LITESPARK = {
    "peer": "runtime",
    "format": "weights",
    "rss_mb": "memory MB",
    "memory_ratio": "×",
    "ttft_ms": "TTFT ms",
    "ttft_ms_range": "range",
    "ttft_ratio": "×",
    "tok_s": "tok/s",
    "tok_s_range": "range",
    "tok_s_ratio": "×",
    "joules_per_token": "J/token",
    "energy_ratio": "×",
}

_repeat = click.option("--repeat", type=int, default=3, show_default=True, help="Rounds; medians.")


@click.group()
def figure() -> None:
    """The papers' tables and figures, measured on this machine."""


@figure.command()
@click.option(
    "--models",
    type=NAMES,
    default="falcon3-1b,mobilellm-1.5b,llama3-8b",
    show_default=True,
    help="Shapes of dummy models.",
)
@click.option(
    "--formats",
    "format_names",
    type=NAMES,
    default="bf16,mxfp4,i2p,i1",
    show_default=True,
    help="Weight formats of the layers; bf16 is always among them.",
)
@click.option("--head", default="bf16", show_default=True, help="Output head of all.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Tokens to generate.")
@_repeat
@threads_options
@isa_option
@plot_option
@output_options
def e2e(output: str, plot: Path | None, **options: Any) -> None:
    """Tokens per second of 16, 4, 2 and 1 bit, with what Amdahl's law allows.

    Figures 8 to 10 of arXiv 2508.06753.
    """
    from sterna.bench.figures import e2e as source
    from sterna.bench.figures import plots

    def show(rows: Rows) -> None:
        write_sections(rows, output, lambda shown: [("", shown, varying(shown, E2E, ["threads"]))])

    run_figure(source.run, plot, plots.e2e, show, **options)


@figure.command()
@click.option(
    "--models", type=NAMES, default="tinyllama-1.1b,mistral-7b", show_default=True,
    help="Shapes of dummy models.",
)  # fmt: skip
@click.option(
    "--formats", "format_names", type=NAMES, default="f32,f16,bf16,q8_0,q4_0,q4_1",
    show_default=True, help="Weight formats.",
)  # fmt: skip
@click.option("--pp", type=int, default=512, show_default=True, help="Tokens of the prompt.")
@click.option("--tg", type=int, default=64, show_default=True, help="Tokens to generate.")
@click.option(
    "--peer/--no-peer", "with_peer", default=True, help="llama-cpp-python beside it, in turn."
)
@_repeat
@team_option
@isa_option
@deterministic_option
@limit_option
@plot_option
@output_options
def prompt(output: str, plot: Path | None, **options: Any) -> None:
    """Prompt and eval tokens per second of each weight format, beside llama.cpp.

    The tables of "LLaMA Now Goes Faster on CPUs", the llamafile paper.
    """
    from sterna.bench.figures import plots
    from sterna.bench.figures import prompt as source

    def show(rows: Rows) -> None:
        beside = ("peer_skipped", "llama.cpp")
        write_sections(rows, output, lambda shown: [("", shown, PROMPT)], beside)

    run_figure(source.run, plot, plots.prompt, show, **options)


@figure.command()
@click.option(
    "--models", type=NAMES, default="700m,1.5b,3.8b,7b,13b,30b,70b,100b", show_default=True,
    help="Shapes of dummy models, for the table.",
)  # fmt: skip
@click.option(
    "--scaling", type=NAMES, default="3.8b,700m", show_default=True,
    help="Shapes that run on each number of threads, or none.",
)  # fmt: skip
@click.option(
    "--formats", "format_names", type=NAMES,
    help="Weight formats; default: the paper's kernels and Sterna's lossless ternary ones.",
)  # fmt: skip
@click.option("--head", default="bf16", show_default=True, help="Output head of all.")
@click.option("--tokens", type=int, default=16, show_default=True, help="Tokens to generate.")
@_repeat
@click.option("--threads", type=NUMBERS, help="Thread counts; default: 1 to the usable cores.")
@cores_option
@isa_option
@plot_option
@output_options
def ternary(output: str, plot: Path | None, **options: Any) -> None:
    """Tokens per second of ternary models from 700M to 100B, and over the threads.

    Table 7 and Figures 8 and 10 of arXiv 2502.11880 (Bitnet.cpp).
    """
    from sterna.bench.figures import plots
    from sterna.bench.figures import ternary as source

    if options["scaling"] == ("none",):
        options["scaling"] = ()

    def show(rows: Rows) -> None:
        write_sections(rows, output, _ternary_sections)

    run_figure(source.run, plot, plots.ternary, show, **options)


@figure.command()
@click.option("--model", default="bitnet-2b", show_default=True, help="Shape of the dummy model.")
@click.option(
    "--formats", "format_names", type=NAMES, default="i8,i2,t5", show_default=True,
    help="Sterna's weight formats.",
)  # fmt: skip
@click.option("--head", default="int8", show_default=True, help="Sterna's output head.")
@click.option(
    "--peers", "names", type=NAMES, default="torch,litespark", show_default=True,
    help="Whom to run beside; ratios are to torch.",
)  # fmt: skip
@click.option("--pp", type=int, default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--tg", type=int, default=128, show_default=True, help="Tokens to generate.")
@_repeat
@team_option
@isa_option
@limit_option
@plot_option
@output_options
def litespark(output: str, plot: Path | None, **options: Any) -> None:
    """Memory, time to first token, throughput and energy beside PyTorch.

    The tables of the Litespark paper.
    """
    from sterna.bench.figures import litespark as source
    from sterna.bench.figures import plots

    def show(rows: Rows) -> None:
        energy = f"Energy: {rows[0]['energy']}."
        write_sections(rows, output, lambda shown: [(energy, shown, LITESPARK)])

    run_figure(source.run, plot, plots.litespark, show, **options)


def run_figure(
    measure: Callable[..., list[dict[str, Any]]],
    plot: Path | None,
    draw: Callable[[Rows], Any],
    show: Callable[[Rows], None],
    **options: Any,
) -> None:
    """Shows the rows of `measure(**options)`, and draws them into `plot`; a spinner meanwhile."""
    from sterna.bench import plots

    if plot is not None:
        plots.require(plot)  # before minutes of measuring

    def both(rows: list[dict[str, Any]]) -> None:
        show(rows)  # first: a picture of a run that was ended early may lack what it compares with
        if plot is not None:
            plots.save(draw(rows), plot)

    measured("measuring", functools.partial(measure, **options), both)


def _ternary_sections(shown: Sequence[Row]) -> list[Section]:
    """Table 7: a line for each model, a column for each format; then the numbers of threads."""
    most = max(row["threads"] for row in shown)
    names = dict.fromkeys(str(row["format"]) for row in shown)
    lines: dict[str, dict[str, Any]] = {}
    for row in shown:
        if row["threads"] == most:
            line = lines.setdefault(row["model"], {"model": row["model"]})
            line[row["format"]] = "N/A" if row["skipped"] else row["tok_s"]
            line["memory"] = line.get("memory") or row["bandwidth_gb_s"]
    columns = {"model": "model", **{name: name for name in names}, "memory": "memory GB/s"}
    sections: list[Section] = [
        (f"Tokens per second, threads {most}.", list(lines.values()), columns)
    ]
    several = {row["model"] for row in shown if row["threads"] != most}
    scaled = [row for row in shown if row["model"] in several and not row["skipped"]]
    if scaled:
        sections.append(("Over the threads.", scaled, THREADS))
    return sections


def write_sections(
    rows: Rows,
    output: str,
    sections: Callable[[Sequence[Row]], list[Section]],
    *reasons: tuple[str, str],
) -> None:
    """Rows on stdout: all fields as JSON or CSV; as Markdown or drawn in tables, and below them
    what was skipped or does not count. reasons: more fields that say why, and of whom.
    """
    from sterna.bench.report import to_markdown, with_range

    if print_raw(rows, output):
        return
    ranges = [name.removesuffix("_min") for name in rows[0] if name.endswith("_min")]
    shown = [with_range(_counted(row), *ranges) for row in rows]
    for i, (title, lines, columns) in enumerate(sections(shown)):
        if output == "markdown":
            click.echo("\n" * (i > 0) + (f"{title}\n\n" if title else ""), nl=False)
            click.echo(to_markdown(lines, columns), nl=False)
            continue
        if i or title:
            console().print("\n" * (i > 0) + title, soft_wrap=True)
        table(lines, columns)
    for row in rows:
        for line in _remarks(row, reasons):
            if output == "markdown":
                click.echo(f"\n{line}")
            else:
                console().print(line, soft_wrap=True)


def _counted(row: Row) -> dict[str, Any]:
    """Without the figures of a participant whose outputs were wrong."""
    out = dict(row)
    own, peer = ("prompt_", "eval_", "tok_s", "ttft_"), ("peer_prompt_", "peer_eval_")
    for flag, prefixes in (("checked", own), ("peer_checked", peer)):
        if row.get(flag) is False:
            out |= dict.fromkeys(name for name in row if name.startswith(prefixes))
    return out


def _remarks(row: Row, reasons: Sequence[tuple[str, str]]) -> list[str]:
    who = " ".join(str(row[k]) for k in ("peer", "model", "build", "format") if row.get(k))
    own = " ".join(str(row[k]) for k in ("model", "format") if row.get(k))
    lines = [f"skipped: {own if reasons else who}: {row['skipped']}"] if row["skipped"] else []
    lines += [f"skipped: {of} beside {own}: {row[name]}" for name, of in reasons if row.get(name)]
    if row.get("checked") is False and not row["skipped"]:
        lines.append(f"not counted: {own if reasons else who}: its outputs were wrong")
    if row.get("peer_checked") is False and not row.get("peer_skipped"):
        lines.append(f"not counted: {row['peer']} beside {own}: its outputs were wrong")
    return lines
