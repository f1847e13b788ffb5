"""`sterna bench peers --table` and `--check`: shares of the machine's limits."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.report import Row, count, measured, print_raw, table
from sterna.cli.terminal import console

__all__ = ["run"]

#: What the table has of its own: option -> parameter.
FIXED = {
    "--shape": "shape", "--pp": "pp", "--tg": "tg", "--depth": "depth", "--n": "n",
    "--thorough": "thorough",
}  # fmt: skip


def run(
    page: Path | None,
    *,
    peers: tuple[str, ...] | None,
    formats: tuple[str, ...] | None,
    repeat: int | None,
    limit_s: float,
    output: str,
    threads: int | None,
    **given: Any,
) -> int:
    """Measure and show the table, or compare it with a page; return the exit code."""
    from sterna.runtime import resolve_isa, resolve_threads
    from sterna_papers.peers import shares, shares_page
    from sterna_papers.peers.case import Options

    _refuse_fixed()
    team = resolve_threads(threads)
    wanted: dict[tuple[str, ...], float] = {}
    if page is not None:  # before minutes of measuring
        wanted = shares_page.shares_of(page, shares.machine_class(resolve_isa(given["isa"]), team))
    asked = {name: value for name, value in given.items() if name not in FIXED.values()}
    options = Options(variant="", scratch="", threads=team, **asked, shape="", pp=(), tg=(), n=())
    measure = functools.partial(
        shares.run,
        options,
        peers=peers or (() if page else shares.NAMES),
        formats=formats,
        repeat=shares.REPEAT if repeat is None else repeat,
        limit_s=limit_s,
    )
    rows: list[Row] = []

    def show(known: Sequence[Row]) -> None:
        rows.extend(known)
        _show(known, output)

    measured("starting", measure, show)
    return 0 if page is None else _tell_differences(rows, page, wanted, err=output != "table")


def _refuse_fixed() -> None:
    """Raise UsageError for an option that the table has of its own."""
    ctx = click.get_current_context()
    for option, name in FIXED.items():
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"{option}: the table has its own; leave it out", ctx)


def _tell_differences(
    rows: Sequence[Row], page: Path, wanted: Mapping[tuple[str, ...], float], *, err: bool
) -> int:
    """Say which shares differ from the page's; return the exit code."""
    from sterna_papers.peers.shares_page import TOLERANCE, differences

    differ, alone = differences(rows, wanted)
    for line in [*(f"DIFFERS {line}" for line in differ), *(f"UNCHECKED {line}" for line in alone)]:
        click.echo(line, err=err)
    if differ or len(alone) == len(rows):
        return 1 if differ else 2
    within = f"{TOLERANCE:.0%}".replace("%", " %")
    same = count(len(rows) - len(alone), "share")
    click.echo(f"OK {page}: {same} within {within}", err=err)
    return 0


def _show(rows: Sequence[Row], output: str) -> None:
    """Print rows: all fields, the section of a page, or a table."""
    from sterna_papers.peers import shares_page

    if not rows or print_raw(rows, output):
        return
    if output == "markdown":
        click.echo(shares_page.section(rows), nl=False)
        return
    lines = [shares_page.readable(row) for row in rows]
    columns = {name: heading for name, heading in shares_page.COLUMNS.items() if name != "model"}
    first = rows[0]
    said = f"{first['class']}; tokens/s, medians of {count(first['repeat'], 'round')}"
    console().print(said, soft_wrap=True)
    table(lines, columns, lambda row: row["model"], right=[*columns][2:])
    for line in shares_page.notes(rows):
        console().print(line, soft_wrap=True)
