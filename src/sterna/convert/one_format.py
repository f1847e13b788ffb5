"""A model in one format, rounded with error feedback, whose scales and vectors are then trained.

`sterna quantize --format F --recover STEPS`. `best_for_size` does the same with a format for each
matrix, which it has to measure first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sterna import formats, models
from sterna.checkpoints.resolve import resolve
from sterna.convert.candidates import units_of
from sterna.convert.importance_matrix import require_calibrated
from sterna.convert.job import Job, Stage
from sterna.convert.moments import Moments, budget_of
from sterna.convert.packed_export import to_directory
from sterna.convert.plan import Plan, plan
from sterna.convert.quantization_check import warn_if_too_lossy
from sterna.convert.recovery import Recovered, Recovery, check_source, recovered
from sterna.convert.running import Running
from sterna.convert.targets import check_places
from sterna.convert.unfinished import begun_with, unfinished
from sterna.formats import Format
from sterna.weights.loss import Loss
from sterna.weights.sources import head_format

__all__ = ["in_one_format"]


def in_one_format(
    src: str | Path,
    dst: str | Path,
    format: str,
    texts: Sequence[str],
    recovery: Recovery,
    *,
    head: str | None = None,
    tokens: int = 16384,
    force: bool = False,
    threads: int | None = None,
    i2s: str | None = None,
    progress: Stage = lambda stage, done, total: None,
) -> tuple[list[Loss], Recovered]:
    """Write the model `src` at `dst` as a packed directory, and return losses and what was trained.

    format, head: as in `convert`. texts, tokens, progress: as in `best_for_size`, which also says
    what stays after a kill. Losses are those of the written weights, of each matrix. Raises
    RequestError as `convert`, for a format that rounds each float by itself, and for a model that
    cannot be trained, before anything is read.
    """
    require_calibrated(format, what="recover")
    path = resolve(src, inspect=models.require_architecture)
    job = Job(path, Path(dst), str(src), head, force, threads, i2s, {}, None)
    check_places(job.src, job.dst, force)
    model, planned = plan(path, threads, i2s)
    check_source(planned, str(src))
    recovery.check(model, planned, texts)
    warn_if_too_lossy(planned, formats.get(format), job.name)
    begun = begun_with(path, texts, tokens=tokens, i2s=i2s)
    with unfinished(job.dst, begun, reserve=4 * planned.n_weights) as kept:
        running = Running.of(path, threads, i2s)

        def read(done: int, total: int) -> None:
            progress("reading", done, total)

        windows = running.windows(texts, tokens)
        final = replace(
            job,
            squares=Moments(running, windows, budget_of(running), {}, read, kept),
            progress=lambda done, total: progress("rounding", done, total),
            formats=_formats(planned, format, head),
            rounding=lambda name: kept.rounded,
        )
        final, found = recovered(final, planned, recovery, running, texts, kept, progress)
        return to_directory(final, format, None), found


def _formats(planned: Plan, format: str, head: str | None) -> dict[str, Format]:
    """Name the format of each layer, and of embedding and head if one is asked for."""
    made = dict[str, Format]()
    for unit in units_of(planned):
        item, name = planned.items[unit.item], format
        if item.kind == "table":
            if head is None:
                continue
            name = head_format(head, planned.stored_format(item))
        made[unit.name] = formats.fitting(formats.get(name), unit.K)
    return made
