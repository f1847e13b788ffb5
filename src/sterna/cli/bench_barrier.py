"""`sterna bench barrier`: the time that threads wait for each other."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.decorators import option
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import cores_option, json_option
from sterna.cli.terminal import console, print_json, status
from sterna.errors import shown

__all__ = ["barrier"]


def _counts(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int]:
    try:
        return [int(part) for part in value.split(",")] if value else []
    except ValueError:
        raise click.BadParameter(
            f"must be whole numbers separated by commas, but got {shown(value)}", ctx, param
        ) from None


@grouped_command()
@option(
    "--threads",
    "Numbers of threads; default: 1, 2, 4, … up to the usable cores.",
    callback=_counts,
    metavar="N,N",
)
@cores_option
@json_option
def barrier(threads: list[int], cores: str | None, as_json: bool) -> None:
    """Time of the barrier that separates two operations."""
    from sterna.bench.barrier import run

    with status("waiting"):
        rows = run(threads, cores=cores)
    if as_json:
        print_json(rows)
    else:
        _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("threads", "ns a barrier"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(str(row["threads"]), f"{row['barrier_ns']:,.0f}")
    console().print(table)
