"""What `--recover` trains of a rounded model, and how it comes into the written one.

Rounding gives each matrix levels and scales. Training, which is no part of this package, leaves the
levels as they are and gives other scales and vectors of the same number types, so that layout and
size stay: a `Recovery` makes them of a `Start`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sterna import formats, loading
from sterna.convert.job import Job, Progress, Stage
from sterna.convert.plan import Item, Plan
from sterna.convert.running import Running
from sterna.convert.unfinished import Kept
from sterna.errors import RequestError
from sterna.formats import Format, PackedWeight, weighted
from sterna.formats.feedback import Feedback
from sterna.runtime import resolve_threads
from sterna.weights.packing import layer_scale
from sterna.weights.rounding import converted, keeps
from sterna.weights.sources import PackedWeights

__all__ = ["Piece", "Recovered", "Recovery", "Start", "check_source", "recovered"]

F32 = npt.NDArray[np.float32]


class Piece(NamedTuple):
    """Rows of a weight as they are rounded, by the name of what `Plan.read` yields.

    levels: [M, K], or float32 values where the format is of floats. scales: as their layout has
    them. table: whether it is an embedding or a head. trains: whether other scales can be written.
    """

    name: str
    format: Format
    levels: npt.NDArray[Any]
    scales: F32
    table: bool
    trains: bool


@dataclass(frozen=True)
class Start:
    """What training begins from.

    teacher: the unrounded model, which reads texts as well. folder: where a state may be kept, of
    this start only. pieces, vectors: those of the student, read once.
    """

    model: loading.Model
    teacher: Running
    texts: Sequence[str]
    pieces: Iterator[Piece]
    vectors: Mapping[str, F32]
    folder: Path
    threads: int
    progress: Progress


@dataclass(frozen=True)
class Recovered:
    """What training gave: scales by the names of pieces, vectors by their own.

    lr: the learning rate. before, after: mean KL divergence of the unrounded model's next token
    from the rounded one's, in nats, over `tokens` of the text that training did not read. Where it
    did not fall, scales and vectors are empty, so that the model stays as it was rounded.
    """

    steps: int
    lr: float
    tokens: int
    before: float
    after: float
    scales: Mapping[str, F32] = field(default_factory=dict)
    vectors: Mapping[str, F32] = field(default_factory=dict)

    @property
    def fell(self) -> bool:
        """Whether the divergence fell, and the model has what was trained."""
        return self.after < self.before


class Recovery(Protocol):
    """A training of scales and vectors."""

    @property
    def settings(self) -> str:
        """What the result depends on besides the start."""

    def check(self, model: loading.Model, planned: Plan, texts: Sequence[str]) -> None:
        """Raise RequestError for what it cannot train, before anything is measured."""

    def train(self, start: Start) -> Recovered:
        """Train; a start that was killed goes on from its folder, to the same bits."""


def check_source(planned: Plan, name: str) -> None:
    """Raise RequestError for a model that has levels already, or experts."""
    if isinstance(planned.source, PackedWeights):
        raise RequestError(
            f"recover: must start from a model of floats, but {name} is packed; give the "
            "checkpoint that it was made from"
        )
    experts = next((i.name for i in planned.items.values() if i.kind == "experts"), None)
    if experts is not None:
        raise RequestError(
            f"recover: must be for a model without experts, but {name} has {experts}; leave "
            "--recover out"
        )


def recovered(
    job: Job,
    planned: Plan,
    recovery: Recovery,
    teacher: Running,
    texts: Sequence[str],
    kept: Kept,
    progress: Stage,
) -> tuple[Job, Recovered]:
    """Train what the job's formats leave open; return the job that writes it, and what came of it.

    kept: has roundings, which the job writes afterwards, and the state of training.
    """
    chosen = [f"{name}={format}" for name, format in sorted(job.formats.items())]
    digest = hashlib.sha256("\n".join([*chosen, recovery.settings]).encode()).hexdigest()
    found = recovery.train(
        Start(
            teacher.model,
            teacher,
            texts,
            _pieces(job, planned, progress),
            dict(_vectors(planned)),
            kept.folder / f"recovering-{digest[:16]}",
            resolve_threads(job.threads),
            lambda done, total: progress("recovering", done, total),
        )
    )
    before = job.rounding

    def rounding(name: str) -> weighted.Rounding:
        scales = found.scales.get(name)
        return before(name) if scales is None else _with_scales(before(name), scales)

    return replace(job, rounding=rounding, vectors=found.vectors), found


def _vectors(planned: Plan) -> Iterator[tuple[str, F32]]:
    for item in planned.items.values():
        if item.kind == "vector":
            for name, vector in planned.read(item):
                yield name, np.array(vector, np.float32)


def _pieces(job: Job, planned: Plan, progress: Stage) -> Iterator[Piece]:
    """Round each matrix and table as the job will, and yield them."""
    done = 0
    for item in planned.items.values():
        if item.kind in ("matrix", "table"):
            for name, weight in planned.read(item):
                assert isinstance(weight, PackedWeight)
                yield _piece(job, item, name, weight)
        done += item.M * item.K
        progress("rounding", done, planned.n_weights)


def _piece(job: Job, item: Item, name: str, weight: PackedWeight) -> Piece:
    format = job.formats.get(name, weight.format)
    squares, rounding = job.squares.get(item.name), job.rounding(name)
    threads = resolve_threads(job.threads)
    scale = None if item.kind == "table" else layer_scale(format)
    made = [*converted(weight, format, scale, None, threads, squares, rounding)]
    levels = np.concatenate([levels for levels, _ in made])
    if not format.scaled:  # a format of floats has its words in place of levels
        levels = formats.float_format(format.name).floats(levels)[:, : weight.K]
        scales = np.ones((), np.float32)
    else:
        scales = format.scales.joined([(len(some), of_some) for some, of_some in made])
    trains = format.scaled and not keeps(format, weight.format)
    return Piece(name, format, levels, scales, item.kind == "table", trains)


def _with_scales(rounding: weighted.Rounding, scales: F32) -> weighted.Rounding:
    """Round as `rounding`, with these scales of all rows in place of the rounding's own."""
    done = 0

    def made(
        format: Format,
        w: F32,
        scale: str | None = None,
        squares: F32 | Feedback | None = None,
        threads: int = 1,
    ) -> weighted.Rounded:
        nonlocal done
        levels, own = rounding(format, w, scale, squares, threads)
        if own.ndim == 0:
            return levels, scales
        begin, done = done, done + len(w)
        return levels, np.ascontiguousarray(scales[begin:done])

    return made
