"""`sterna bench`: speed, compared with the machine's limits in the same run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from sterna.cli import plugins
from sterna.cli.bench_barrier import barrier
from sterna.cli.decorators import combined, flag, option
from sterna.cli.option_groups import GroupedCommand
from sterna.cli.options import (
    activations_option,
    cores_option,
    deterministic_option,
    fetch_model,
    head_option,
    kv_dtype_option,
    offline_option,
    threads_options,
)
from sterna.cli.report import (
    COUNTS,
    NAMES,
    NUMBERS,
    Row,
    count,
    isa_option,
    measured,
    output_options,
    plot_option,
    table,
    tell_left_out,
    varying,
    working_set_option,
    write,
)
from sterna.cli.terminal import console

E2E = {
    "test": "test",
    "batch": "batch",
    "depth": "depth",
    "zeros": "zeros",
    "tok_s": "tok/s",
    "tok_s_range": "range",
    "ttft_ms": "TTFT ms",
    "gops": "GOPS",
    "fraction_of_peak": "of peak",
    "mb_per_token": "MB/token",
    "fraction_of_bandwidth": "of memory",
    "attention_share": "attention",
    "recurrent_share": "recurrence",
}
MACHINE = {"bandwidth_gb_s": "memory GB/s", "peak_gops": "peak GOPS"}
LAYER = {
    "model": "model",
    "layer": "layer",
    "shape": "M x K",
    "format": "format",
    "n": "n",
    "threads": "threads",
    "isa": "isa",
}
TIME = {"time_us": "µs", "time_us_range": "range"}
GEMV = {**LAYER, "gb_s": "GB/s", "fraction_of_bandwidth": "of memory", **TIME}
GEMM = {**LAYER, "gops": "GOPS", "fraction_of_peak": "of peak", **TIME}


class _Bench(click.Group):
    """`bench`, with the commands that other packages add to it."""

    command_class: type[click.Command] | None = GroupedCommand

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List names in the order of the help page."""
        return sorted({*super().list_commands(ctx), *plugins.names("bench")})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name; None if there is none."""
        return super().get_command(ctx, cmd_name) or plugins.load(cmd_name, "bench")


@click.group(cls=_Bench)
def command() -> None:
    """Measure speed on this machine."""


@command.command()
@option(
    "--model", "A model, or random:SHAPE for dummy weights, such as random:bitnet-2b.", shown="nano"
)
@offline_option
@option("--format", "Weight format of the layers.")
@head_option
@option("--pp", "Prompt lengths.", type=COUNTS, shown="128,512")
@option("--tg", "Tokens to generate.", type=COUNTS, shown="64")
@option(
    "--batch", "Sequences that decode together; tok/s counts them all.", type=NUMBERS, shown="1"
)
@option(
    "--depth",
    "Positions in the KV cache before a test, multiples of 64, such as 0,4096,16384.",
    type=NUMBERS,
    shown="0",
)
@option(
    "--zeros",
    "Give a random relu2 model closed gates and zeros before `down` at these rates, such as "
    "up=.68,down=.83, and run each test twice: reading and skipping the weights whose input "
    "is zero.",
    metavar="up=RATE,down=RATE",
)
@kv_dtype_option
@deterministic_option
@activations_option
@option("--repeat", "Runs; medians count.", type=int, shown=3)
@threads_options
@isa_option
@output_options
def e2e(model: str, offline: bool, output: str, **options: Any) -> None:
    """Prompt processing (pp) and generation (tg), end to end."""
    from sterna.bench.e2e import run

    fetch_model(model, offline)
    about = {name: name for name in ("model", "format", "head", "threads", "isa")}
    columns = {**about, **E2E, **MACHINE}
    measured(
        f"loading {model}",
        lambda progress, known: run(model, progress=progress, **options),
        lambda rows: write(rows, output, columns, _draw_e2e, _with_megabytes),
    )


def _with_megabytes(row: Row) -> dict[str, Any]:
    return {**row, "mb_per_token": row["bytes_per_token"] / 1e6}


def _draw_e2e(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    console().print(
        f"{first['model']}, {first['format']}, head {first['head']}, on "
        f"{count(first['threads'], 'thread')} with {first['isa']}; measured: "
        f"{first['bandwidth_gb_s']:.1f} GB/s of memory, a peak of {first['peak_gops']:,.0f} GOPS",
        soft_wrap=True,
    )
    table(rows, varying(rows, E2E, ["batch", "depth", "zeros"]))


_linear_options = combined(
    option(
        "--shapes",
        "Models, for the matrices of a layer, or MxK, such as 2560x6912; default: bitnet-2b.",
        type=NAMES,
    ),
    option(
        "--formats",
        "Weight formats, all, or quick: i2, t5, q4_0 and q8_0; default: quick.",
        type=NAMES,
    ),
    flag(
        "--thorough",
        "Without --shapes, add falcon3-1b, mobilellm-1.5b and llama3-8b; without --formats, "
        "take every integer format. Takes about an hour.",
    ),
    option("--threads", "Thread counts; default: the usable cores.", type=NUMBERS),
    cores_option,
    option("--isa isas", "Kernel units, or all; default: the best.", type=NAMES),
    option("--repeat", "Runs; medians count.", type=int, shown=3),
    working_set_option,
    deterministic_option,
    plot_option,
    output_options,
)


@command.command()
@_linear_options
def gemv(output: str, plot: Path | None, **options: Any) -> None:
    """Matrix times vector: a decode step's layers, as GB/s of weights.

    Weights come from memory: copies of a matrix take turns.
    """
    _linear(GEMV, {"bandwidth_gb_s": "memory GB/s"}, output, plot, n=(1,), **options)


@command.command()
@option("--n", "Tokens of an input.", type=NUMBERS, shown="16,128,512")
@_linear_options
def gemm(output: str, plot: Path | None, **options: Any) -> None:
    """Matrix times n vectors: a prompt's layers, as GOPS."""
    _linear(GEMM, {"peak_gops": "peak GOPS"}, output, plot, **options)


