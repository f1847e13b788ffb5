"""`sterna bench figure`: the papers' tables and figures, measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.options import (
    cores_option,
    deterministic_option,
    threads_options,
)
from sterna.cli.report import (
    NAMES,
    NUMBERS,
    Row,
    count,
    isa_option,
    limit_option,
    output_options,
    plot_option,
    team_option,
    varying,
    working_set_option,
)
from sterna_papers.cli.figure_pot import pot
from sterna_papers.cli.figure_quality import quality
from sterna_papers.cli.sections import Rows, Section, run_figure, write_sections

__all__ = ["command"]

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
GEMV = {
    "model": "model",
    "layer": "layer",
    "shape": "M x K",
    "format": "format",
    "threads": "threads",
    "gb_s": "GB/s",
    "fraction_of_bandwidth": "of memory",
    "gamma_cycles": "γ",
    "roof_gb_s": "roof GB/s",
    "bound": "bound by",
    "fraction_of_roof": "of roof",
    "int8_ratio": "× int8",
    "time_us": "µs",
    "time_us_range": "range",
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


@click.group("figure")
def command() -> None:
    """Measure the papers' tables and figures on this machine."""


@command.command()
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
@click.option("--head", default="bf16", show_default=True, help="Output head of all models.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Tokens to generate.")
@_repeat
@threads_options
@isa_option
@plot_option
@output_options
def e2e(output: str, plot: Path | None, **options: Any) -> None:
    """Measure tokens per second with 16, 4, 2 and 1 bit, and what Amdahl's law allows.

    Figures 8 to 10 of arXiv 2508.06753.
    """
    from sterna_papers.figures import e2e as source
    from sterna_papers.figures import plots

    def show(rows: Rows) -> None:
        write_sections(rows, output, lambda shown: [("", shown, varying(shown, E2E, ["threads"]))])

    run_figure(source.run, plot, plots.e2e, show, **options)


@command.command()
@click.option(
    "--shapes", "models", type=NAMES, default="falcon3-1b,mobilellm-1.5b,llama3-8b",
    show_default=True, help="Models, for the matrices of a layer, or MxK, such as 2560x6912.",
)  # fmt: skip
@click.option(
    "--formats", "format_names", type=NAMES, default="i8,i2p,i1", show_default=True,
    help="Weight formats; i8 is always among them.",
)  # fmt: skip
@_repeat
@click.option("--threads", type=NUMBERS, help="Thread counts; default: the usable cores.")
@cores_option
@isa_option
@working_set_option
@plot_option
@output_options
def gemv(output: str, plot: Path | None, **options: Any) -> None:
    """Measure GB/s of weights with 8, 2 and 1 bit, matrix by matrix, and the roofs above them.

    Figures 5 to 7 of arXiv 2508.06753.
    """
    from sterna_papers.figures import gemv as source
    from sterna_papers.figures import plots

    def show(rows: Rows) -> None:
        write_sections(rows, output, _gemv_sections)

    run_figure(source.run, plot, plots.gemv, show, **options)


@command.command()
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
    "--peer/--no-peer", "with_peer", default=True, help="Also run llama-cpp-python, in turn."
)
@_repeat
@team_option
@isa_option
@deterministic_option
@limit_option
@plot_option
@output_options
def prompt(output: str, plot: Path | None, **options: Any) -> None:
    """Measure prompt and eval tokens per second of each weight format, and llama.cpp's.

    The tables of "LLaMA Now Goes Faster on CPUs", the llamafile paper.
    """
    from sterna_papers.figures import plots
    from sterna_papers.figures import prompt as source

    def show(rows: Rows) -> None:
        reason = ("peer_skipped", "llama.cpp")
        write_sections(rows, output, lambda shown: [("", shown, PROMPT)], reason)

    run_figure(source.run, plot, plots.prompt, show, **options)


@command.command()
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
@click.option("--head", default="bf16", show_default=True, help="Output head of all models.")
@click.option("--tokens", type=int, default=16, show_default=True, help="Tokens to generate.")
@_repeat
@click.option("--threads", type=NUMBERS, help="Thread counts; default: 1 to the usable cores.")
@cores_option
@isa_option
@plot_option
@output_options
def ternary(output: str, plot: Path | None, **options: Any) -> None:
    """Measure tokens per second of ternary models from 700M to 100B, and over the threads.

    Table 7 and Figures 8 and 10 of arXiv 2502.11880 (Bitnet.cpp).
    """
    from sterna_papers.figures import plots
    from sterna_papers.figures import ternary as source

    if options["scaling"] == ("none",):
        options["scaling"] = ()

    def show(rows: Rows) -> None:
        write_sections(rows, output, _ternary_sections)

    run_figure(source.run, plot, plots.ternary, show, **options)


@command.command()
@click.option("--model", default="bitnet-2b", show_default=True, help="Shape of the dummy model.")
@click.option(
    "--formats", "format_names", type=NAMES, default="i8,i2,t5", show_default=True,
    help="Sterna's weight formats.",
)  # fmt: skip
@click.option("--head", default="int8", show_default=True, help="Sterna's output head.")
@click.option(
    "--peers", "names", type=NAMES, default="torch,litespark", show_default=True,
    help="Other runtimes to measure; ratios are to torch.",
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
    """Compare memory, time to first token, throughput and energy with PyTorch's.

    The tables of the Litespark paper.
    """
    from sterna_papers.figures import litespark as source
    from sterna_papers.figures import plots

    def show(rows: Rows) -> None:
        energy = f"Energy: {rows[0]['energy']}."
        write_sections(rows, output, lambda shown: [(energy, shown, LITESPARK)])

    run_figure(source.run, plot, plots.litespark, show, **options)


def _gemv_sections(shown: Sequence[Row]) -> list[Section]:
    memory = {row["threads"]: row["bandwidth_gb_s"] for row in shown}
    speeds = ", ".join(f"{speed:.1f} GB/s ({count(n, 'thread')})" for n, speed in memory.items())
    title = f"Memory: {speeds}; {shown[0]['isa']}."
    return [(title, shown, varying(shown, GEMV, ["threads"]))]


def _ternary_sections(shown: Sequence[Row]) -> list[Section]:
    """Lay out Table 7, with a line per model and a column per format, and then the threads."""
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


command.add_command(pot)
command.add_command(quality)
