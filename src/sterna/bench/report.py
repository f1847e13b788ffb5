"""Rows of benchmarks: the fields they share, and how they are written as text.

A row is a flat dict. All rows of a command have the same keys. A field that does not apply is None:
null in JSON, and an empty cell in CSV and Markdown.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Limits",
    "cell",
    "fractions",
    "significant",
    "spread",
    "to_csv",
    "to_markdown",
    "with_range",
]

Row = dict[str, Any]


def significant(value: float) -> float:
    """Round to five significant digits, so that a slow machine's rates keep theirs.

    Rounding to decimals would not: three of them leave 0.04 of 0.04042 GB/s.
    """
    return float(f"{value:.5g}")


def spread(seconds: Sequence[float]) -> Row:
    """Return the median, least and greatest time in microseconds, and the number of times."""
    return {
        "time_us": round(statistics.median(seconds) * 1e6, 3),
        "time_us_min": round(min(seconds) * 1e6, 3),
        "time_us_max": round(max(seconds) * 1e6, 3),
        "repeat": len(seconds),
    }


class Limits(NamedTuple):
    """What a machine allows, measured next to a benchmark.

    bandwidth: 10^9 bytes/second. best: the greatest bandwidth ever measured here; 0: unknown. peak:
    10^9 operations/second.
    """

    bandwidth: float
    best: float
    peak: float


def fractions(gb_s: float, gops: float, limits: Limits) -> Row:
    """Return speeds, the machine's limits, and the speeds as fractions of them."""
    bandwidth, best, peak = limits
    return {
        "gb_s": significant(gb_s),
        "gops": significant(gops),
        "peak_gops": significant(peak),
        "bandwidth_gb_s": significant(bandwidth),
        "bandwidth_best_gb_s": significant(best) if best else None,
        "fraction_of_bandwidth": significant(gb_s / bandwidth) if bandwidth else None,
        "fraction_of_peak": significant(gops / peak) if peak else None,
    }


def with_range(row: Mapping[str, Any], *fields: str) -> Row:
    """Return the row with FIELD_range, "least to greatest", for each FIELD that has both."""
    low_high = {name: (row.get(f"{name}_min"), row.get(f"{name}_max")) for name in fields}
    return dict(row) | {
        f"{name}_range": None if low is None else f"{cell(low)} to {cell(high)}"
        for name, (low, high) in low_high.items()
    }


def cell(value: Any) -> str:
    """Format a value for a reader: two to four significant digits, thousands separated."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if not isinstance(value, float):
        return f"{value:,}" if type(value) is int else str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as comma-separated values with a header line; None is an empty field."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    if rows:
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def to_markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Format rows as a table of some columns (field -> heading), numbers to the right."""
    shown = [[cell(row.get(field)).replace("|", "\\|") for field in columns] for row in rows]
    numeric = [any(isinstance(row.get(field), (int, float)) for row in rows) for field in columns]
    lines = [list(columns.values()), ["--:" if right else "---" for right in numeric], *shown]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
