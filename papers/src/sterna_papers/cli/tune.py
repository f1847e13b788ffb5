"""`sterna tune`: measure which unrolling of the power-of-two kernels is best on this CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sterna.bench.report import significant
from sterna.cli.options import json_option
from sterna.cli.progress import progress_bar
from sterna.cli.report import count, isa_option, table, varying
from sterna.cli.terminal import console, print_json
from sterna.errors import shown

if TYPE_CHECKING:
    from sterna_papers.pot.tuning import Choice, Shape

COLUMNS = {
    "kernel": "kernel",
    "isa": "isa",
    "threads": "threads",
    "shape": "N,M,K",
    "default_us": "default µs",
    "unroll_text": "best unroll",
    "time_us": "µs",
    "gain": "gain ×",
}


# The ignores are there because ParamType is generic in newer versions of click only.
class _Shape(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Three whole numbers: "64,4096,4096"."""

    name = "N,M,K"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int, int]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if len(parts) == 3 and all(p.strip().isascii() and p.strip().isdigit() for p in parts):
            N, M, K = (int(part) if len(part) < 20 else 1 << 62 for part in parts)
            return N, M, K
        self.fail(
            f"must be three whole numbers such as 64,4096,4096, but got {shown(value)}", param
        )


@click.command(short_help="Choose the fastest power-of-two kernels for this CPU.")
@click.option(
    "--kernel", "kernels", multiple=True, metavar="NAME",
    help="Kernel to tune, such as pot8; may be repeated; default: all.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", type=_Shape(), multiple=True,
    help="Rows of a, rows of b and their length; may be repeated; default: a set from 64 to 4096.",
)  # fmt: skip
@isa_option
@click.option("--threads", type=int, help="Threads; default: the usable cores.")
@click.option("--repeat", type=int, default=5, show_default=True, help="Rounds; medians count.")
@click.option("--list", "as_list", is_flag=True, help="Only show the tuning results of this CPU.")
@click.option("--delete", is_flag=True, help="Delete the tuning results of this CPU.")
@json_option
def command(
    kernels: tuple[str, ...],
    shapes: tuple[Shape, ...],
    isa: str | None,
    threads: int | None,
    repeat: int,
    as_list: bool,
    delete: bool,
    as_json: bool,
) -> None:
    """Measure every unrolling of the power-of-two kernels, and keep the best of each shape.

    A product of another shape runs with the choice for the nearest one. The cache (STERNA_CACHE)
    keeps the choices for this CPU, unit and number of threads. They change the speed and the order
    of float sums, but no integer result.
    """
    from sterna_papers import pot
    from sterna_papers.pot import tuning

    if as_list and delete:
        raise click.UsageError("--list, --delete: must be given one at a time")
    if as_list or delete:
        tuning.check_names(kernels)
    if delete:
        _delete(kernels, as_json)
        return
    if as_list:
        choices = [c for c in tuning.load() if not kernels or c.kernel in kernels]
        _show(choices, as_json, empty="nothing is tuned on this CPU; run `sterna tune`")
        return
    unit = pot.resolve("f32", isa)[1]
    names = tuple(dict.fromkeys(kernels or tuning.tunable(unit)))
    tuning.require_place()
    with progress_bar("tuning", "measurements", scale=1) as progress:
        choices = tuning.tune(
            names, unit, tuple(dict.fromkeys(shapes)) or tuning.SHAPES,
            threads=threads, repeat=repeat, progress=progress,
        )  # fmt: skip
    _show(choices, as_json)  # before storing, so that a failure does not lose the results
    path = tuning.store(choices)
    if not as_json:
        where = f"kept in {path}" if path else "not kept: STERNA_CACHE is off"
        console().print(f"\n{where}", soft_wrap=True, markup=False)


def _delete(kernels: Sequence[str], as_json: bool) -> None:
    from sterna_papers.pot import tuning

    gone = tuning.delete(kernels)
    if as_json:
        print_json([{"deleted": gone}])
    else:
        click.echo(f"deleted {count(gone, 'choice')}")


def _row(choice: Choice) -> dict[str, Any]:
    return {
        "kernel": choice.kernel,
        "isa": choice.isa,
        "threads": choice.threads,
        "n": choice.N,
        "m": choice.M,
        "k": choice.K,
        "unroll": list(choice.unroll),
        "time_us": round(choice.time_s * 1e6, 3),
        "default_us": round(choice.default_time_s * 1e6, 3),
        "gain": significant(choice.gain),
        "cpu": choice.cpu,
    }


def _show(choices: Sequence[Choice], as_json: bool, empty: str = "") -> None:
    rows = [_row(choice) for choice in choices]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo(empty)
    else:
        lines = [
            row
            | {
                "shape": f"{row['n']},{row['m']},{row['k']}",
                "unroll_text": " × ".join(map(str, row["unroll"])),
            }
            for row in rows
        ]
        table(lines, varying(lines, COLUMNS, ["isa", "threads"]))
