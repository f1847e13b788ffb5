"""`sterna bench peers`: Sterna and other runtimes in one run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

from sterna.cli.options import deterministic_option
from sterna.cli.report import (
    COUNTS,
    NAMES,
    NUMBERS,
    Row,
    isa_option,
    limit_option,
    measured,
    output_options,
    table,
    team_option,
    write,
)
from sterna.cli.terminal import console

COLUMNS = {
    "peer": "peer",
    "version": "version",
    "type": "type",
    "what": "test",
    "shape": "M x K",
    "n": "n",
    "tok_s": "tok/s",
    "gops": "GOPS",
    "gb_s": "GB/s",
    "time_us": "µs",
    "time_us_range": "range",
    "ratio_to_sterna": "of sterna",
    "counts": "counts",
}
FIGURES = ("tok_s", "gops", "gb_s")
#: Default measurements, without and with --thorough.
QUICK: dict[str, Any] = {
    "peers": ("llama.cpp", "ik_llama.cpp"), "formats": ("t5",), "pp": (128,), "tg": (16,),
    "n": (1, 128),
}  # fmt: skip
THOROUGH: dict[str, Any] = {
    "peers": ("llama.cpp", "torch", "litespark", "ik_llama.cpp"), "formats": ("t5", "i2"),
    "pp": (128, 512), "tg": (64,), "n": (1, 128, 512),
}  # fmt: skip


@click.command("peers")
@click.option(
    "--peers",
    type=NAMES,
    help="Other runtimes: llama.cpp, ik_llama.cpp, bitnet.cpp (matrix products of the checkout in "
    "$STERNA_BITNET_CPP: I2_S, and TL2 on x86 or TL1 on ARM), torch, litespark, numpy; the report "
    "names those that are missing; "
    "default: llama.cpp,ik_llama.cpp.",
)
@click.option(
    "--shape",
    default="bitnet-2b",
    show_default=True,
    help="Shape of the dummy model, or MxK for the product with a single matrix.",
)
@click.option(
    "--format",
    "formats",
    type=NAMES,
    help="Sterna's weight formats; ratios are to the first. The llama.cpps run the same types "
    "(q4_0, q8_0, q4_k, q6_k, f16, bf16 …), and for other formats their ternary ones; default: t5.",
)
@click.option("--head", default="int8", show_default=True, help="Sterna's output head.")
@click.option("--pp", type=COUNTS, help="Prompt lengths, 0: none; default: 128.")
@click.option("--tg", type=COUNTS, help="Tokens to generate, 0: none; default: 16.")
@click.option(
    "--depth",
    type=NUMBERS,
    default="0",
    show_default=True,
    help="Tokens that are in the KV cache before generation.",
)
@click.option(
    "--n",
    type=COUNTS,
    help="Tokens of matrix products, in formats with -1, 0 and 1; 0: no products; default: 1,128.",
)
@click.option(
    "--thorough",
    is_flag=True,
    help="By default all peers but numpy, t5 and i2, prompts of 128 and 512, 64 tokens, and matrix "
    "products of 1, 128 and 512 tokens.",
)
@click.option(
    "--table",
    "as_table",
    is_flag=True,
    help="Measure a table for this machine class: the 2B shape in t5 and TinyLlama's in q4_0, q8_0 "
    "and q4_k (--format chooses among them), with shares of what memory and dot products allow. "
    "--markdown writes it as a section of docs/measurements/speed.md.",
)
@click.option(
    "--check",
    "page",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Measure Sterna's rows of --table, and compare its shares with this page's for the same "
    "machine class.",
)
@click.option("--repeat", type=int, help="Rounds; medians count; default: 3, with --table 5.")
@team_option
@isa_option
@deterministic_option
@click.option(
    "--ik-llama-bench",
    "llama_bench",
    metavar="PATH",
    help="ik_llama.cpp's llama-bench; default: $STERNA_IK_LLAMA_BENCH.",
)
@limit_option
@output_options
def command(as_table: bool, page: Path | None, **given: Any) -> None:
    """Measure Sterna and other runtimes in turn, and check their outputs.

    The default is one format, one prompt and a few tokens; --thorough measures the rest, too.
    --table takes about ten minutes on two cores, and --check without --peers two. Exit codes of
    --check: 0, no share differs by more than 10 %; 1, some do, and this says which; 2, it could not
    be checked, as without rows of this machine class.
    """
    from sterna_papers.cli import peers_table

    if as_table or page is not None:
        click.get_current_context().exit(peers_table.run(page, **given))
    _compare(**given)


def _compare(
    peers: tuple[str, ...] | None,
    formats: tuple[str, ...] | None,
    thorough: bool,
    repeat: int | None,
    limit_s: float,
    output: str,
    threads: int | None,
    **given: Any,
) -> None:
    """Measure the tests that the options name."""
    from sterna.runtime import resolve_threads
    from sterna_papers.peers import run
    from sterna_papers.peers.case import Options

    defaults = THOROUGH if thorough else QUICK
    asked = {"peers": peers, "formats": formats, **given}
    asked |= {name: value for name, value in defaults.items() if asked[name] is None}
    peers, formats = asked.pop("peers"), asked.pop("formats")
    options = Options(variant="", scratch="", threads=resolve_threads(threads), **asked)
    repeat = 3 if repeat is None else repeat
    measured(
        "starting",
        functools.partial(run, peers, options, formats=formats, repeat=repeat, limit_s=limit_s),
        lambda rows: write(rows, output, COLUMNS, _draw, _readable),
    )


def _readable(row: Row) -> dict[str, Any]:
    """Join type and head, and drop figures that do not count."""
    out = dict(row)
    out["type"] = f"{row['format']} + {row['head']}" if row["head"] else row["format"]
    out["counts"] = "yes" if row["checked"] else "no"
    if row["skipped"]:
        out["counts"] = f"skipped: {row['skipped']}"
    elif not row["checked"]:
        out |= dict.fromkeys(FIGURES)
    return out


def _draw(rows: list[dict[str, Any]]) -> None:
    done = [row for row in rows if not row["skipped"]]
    shown = {key: heading for key, heading in COLUMNS.items() if key not in ("version", "counts")}
    if done:
        table(done, shown)
    for row in rows:
        name = " ".join(str(row[k]) for k in ("peer", "format", "what", "shape") if row[k])
        if row["skipped"]:
            console().print(f"skipped: {name}: {row['skipped']}", soft_wrap=True)
        elif not row["checked"]:
            console().print(f"not counted: {name}: {row['check']}", soft_wrap=True)
