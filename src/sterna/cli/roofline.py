"""`sterna roofline`: limits that this machine's memory and cores set for each weight format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sterna.cli.decorators import option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import cores_option, deterministic_option
from sterna.cli.report import (
    NAMES,
    NUMBERS,
    count,
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

DECODE = {
    "format": "format",
    "isa": "isa",
    "threads": "threads",
    "vector_bytes": "B",
    "gamma_cycles": "γ",
    "core_bytes_per_cycle": "B/γ",
    "e_bw_gb_s": "roof GB/s",
    "bound": "bound by",
    "gb_s": "reached",
    "fraction_of_roof": "of roof",
}
MARKDOWN = {
    "row": "row",
    **DECODE,
    "beta_bytes_per_cycle": "β",
    "kind": "kind",
    "peak_gops": "peak GOPS",
    "clock_ghz": "GHz",
    "bandwidth_gb_s": "memory GB/s",
}


@grouped_command(short_help="Measure what memory and cores allow each weight format.")
@option("--threads", "Thread counts; default: one, and the usable cores.", type=NUMBERS)
@cores_option
@option("--formats", "Weight formats; default: all.", type=NAMES)
@option("--isa isas", "Kernel units, or all; default: the best.", type=NAMES)
@option("--shape", "The matrix for measuring the reached speed.", shown="13824x2560")
@option("--repeat", "Runs; medians count.", type=int, shown=3)
@deterministic_option
@working_set_option
@plot_option
@output_options
def command(output: str, plot: Path | None, **options: Any) -> None:
    """Measure memory and cores, and show which of them limits each format.

    A format's kernel takes γ cycles for an output vector (32 weights, B bytes) that is in the
    cache; memory gives each core β bytes per cycle. Its roof is min(β, B/γ).
    """
    from sterna.bench import plots, roofline

    if plot is not None:
        plots.require(plot)  # before a minute of measuring
    format_names = options.pop("formats")

    def show(rows: list[dict[str, Any]]) -> None:
        tell_left_out(format_names, [options["shape"]])
        if plot is not None:
            plots.save(plots.roofline(rows), plot)
        write(rows, output, MARKDOWN, _draw)

    measured(
        "measuring",
        lambda progress, known: roofline.run(format_names, progress=progress, **options),
        show,
    )


def _draw(rows: list[dict[str, Any]]) -> None:
    out = console()
    for row in rows:
        if row["row"] == "memory":
            out.print(
                f"memory, {count(row['threads'], 'thread')}: {row['bandwidth_gb_s']:.1f} GB/s at "
                f"{row['clock_ghz']:.2f} GHz, β = {row['beta_bytes_per_cycle']:.2f} bytes/cycle"
            )
    out.print()
    _draw_peaks([row for row in rows if row["row"] == "peak"])
    out.print()
    decode = [row for row in rows if row["row"] == "decode"]
    table(decode, varying(decode, DECODE, ["isa", "threads"]))
    out.print()
    out.print("B: bytes, γ: cycles of an output vector; B/γ: bytes/cycle of a core", style="dim")


def _draw_peaks(rows: list[dict[str, Any]]) -> None:
    """Draw a line per unit, and a column per kind and thread count."""
    columns = {"isa": "peak GOPS"}
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = f"{row['kind']} {row['threads']}"
        columns[key] = f"{row['kind']}, {count(row['threads'], 'thread')}"
        lines.setdefault(row["isa"], {"isa": row["isa"]})[key] = row["peak_gops"]
    table(list(lines.values()), columns)
