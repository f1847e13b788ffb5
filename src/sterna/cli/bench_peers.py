"""`sterna bench peers`: other runtimes beside Sterna, in one run."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.options import console, json_option, print_json, status

COLUMNS = {
    "peer": "peer",
    "format": "type",
    "what": "test",
    "shape": "shape",
    "n": "N",
    "tok_s": "tok/s",
    "gops": "GOPS",
    "gb_s": "GB/s",
    "ratio_to_sterna": "of sterna",
    "spread": "spread",
}


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _counts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in _names(ctx, param, value))
    except ValueError:
        raise click.BadParameter(
            f"must be whole numbers separated by commas, but got {value!r}", ctx, param
        ) from None
    return () if counts == (0,) else counts


@click.command()
@click.option(
    "--peers",
    default="llama.cpp,torch,litespark,ik_llama.cpp",
    show_default=True,
    callback=_names,
    help="Whom to run; those that are missing are named in the report.",
)
@click.option("--shape", default="bitnet-2b", show_default=True, help="Sizes of the dummy model.")
@click.option("--format", "formats", default="t5,i2", show_default=True, callback=_names,
              help="Sterna's weight formats; ratios are to the first.")  # fmt: skip
@click.option("--head", default="int8", show_default=True, help="Sterna's output head.")
@click.option("--pp", default="128,512", show_default=True, callback=_counts, help="Prompts.")
@click.option("--tg", default="64", show_default=True, callback=_counts, help="Generated tokens.")
@click.option("--n", default="1,128,512", show_default=True, callback=_counts,
              help="Tokens of the matrix products.")  # fmt: skip
@click.option("--repeat", type=int, default=3, show_default=True, help="Rounds; medians count.")
@click.option("--threads", type=int, help="Threads of everybody; default: the usable cores.")
@click.option("--isa", help="Sterna's instruction set.")
@click.option("--ik-llama-bench", "llama_bench", metavar="PATH",
              help="ik_llama.cpp's llama-bench; default: $STERNA_IK_LLAMA_BENCH.")  # fmt: skip
@click.option("--limit", "limit_s", type=float, default=900, show_default=True,
              help="Seconds after which a silent participant is given up.")  # fmt: skip
@json_option
def peers(
    peers: tuple[str, ...], formats: tuple[str, ...], repeat: int, limit_s: float, as_json: bool,
    threads: int | None, **given: Any,
) -> None:  # fmt: skip
    """Measure other runtimes beside Sterna, interleaved, with their outputs checked."""
    from sterna.bench.peers import run
    from sterna.bench.peers.case import Options
    from sterna.runtime import resolve_threads

    options = Options(variant="", scratch="", threads=resolve_threads(threads), **given)
    with status("starting") as progress:
        rows = run(
            peers, options, formats=formats, repeat=repeat, limit_s=limit_s, progress=progress
        )
    if as_json:
        print_json(rows)
    else:
        _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in COLUMNS.values():
        text = heading in ("peer", "type", "test", "shape")
        table.add_column(heading, justify="left" if text else "right", no_wrap=True)
    for row in rows:
        if row["time_us"]:
            table.add_row(*(_cell(key, row) for key in COLUMNS))
    console().print(table)
    for row in rows:
        name = " ".join(str(row[k]) for k in ("peer", "format", "what", "shape") if row[k])
        if row["skipped"]:
            console().print(f"skipped: {name}: {row['skipped']}", soft_wrap=True, markup=False)
        elif not row["checked"]:
            console().print(f"not counted: {name}: {row['check']}", soft_wrap=True, markup=False)


def _cell(key: str, row: dict[str, Any]) -> str:
    if key in ("tok_s", "gops", "gb_s") and not row["checked"]:
        return "not counted" if key == "tok_s" else ""
    if key == "spread":
        low, high = row["time_us_min"] / row["time_us"], row["time_us_max"] / row["time_us"]
        return f"{low - 1:+.0%} {high - 1:+.0%}"
    value = row[key]
    if value is None or isinstance(value, (str, int)):
        return str(value) if value is not None else ""
    if key == "ratio_to_sterna":
        return f"{value:.3f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