def _linear(
    columns: dict[str, str],
    more: dict[str, str],
    output: str,
    plot: Path | None,
    *,
    shapes: tuple[str, ...] | None,
    formats: tuple[str, ...] | None,
    thorough: bool,
    **options: Any,
) -> None:
    """Measure layers and show `columns`, in Markdown `more` as well."""
    from sterna.bench import linear, plots

    shapes = shapes or (linear.DEFAULT_MODELS if thorough else linear.QUICK_MODELS)
    formats = formats or (None if thorough else ("quick",))

    if plot is not None:
        plots.require(plot)  # before minutes of measuring

    def show(rows: list[dict[str, Any]]) -> None:
        tell_left_out(formats, shapes, integer=True)
        write(rows, output, {**columns, **more}, lambda r: _draw(r, columns))
        if plot is not None:
            plots.save(plots.linear(rows), plot)

    run = functools.partial(linear.run, shapes, format_names=formats, **options)
    measured("measuring", run, show)


def _draw(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    memory = {row["threads"]: row["bandwidth_gb_s"] for row in rows}
    for threads, speed in memory.items():
        peaks = {
            (f"{row['isa']}, {row['kind']}", row["peak_gops"]): None
            for row in rows
            if row["threads"] == threads
        }
        console().print(
            f"{count(threads, 'thread')}; measured: {speed:.1f} GB/s of memory, peaks of "
            + ", ".join(f"{peak:,.0f} GOPS ({isa})" for isa, peak in peaks),
            soft_wrap=True,
        )
    named = {name: heading for name, heading in columns.items() if name != "model"}
    table(rows, varying(rows, named, ["layer", "n", "threads", "isa"]), lambda r: r["model"])


command.add_command(barrier)
