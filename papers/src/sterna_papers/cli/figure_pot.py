"""`sterna bench figure pot`: the figures of the paper on power-of-two weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.report import NAMES, NUMBERS, Row, isa_option, output_options, plot_option
from sterna.errors import RequestError
from sterna_papers.cli.sections import Section, run_figure, write_sections

__all__ = ["pot"]

ROOF = {
    "kernel": "kernel",
    "build": "build",
    "unroll": "unroll",
    "rows": "rows of A",
    "bytes_per_weight": "bytes/weight",
    "gb_s": "GB/s",
    "fraction_of_bandwidth": "of memory",
    "macs_per_cycle": "MAC/cycle",
    "gops": "GOPS",
    "fraction_of_peak": "of FMA peak",
    "bound": "bound by",
    "fraction_of_roof": "of roof",
    "speedup": "speed-up",
    "speedup_range": "range",
}
COUNTED = {
    "kernel": "kernel",
    "build": "build",
    "unroll": "unroll",
    "instructions": "instructions",
    "macs": "MAC a turn",
    "instructions_per_16": "instructions / 16 MAC",
    "cycles_per_16": "cycles / 16 MAC",
    "speedup": "speed-up",
}
OWN = {
    "format": "format",
    "shape": "MxK",
    "n": "N",
    "isa": "isa",
    "threads": "threads",
    "gb_s": "GB/s",
    "fraction_of_bandwidth": "of memory",
    "gamma_cycles": "γ",
    "gops": "GOPS",
    "speedup": "× f32",
}


@click.command()
@click.option(
    "--sizes", type=NUMBERS, default="64,128,256,512,768,1024,2048,4096,5120", show_default=True,
    help="N of the square matrices.",
)  # fmt: skip
@click.option(
    "--rows", type=int,
    help="Rows of A to time; default: all, but of large matrices as many as take about a second.",
)  # fmt: skip
@click.option(
    "--compilers", type=NAMES, default="g++,clang++", show_default=True,
    help="Compilers to build the kernels with, in addition to the module's own; or none.",
)  # fmt: skip
@click.option(
    "--formats", "format_names", type=NAMES, default="f32,q8_0,pot4,pot8", show_default=True,
    help="Weight formats of Sterna's own layers to measure, too; or none.",
)  # fmt: skip
@click.option(
    "--count", "vlen", type=int,
    help="Bits of RISC-V vectors: count instructions and model cycles for them, and run nothing.",
)  # fmt: skip
@isa_option
@click.option("--repeat", type=int, default=5, show_default=True, help="Rounds; medians.")
@plot_option
@output_options
def pot(output: str, plot: Path | None, vlen: int | None, **options: Any) -> None:
    """Measure power-of-two kernels and plain SIMD ones, by matrix size and by compiler.

    Figures 3 to 7 of "Demystifying Power-of-Two Quantization: Benchmarking Inference on AVX and
    RVV": one thread, square matrices, no tiling. Also shows what binds each kernel.
    """
    from sterna_papers.figures import pot as source
    from sterna_papers.figures import pot_counts, pot_plots

    for name in ("compilers", "format_names"):
        if options[name] == ("none",):
            options[name] = ()

    def show(rows: Sequence[Row]) -> None:
        write_sections(rows, output, _sections if vlen is None else _counted)

    if vlen is not None:
        if plot is not None:
            raise RequestError("--plot: must be left out with --count, which only has tables")
        run_figure(
            pot_counts.run, None, pot_plots.pot, show, vlen=vlen, compilers=options["compilers"]
        )
        return
    run_figure(source.run, plot, pot_plots.pot, show, **options)


def _sections(shown: Sequence[Row]) -> list[Section]:
    measured = [row for row in shown if row["row"] == "matmul"]
    if not measured:
        return []
    last = max(row["n"] for row in measured)
    at_last = [_named(row) for row in measured if row["n"] == last]
    float_kernels = [r for r in measured if r["kernel"].startswith("pot") and r["speedup"]]
    sections: list[Section] = [
        ("Speed-up over f32 SIMD (Figures 3 and 5).", *_by_size(float_kernels)),
        (f"N = {last} (Figure 4), and what binds.", [r for r in at_last if r["bound"]], ROOF),
        ("Fixed point: speed-up over i32 SIMD (Figure 6).",
         *_by_size([row for row in measured if row["kernel"] == "fxpot"])),
        (f"N = {last}: speed-up over scalar code (Figure 7).", *_vectorised(at_last)),
    ]  # fmt: skip
    layers = [row for row in shown if row["row"] in ("gemv", "gemm")]
    if layers:
        sections.append(("Sterna's own layers, weights from memory.", layers, OWN))
    return sections


def _counted(shown: Sequence[Row]) -> list[Section]:
    counted = [row for row in shown if row["row"] == "count"]
    if not counted:
        return []
    title = (
        f"VLEN {counted[0]['vlen']}: loops counted, cycles modelled by llvm-mca "
        f"({counted[0]['model']}); speed-up over f32 of one register, as the paper's."
    )
    return [
        (
            title,
            [{**row, "unroll": " × ".join(map(str, row["unroll"]))} for row in counted],
            COUNTED,
        )
    ]


def _named(row: Row) -> dict[str, Any]:
    """Turn lists of a row, and fields that belong to a name, into text."""
    special = ", special values" if row["special"] else ""
    unroll = " × ".join(map(str, row["unroll"]))
    return {**row, "kernel": f"{row['kernel']}{special}", "unroll": unroll}


def _by_size(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Lay out a line per kernel and build, and a column per N."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in map(_named, rows):
        key = row["kernel"], row["build"]
        line = lines.setdefault(key, {"kernel": key[0], "build": key[1]})
        line[str(row["n"])] = row["speedup"]
    sizes = dict.fromkeys(str(row["n"]) for row in rows)
    return list(lines.values()), {"kernel": "kernel", "build": "build", **{n: n for n in sizes}}


def _vectorised(rows: Sequence[Row]) -> tuple[list[Row], dict[str, str]]:
    """Lay out a line per arithmetic and build: scalar, vectorised by the compiler, by hand."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        base, _, how = row["kernel"].partition("-")
        if base in ("f32", "i32", "pot8"):  # as in the paper: without special values
            line = lines.setdefault((base, row["build"]), {"kernel": base, "build": row["build"]})
            line[how or "hand"] = row["scalar_speedup"]
            line["time"] = row["gops"] if how == "scalar" else line.get("time")
    columns = {
        "kernel": "kernel", "build": "build", "time": "scalar GOPS", "scalar": "scalar ×",
        "auto": "vectorised by the compiler ×", "hand": "handwritten ×",
    }  # fmt: skip
    return list(lines.values()), columns
