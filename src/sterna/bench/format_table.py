"""A table of the weight formats: levels, bits per weight, and speed on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sterna import formats
from sterna.bench import linear
from sterna.bench.machine import Progress
from sterna.bench.random_codes import packed_bytes

__all__ = ["run"]


def run(
    names: Sequence[str] | None = None,
    *,
    shape: str = "4096x4096",
    n: int = 512,
    threads: int | None = None,
    cores: str | None = None,
    isa: str | None = None,
    repeat: int = 3,
    measure: bool = True,
    progress: Progress = lambda _: None,
) -> list[dict[str, Any]]:
    """Return a row for each format; names: None for all, from the fewest bits up.

    bits_per_weight counts codes and scales of a matrix of `shape` ("MxK"). gb_s is for one token,
    gops for n tokens, both also as fractions of the machine's limits; they are None with
    measure=False. Raises RequestError.
    """
    (matrix,) = linear.matrices([shape])[:1]
    rows = []
    for name in linear.formats_for(names or ["all"], matrix):
        f = formats.get(name)
        f.check_shape(matrix.M, matrix.K, shape)
        row: dict[str, Any] = {
            "format": name,
            "summary": f.summary,
            "layout": f.layout.name,
            "bits_per_weight": round(
                8 * packed_bytes(f, matrix.M, matrix.K) / matrix.M / matrix.K, 3
            ),
            "levels": len(f.codebook.levels) if f.codebook else None,
            "scales": f.scales.summary,
            **dict.fromkeys(
                ("threads", "isa", "gb_s", "fraction_of_bandwidth", "gops", "fraction_of_peak")
            ),
            "shape": str(matrix),
            "n": n,
        }
        if measure:
            row |= _measured(name, str(matrix), n, threads, cores, isa, repeat, progress)
        rows.append(row)
    return rows


def _measured(
    name: str,
    shape: str,
    n: int,
    threads: int | None,
    cores: str | None,
    isa: str | None,
    repeat: int,
    progress: Progress,
) -> dict[str, Any]:
    """Measure one format at a time, since the weights of all formats would not fit into memory."""

    def timed(tokens: int, working_set_mb: int | None) -> dict[str, Any]:
        (row,) = linear.run(
            [shape],
            format_names=[name],
            n=(tokens,),
            threads=None if threads is None else [threads],
            cores=cores,
            isas=None if isa is None else [isa],
            repeat=repeat,
            working_set_mb=working_set_mb,
            progress=lambda what: progress(f"{name}: {what}"),
        )
        return row

    # Many tokens use each weight so often that one copy will do, in the cache or not.
    one, many = timed(1, None), timed(n, 0)
    return {
        "threads": one["threads"],
        "isa": one["isa"],
        **{key: one[key] for key in ("gb_s", "fraction_of_bandwidth")},
        **{key: many[key] for key in ("gops", "fraction_of_peak")},
    }
