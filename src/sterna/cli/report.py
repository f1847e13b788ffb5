"""Shared code of benchmark commands: lists as options; rows as a table, JSON, CSV or Markdown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from sterna.cli.decorators import FILE, Command, Option, combined, flag, option
from sterna.cli.terminal import console, print_json, status
from sterna.errors import shown

__all__ = [
    "COUNTS",
    "NAMES",
    "Row",
    "count",
    "isa_option",
    "limit_option",
    "measured",
    "output_options",
    "plot_option",
    "print_raw",
    "table",
    "team_option",
    "tell_left_out",
    "varying",
    "write",
]

Row = Mapping[str, Any]
OUTPUTS = ("table", "json", "csv", "markdown")
#: A machine is busy if other programs take more of its CPU time, or memory gives less of its best.
OTHERS, MEMORY = 0.1, 0.75
#: How the names of fields end that compare a speed with a limit or with another runtime's.
RATIOS = ("_of_bandwidth", "_of_peak", "_of_roof", "ratio", "speedup", "speedup_min", "speedup_max")
_ANYWAY = "sterna.bench.anyway"


if TYPE_CHECKING:
    _NumbersType = click.ParamType[tuple[int, ...]]
    _NamesType = click.ParamType[tuple[str, ...]]
else:  # older versions of click have no generic type
    _NumbersType = _NamesType = click.ParamType


class _Numbers(_NumbersType):
    """Comma-separated whole numbers: "128,512"; with `none`, empty or "0" for none."""

    name = "N,N"

    def __init__(self, none: bool) -> None:
        self.none = none

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(
                f"must be whole numbers separated by commas, but got {shown(value)}", param, ctx
            )
        if self.none and numbers == (0,):
            return ()
        if not self.none and not numbers:
            self.fail("must be whole numbers separated by commas, but got none", param, ctx)
        return numbers


class _Names(_NamesType):
    """Comma-separated names."""

    name = "NAME,NAME"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if not names:
            self.fail("must be names separated by commas, but got none", param, ctx)
        return names


COUNTS, NUMBERS, NAMES = _Numbers(none=True), _Numbers(none=False), _Names()

working_set_option: Option = option(
    "--working-set working_set_mb",
    "Copies of a matrix that take turns; default: enough to be out of cache.",
    type=int,
    metavar="MB",
)
isa_option: Option = option("--isa", "Kernel unit; default: the best that runs here.")
team_option: Option = option(
    "--threads", "Threads of every participant; default: the usable cores.", type=int
)
limit_option: Option = option(
    "--limit limit_s",
    "Seconds after which a silent participant is given up.",
    type=float,
    shown=900,
)
plot_option: Option = option(
    "--plot", "Draw a picture into this .png file; needs matplotlib.", type=FILE
)


def _with_output(function: Command) -> Command:
    """Pass `output`, one of OUTPUTS, in place of --output and its short forms."""

    @functools.wraps(function)
    def command(*, output: str | None, **options: Any) -> Any:
        click.get_current_context().meta[_ANYWAY] = options.pop("anyway")
        asked = {name for name in OUTPUTS[1:] if options.pop(f"as_{name}")} | {output} - {None}
        if len(asked) > 1:
            raise click.UsageError(f"output: must be one of {', '.join(OUTPUTS)}, not several")
        return function(output=asked.pop() if asked else "table", **options)

    return cast("Command", command)


#: --output, its short forms, and --anyway; the command gets `output`, one of OUTPUTS.
output_options: Option = combined(
    option("--output", "How rows are written; default: a table.", type=click.Choice(OUTPUTS)),
    flag("--json as_json", "Short for --output json: one array of rows, all fields."),
    flag("--csv as_csv", "Short for --output csv: all fields."),
    flag("--markdown as_markdown", "Short for --output markdown."),
    flag("--anyway", "Show ratios to the machine's limits and to others even if it was busy."),
    _with_output,
)


def tell_left_out(
    names: Sequence[str] | None, shapes: Sequence[str], *, integer: bool = False
) -> None:
    """Print a line on stderr for each matrix and block size that not all formats could take."""
    from sterna.bench import linear

    for matrix in linear.matrices(shapes):
        by_block: dict[int, list[str]] = {}
        for name, block in linear.left_out(names, matrix, integer=integer).items():
            by_block.setdefault(block, []).append(name)
        for block, left in by_block.items():
            why = f"left out {', '.join(left)}: K must be a multiple of {block}"
            click.echo(f"sterna: {matrix}: {why}", err=True)


def trusted(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows without the ratios that a busy machine spoiled, unless --anyway is given.

    Says on stderr what kept the machine busy.
    """
    reasons = [_busy(row) for row in rows]
    spoiled = dict.fromkeys(reason for reason in reasons if reason)
    if not spoiled:
        return rows
    anyway = click.get_current_context().meta.get(_ANYWAY)
    then = "ratios mean little" if anyway else "no ratios are shown; --anyway shows them"
    click.echo(f"sterna: the machine was busy: {'; '.join(spoiled)}: {then}", err=True)
    if anyway:
        return rows
    return [
        {name: None if reason and _is_ratio(name) else value for name, value in row.items()}
        for row, reason in zip(rows, reasons, strict=True)
    ]


