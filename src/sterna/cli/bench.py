"""`sterna bench`: speed, beside what the machine allows in the same run."""

from __future__ import annotations

from typing import Any

import click

from sterna.cli.bench_barrier import barrier
from sterna.cli.options import (
    console,
    head_option,
    json_option,
    print_json,
    status,
    threads_options,
)

COLUMNS = {
    "test": "test",
    "tok_s": "tok/s",
    "ttft_ms": "TTFT ms",
    "gops": "GOPS",
    "fraction_of_peak": "of peak",
    "bytes_per_token": "MB/token",
    "fraction_of_bandwidth": "of bandwidth",
    "rss_mb": "RSS MB",
}


# ParamType is generic in newer versions of click and not in older ones, hence the ignore.
class _Counts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Comma-separated token counts: "128,512"; empty or "0" for none."""

    name = "N,N"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(part) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"must be whole numbers separated by commas, but got {value!r}", param, ctx)
        return () if counts == (0,) else counts


@click.group()
def command() -> None:
    """Measure speed on this machine."""


@command.command()
@click.option(
    "--model",
    default="nano",
    show_default=True,
    help="A model, or random:SHAPE for dummy weights, such as random:bitnet-2b.",
)
@click.option("--format", help="Weight format of the layers.")
@head_option
@click.option("--pp", type=_Counts(), default="128,512", show_default=True, help="Prompt lengths.")
@click.option("--tg", type=_Counts(), default="64", show_default=True, help="Tokens to generate.")
@click.option(
    "--kv-dtype", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="KV."
)
@click.option("--repeat", type=int, default=3, show_default=True, help="Runs; medians count.")
@threads_options
@json_option
def e2e(model: str, as_json: bool, **options: Any) -> None:
    """Prompt processing (pp) and generation (tg), end to end."""
    from sterna.bench.e2e import run

    with status(f"loading {model}") as progress:
        rows = run(model, progress=progress, **options)
    if as_json:
        print_json(rows)
    elif rows:
        _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    first = rows[0]
    console().print(
        f"{first['model']}, {first['format']}, head {first['head']}, on {first['threads']} threads "
        f"with {first['isa']}; measured: {first['bandwidth_gb_s']:.1f} GB/s of memory, "
        f"a peak of {first['peak_gops']:,.0f} GOPS"
    )
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS.values():
        table.add_column(name, justify="left" if name == "test" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(key, row.get(key)) for key in COLUMNS))
    console().print(table)


def _cell(key: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if key == "bytes_per_token":
        value /= 1e6
    if key.startswith("fraction"):
        return f"{value:.2f}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


command.add_command(barrier)
