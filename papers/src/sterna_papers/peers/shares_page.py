"""The table of shares as a section of a page, and the comparison with what a page has."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sterna.bench.report import cell, to_markdown
from sterna.errors import RequestError

__all__ = ["COLUMNS", "TOLERANCE", "differences", "readable", "section", "shares_of"]

Row = Mapping[str, Any]
Key = tuple[str, ...]

HEADING = "## Shares on "
COLUMNS = {
    "model": "model",
    "format": "format",
    "test": "test",
    "sterna": "Sterna",
    "ik_llama.cpp": "ik_llama.cpp",
    "llama.cpp": "llama.cpp",
    "times_best": "× best",
    "limit": "limit",
    "share": "share",
}
KEYS = ("model", "format", "test")
NONE = "–"
#: Shares that differ by more, relatively, are reported.
TOLERANCE = 0.10
WIDTH = 100


def readable(row: Row) -> dict[str, Any]:
    """Write the limit with its unit, the share for `differences`, and what is missing as a dash."""
    limit = None if row["limit"] is None else _limit(row)
    share = None if row["share"] is None else f"{row['share']:.3f}"
    shown = {**row, "limit": limit, "share": share}
    return {**shown, **{name: NONE for name in COLUMNS if shown[name] is None}}


def _limit(row: Row) -> str:
    return f"{cell(row['limit'])} {row['unit']}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Say which peers took part, and which are missing and why."""
    lines = []
    for field, text in (("versions", "versions"), ("missing", "missing")):
        parts = [part for row in rows for part in (row[field] or "").split("; ") if part]
        if parts:
            lines.append(f"{text}: {'; '.join(dict.fromkeys(parts))}")
    return lines


def section(rows: Sequence[Row]) -> str:
    """Format rows of one machine class as a section of docs/measurements/speed.md."""
    first = rows[0]
    moods = [row for row in rows if row["unit"] == "GB/s"]
    said = (
        f"`sterna bench peers --table --output markdown`, {first['date']}, medians of "
        f"{first['repeat']} rounds in turn, in tokens/s; Sterna's head is {first['head']}. The "
        "limit of generation is the memory, and of a prompt the unit's int8 dot products, each "
        "measured right before and after each of Sterna's runs."
    )
    if moods:
        low, high = (f(row[f"limit_{f.__name__}"] for row in moods) for f in (min, max))
        said += f" Memory gave {cell(low)} to {cell(high)} GB/s."
    paragraphs = [said, *(f"{line[0].upper()}{line[1:]}." for line in notes(rows))]
    text = "\n\n".join(textwrap.fill(line, WIDTH, break_long_words=False) for line in paragraphs)
    return (
        f"{HEADING}{first['class']}\n\n{text}\n\n{to_markdown(list(map(readable, rows)), COLUMNS)}"
    )


def shares_of(page: Path, machine: str) -> dict[Key, float]:
    """Return (model, format, test) -> Sterna's share, of a page's section for a machine class.

    Raises RequestError if the page has no such section, or no shares in it.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    shares = dict(_shares(lines, f"{HEADING}{machine}"))
    if not shares:
        raise RequestError(
            f"{page}: must have a section {HEADING}{machine} with shares, but has none, so nothing "
            "was checked; write one with sterna bench peers --table --output markdown"
        )
    return shares


def _shares(lines: Sequence[str], heading: str) -> Iterator[tuple[Key, float]]:
    inside, columns = False, list[str]()
    for line in lines:
        if line.startswith("#"):
            inside, columns = line.strip() == heading, []
        elif inside and line.startswith("|"):
            cells = [part.strip() for part in line.strip().strip("|").split("|")]
            if not columns:
                columns = cells
                continue
            named = dict(zip(columns, cells, strict=False))
            share = named.get(COLUMNS["share"], NONE)
            if share.replace(".", "", 1).isdigit():
                yield tuple(named.get(COLUMNS[key], "") for key in KEYS), float(share)


def differences(rows: Sequence[Row], page: Mapping[Key, float]) -> tuple[list[str], list[str]]:
    """Compare measured shares with a page's.

    Returns a line for each share that differs by more than TOLERANCE, and one for each row that has
    nothing to compare with.
    """
    differ, alone = [], []
    for row in rows:
        key = tuple(str(row[name]) for name in KEYS)
        name, was, now = " ".join(key), page.get(key), row["share"]
        if was is None:
            alone.append(f"{name}: the page has no such row")
        elif now is None:
            differ.append(f"{name}: no share was measured, but the page has {was:.3f}")
        elif abs(now - was) > TOLERANCE * was:
            change = f"{now / was - 1:+.1%}".replace("%", " %").replace("-", "−")
            rounds = f"{row['share_min']:.3f} to {row['share_max']:.3f} in {row['repeat']} rounds"
            measured = f"{now:.3f} ({rounds}) of {_limit(row)}"
            differ.append(f"{name}: {measured}, but the page has {was:.3f}, {change}")
    return differ, alone
