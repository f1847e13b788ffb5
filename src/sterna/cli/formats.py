"""`sterna formats`: the weight formats, and how fast they run on this machine."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.decorators import option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import threads_options
from sterna.cli.report import (
    NAMES,
    Row,
    count,
    isa_option,
    measured,
    output_options,
    table,
    tell_left_out,
    write,
)
from sterna.cli.terminal import console

COLUMNS = {
    "format": "format",
    "bits_per_weight": "bits",
    "levels": "levels",
    "scales": "scales",
    "gb_s": "GB/s",
    "fraction_of_bandwidth": "of memory",
    "gops": "GOPS",
    "fraction_of_peak": "of peak",
    "summary": "what it is",
}
MEASURED = ("gb_s", "fraction_of_bandwidth", "gops", "fraction_of_peak")


@grouped_command(short_help="Show weight formats: bits, scales, and speed on this machine.")
@option("--formats names", "Weight formats; default: all.", type=NAMES)
@option("--shape", "The matrix, MxK.", shown="4096x4096")
@option("--n", "Tokens of the matrix product for GOPS.", type=click.IntRange(2), shown=512)
@option("--repeat", "Rounds; medians count.", type=int, shown=3)
@option(
    "--measure/--no-measure", "Measure their speed, about fifteen seconds per format.", shown=False
)
@isa_option
@threads_options
@output_options
def command(output: str, **options: Any) -> None:
    """Show the weight formats: bits per weight with scales, levels and speed.

    GB/s is for one token, with weights from memory, GOPS for many tokens.
    """
    from sterna.bench import format_table

    names = options.pop("names")

    def show(rows: list[dict[str, Any]]) -> None:
        tell_left_out(names, [options["shape"]])
        write(rows, output, COLUMNS, _draw, _in_words)

    measured(
        "measuring",
        lambda progress, known: format_table.run(names, progress=progress, **options),
        show,
    )


def _in_words(row: Row) -> dict[str, Any]:
    return {**row, "bits_per_weight": f"{row['bits_per_weight']:6.3f}"}


def _draw(rows: list[dict[str, Any]]) -> None:
    columns = dict(COLUMNS)
    if rows[0]["isa"] is None:
        for name in MEASURED:
            columns.pop(name)
    if rows[0]["isa"] is not None:
        console().print(
            f"{rows[0]['shape']} on {count(rows[0]['threads'], 'thread')} with {rows[0]['isa']}; "
            f"GB/s of one token, GOPS of {rows[0]['n']}"
        )
    table(rows, columns)
