"""How the commands of figures measure, show their rows in sections, and draw them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sterna.cli.report import Row, measured, print_raw, table
from sterna.cli.terminal import console

__all__ = ["Rows", "Section", "run_figure", "write_sections"]

Rows = Sequence[Mapping[str, Any]]
#: A table of a figure: its title, its rows, and its columns (field -> heading).
Section = tuple[str, Sequence[Row], Mapping[str, str]]


def run_figure(
    measure: Callable[..., list[dict[str, Any]]],
    plot: Path | None,
    draw: Callable[[Rows], Any],
    show: Callable[[Rows], None],
    **options: Any,
) -> None:
    """Show the rows of `measure(**options)`, and draw them into `plot`, behind a spinner."""
    from sterna.bench import plots

    if plot is not None:
        plots.require(plot)  # before minutes of measuring

    def both(rows: list[dict[str, Any]]) -> None:
        show(rows)  # before drawing, which may fail for the rows of a run that was ended early
        if plot is not None:
            plots.save(draw(rows), plot)

    measured("measuring", functools.partial(measure, **options), both)


def write_sections(
    rows: Rows,
    output: str,
    sections: Callable[[Sequence[Row]], list[Section]],
    *reasons: tuple[str, str],
) -> None:
    """Write rows to stdout: all fields as JSON or CSV, or tables as Markdown or drawn.

    Below tables follows what was skipped or does not count. reasons: further fields that tell why a
    participant was skipped, and its name.
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
    """Remove the figures of a participant with wrong outputs from a row."""
    out = dict(row)
    sterna, peer = ("prompt_", "eval_", "tok_s", "ttft_"), ("peer_prompt_", "peer_eval_")
    for flag, prefixes in (("checked", sterna), ("peer_checked", peer)):
        if row.get(flag) is False:
            out |= dict.fromkeys(name for name in row if name.startswith(prefixes))
    return out


def _remarks(row: Row, reasons: Sequence[tuple[str, str]]) -> list[str]:
    side = " ".join(str(row[k]) for k in ("peer", "model", "build", "format") if row.get(k))
    case = " ".join(str(row[k]) for k in ("model", "format") if row.get(k))
    skipped = row.get("skipped")
    lines = [f"skipped: {case if reasons else side}: {skipped}"] if skipped else []
    lines += [f"skipped: {of} next to {case}: {row[name]}" for name, of in reasons if row.get(name)]
    if row.get("checked") is False and not skipped:
        lines.append(f"not counted: {case if reasons else side}: its outputs were wrong")
    if row.get("peer_checked") is False and not row.get("peer_skipped"):
        lines.append(f"not counted: {row['peer']} next to {case}: its outputs were wrong")
    return lines
