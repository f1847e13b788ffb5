"""Figures 5 to 7 of arXiv 2508.06753: GEMV with int8, two bits and one bit, and its roofs.

The figures have the GB/s of weights of each matrix of three models. `bench.linear` measures them
here, and `bench.roofline` the cycles of a kernel, of which section III-E makes a roof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sterna import formats
from sterna.bench import linear, roofline
from sterna.bench.machine import Known, Progress, Rows
from sterna.bench.report import significant
from sterna.runtime import resolve_threads

__all__ = ["BASELINE", "FIELDS", "FORMATS", "MODELS", "run", "under"]

MODELS = ("falcon3-1b", "mobilellm-1.5b", "llama3-8b")
BASELINE = "i8"
FORMATS = (BASELINE, "i2p", "i1")
#: Fields of every row; docs/measurements/papers.md defines those that `bench gemv` does not have.
FIELDS = (
    "model", "layer", "format", "shape", "threads", "isa", "gb_s", "bandwidth_gb_s",
    "fraction_of_bandwidth", "gamma_cycles", "core_gb_s", "roof_gb_s", "bound", "fraction_of_roof",
    "int8_ratio", "time_us", "time_us_min", "time_us_max", "repeat", "working_set_mb",
)  # fmt: skip


def run(
    models: Sequence[str] = MODELS,
    *,
    format_names: Sequence[str] = FORMATS,
    threads: Sequence[int] | None = None,
    cores: str | None = None,
    isa: str | None = None,
    repeat: int = 3,
    working_set_mb: int | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return a row with FIELDS per matrix, format and number of threads; int8 is always there.

    models: names of shapes, or MxK. Other arguments are those of `linear.run`. Raises RequestError.
    """
    names = linear.formats_named([BASELINE, *format_names])
    for matrix in linear.matrices(models):
        for name in names:
            formats.get(name).check_shape(matrix.M, matrix.K, str(matrix))
    same: dict[str, Any] = {
        "threads": threads or [resolve_threads(None, cores)],
        "cores": cores,
        "isas": None if isa is None else [isa],
        "repeat": repeat,
        "working_set_mb": working_set_mb,
    }
    machine = roofline.run(names, progress=lambda text: progress(f"the roofs: {text}"), **same)
    roofs = {(row["format"], row["threads"]): row for row in machine if row["row"] == "decode"}

    def joined(rows: Rows) -> Rows:
        speeds = {
            (row["shape"], row["threads"]): row["gb_s"] for row in rows if row["format"] == BASELINE
        }
        made = []
        for row in rows:
            roof = under(row, roofs[row["format"], row["threads"]])
            int8 = speeds.get((row["shape"], row["threads"]))
            roof["int8_ratio"] = significant(row["gb_s"] / int8) if int8 else None
            made.append({name: (row | roof).get(name) for name in FIELDS})
        return made

    rows = linear.run(
        models, format_names=names, progress=progress,
        known=lambda measured: known(lambda: joined(measured())), **same,
    )  # fmt: skip
    return joined(rows)


def under(row: dict[str, Any], of_kernel: dict[str, Any]) -> dict[str, Any]:
    """Return the roof of a row: the less of its own memory and of its cores (equation 3)."""
    core = of_kernel["core_bytes_per_cycle"] * of_kernel["clock_ghz"] * row["threads"]
    roof = min(core, row["bandwidth_gb_s"])
    return {
        "gamma_cycles": of_kernel["gamma_cycles"],
        "core_gb_s": significant(core),
        "roof_gb_s": significant(roof),
        "bound": "core" if core < row["bandwidth_gb_s"] else "memory",
        "fraction_of_roof": significant(row["gb_s"] / roof),
    }