def _busy(row: Row) -> str | None:
    """Say what the machine did besides the row's benchmark; None for nothing that counts."""
    others, best = row.get("others_share") or 0.0, row.get("bandwidth_best_gb_s") or 0.0
    speed = row.get("bandwidth_gb_s") or best
    if others > OTHERS:
        return f"other programs took {others:.0%} of the CPU time"
    if speed < MEMORY * best:
        return f"memory gave {speed:.1f} GB/s, after {best:.1f} at its best"
    return None


def _is_ratio(field: str) -> bool:
    return "fraction_of_" in field or field.endswith(RATIOS)


def print_raw(rows: Sequence[Row], output: str) -> bool:
    """Print all fields of the rows if `output` is json or csv; return whether it is."""
    from sterna.bench.report import to_csv

    if output == "json":
        print_json(rows)
    elif output == "csv":
        click.echo(to_csv(rows), nl=False)
    return output in ("json", "csv")


def write(
    rows: Sequence[Row],
    output: str,
    columns: Mapping[str, str],
    draw: Callable[[list[dict[str, Any]]], None],
    derive: Callable[[Row], dict[str, Any]] = dict,
) -> None:
    """Print rows: all fields as JSON or CSV; `columns`, field -> heading, as Markdown; or drawn.

    A column FIELD_range is made of FIELD_min and FIELD_max; `derive` may add more.
    """
    from sterna.bench.report import to_markdown, with_range

    if print_raw(rows, output):
        return
    ranges = [name.removesuffix("_range") for name in columns if name.endswith("_range")]
    lines = [with_range(derive(row), *ranges) for row in rows]
    if output == "markdown":
        click.echo(to_markdown(lines, columns), nl=False)
    elif rows:
        draw(lines)


def measured(
    text: str, measure: Callable[..., list[dict[str, Any]]], show: Callable[[Any], None]
) -> None:
    """Show the rows of `measure(progress=, known=)`, without ratios if the machine was busy.

    If Ctrl-C or a signal ends the run, show the rows known by then.
    """
    from sterna.bench.machine import OtherLoad

    known: list[Callable[[], list[dict[str, Any]]]] = []
    load = OtherLoad()

    def tell(rows: Sequence[Row]) -> None:
        share = load.share()
        show(trusted([{**row, "others_share": share} for row in rows]))

    try:
        with status(text) as progress:
            rows = measure(progress=progress, known=known.append)
    except (KeyboardInterrupt, SystemExit):
        rows = known[-1]() if known else []
        if rows:
            click.echo(f"sterna: ended early: {count(len(rows), 'row')} of more", err=True)
            tell(rows)
        raise
    tell(rows)


def varying(
    rows: Sequence[Row], columns: Mapping[str, str], fields: Sequence[str]
) -> dict[str, str]:
    """Return the columns, without columns of `fields` that are the same in every row."""
    same = {name for name in fields if len({row.get(name) for row in rows}) <= 1}
    return {field: heading for field, heading in columns.items() if field not in same}


def weights(info: Mapping[str, Any]) -> str:
    """Describe a model's weights by its `info`: "lut2:g64, 2.6 bits a weight"."""
    from sterna.formats.level_tables import without_table

    return f"{without_table(info['format'])}, {info['bits']:.3g} bits a weight"


def count(n: int, noun: str) -> str:
    """Return "1 thread", "2 threads"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def table(
    rows: Sequence[Row],
    columns: Mapping[str, str],
    group: Callable[[Row], str | None] | None = None,
    right: Collection[str] = (),
) -> None:
    """Print a table of these columns (field -> heading), with numbers to the right.

    right: further fields to align right. group: the heading of a row, on a line of its own when it
    changes. Lines are never cut: they wrap on a terminal, and stay whole in a pipe.
    """
    from rich.text import Text

    from sterna.bench.report import cell

    cells = [list(columns.values()), *([cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [
        any(isinstance(row.get(name), str) for row in rows)
        and not (name.endswith("_range") or name in right)
        for name in columns
    ]
    lines = [
        "  ".join(
            text.ljust(width) if to_left else text.rjust(width)
            for text, width, to_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in cells
    ]
    out = console()
    out.print(Text(lines[0], "bold"), soft_wrap=True)
    last: str | None = None
    for row, line in zip(rows, lines[1:], strict=True):
        title = group(row) if group else None
        if title != last:
            out.print(Text(title or "", "dim"), soft_wrap=True)
            last = title
        out.print(Text(line), soft_wrap=True)
