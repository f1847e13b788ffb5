"""The best model for given bytes: a format for each matrix, rounded with error feedback.

    goal = Goal(bits=2.8)
    fitted = best_for_size("models/llama", "llama-2.8", goal, texts)

The unrounded model reads a text once for the second moments of layers' inputs (`moments`), and some
hundred tokens once more for each matrix, with this one changed (`sensitivity`). Losses and bytes of
all formats of the runtime then decide (`allocation`), and the weights are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sterna import formats, models
from sterna.checkpoints.model_shape import SHARE, Shape, memory_of, shape_of_config
from sterna.checkpoints.resolve import resolve
from sterna.convert.allocation import Choice, allocate, curve, least_bytes
from sterna.convert.candidates import Unit, candidates, fixed_bytes, nbytes_of, units_of
from sterna.convert.gguf_export import gguf_overhead, to_gguf
from sterna.convert.importance_matrix import calibrate
from sterna.convert.job import Job
from sterna.convert.moments import Moments
from sterna.convert.packed_export import directory_overhead, to_directory
from sterna.convert.plan import Plan, plan
from sterna.convert.running import Running
from sterna.convert.sensitivity import Probe, format_errors, kinds_of, measured_of, sampled
from sterna.convert.targets import check_places
from sterna.errors import RequestError
from sterna.runtime import memory_bytes, resolve_threads
from sterna.weights.loss import Loss

__all__ = ["Fitted", "Goal", "best_for_size"]

#: Called with the name of a stage, the work done and the work in all.
Stage = Callable[[str, int, int], None]
PROBED = 64  # tokens of the text for one that the model reads for each matrix
LEAST_PROBED = 128
TINY = 1e-30  # in place of 0


@dataclass(frozen=True)
class Goal:
    """One of: bits a weight, bytes of the written model, or bytes of memory with a context."""

    bits: float | None = None
    nbytes: int | None = None
    memory: int | None = None
    context: int | None = None

    def weight_bytes(self, n_weights: int, overhead: Callable[[], int], shape: Shape) -> int:
        """Return the most bytes of weights; overhead: bytes of the written model besides them."""
        if self.bits is not None:
            return int(self.bits * n_weights / 8)
        if self.nbytes is not None:
            return self.nbytes - overhead()
        assert self.memory is not None
        left = self.memory - memory_of(0, shape, self.context)
        return left * SHARE // (SHARE + 1)

    def least(
        self, weights: int, n_weights: int, overhead: Callable[[], int], shape: Shape
    ) -> tuple[str, str, str]:
        """Say what was asked for, what it was, and the least that weights of these bytes take."""
        if self.bits is not None:
            up = -(-weights * 8 * 1000 // n_weights) / 1000
            return "bpw", f"{self.bits:g}", f"{up:g} bits a weight"
        if self.nbytes is not None:
            return "size", f"{self.nbytes:,} bytes", f"{weights + overhead():,} bytes"
        need = memory_of(weights, shape, self.context)
        return "fits", f"{self.memory:,} bytes", f"{need:,} bytes of memory"


@dataclass
class Fitted:
    """What was chosen and written.

    rows: for each matrix its name, shape, format, bytes, g (`sensitivity`) and the estimated KL.
    nbytes: of all weights; bits: a weight; curve: (bytes of weights, estimated KL) of the best
    choices at other sizes.
    """

    rows: list[dict[str, Any]]
    nbytes: int
    n_weights: int
    curve: list[tuple[int, float]]
    losses: list[Loss] = field(default_factory=list)

    @property
    def bits(self) -> float:
        """Bits of a weight."""
        return self.nbytes * 8 / self.n_weights

    @property
    def estimated_kl(self) -> float:
        """The sum of all matrices' estimates."""
        return float(sum(row["estimated_kl"] for row in self.rows))


def best_for_size(
    src: str | Path,
    dst: str | Path,
    goal: Goal,
    texts: Sequence[str],
    *,
    target: str = "sterna",
    tokens: int = 16384,
    force: bool = False,
    threads: int | None = None,
    i2s: str | None = None,
    progress: Stage = lambda stage, done, total: None,
) -> Fitted:
    """Write the best model that meets the goal at `dst`: a packed directory, or a GGUF file.

    target: the runtime, "sterna" or "gguf" (llama.cpp). texts, tokens: what the model reads, as for
    `calibrate`. progress: called with a stage's name, work done and in all. Raises RequestError,
    which names the smallest possible, for a goal that cannot be met, before anything is measured;
    and as `convert`.
    """
    path = resolve(src, inspect=models.require_architecture)
    to_file = target == "gguf"
    candidates(target, 32)  # refuses other runtimes
    if to_file != str(dst).lower().endswith(".gguf"):
        kind = "a name that ends in .gguf" if to_file else "a folder's name, without .gguf"
        raise RequestError(f"{dst}: must be {kind}, since the model is for {target}")
    job = Job(path, Path(dst), str(src), None, force, threads, i2s, {}, None)
    check_places(job.src, job.dst, force, file=to_file)
    overhead = _Once(lambda: gguf_overhead(job) if to_file else directory_overhead(job))
    overhead()  # raises what the target cannot hold
    model, planned = plan(path, threads, i2s)
    units, fixed = units_of(planned), fixed_bytes(planned)
    shape = shape_of_config(model.json)
    budget = goal.weight_bytes(planned.n_weights, overhead, shape)
    sizes = [_sizes(target, unit) for unit in units]
    least = fixed + least_bytes(sizes)
    if least > budget:
        name, asked, possible = goal.least(least, planned.n_weights, overhead, shape)
        raise RequestError(
            f"{name}: must be at least {possible}, the smallest that {src} can have in formats of "
            f"{target}, but got {asked}"
        )
    measured = _measured(job, planned, target, units, texts, tokens, progress)
    chosen = allocate(measured.choices, budget - fixed)
    made = {unit.name: formats.get(one.format) for unit, one in zip(units, chosen, strict=True)}

    def written(done: int, total: int) -> None:
        progress("rounding", done, total)

    final = Job(
        path, Path(dst), str(src), None, force, threads, i2s, measured.moments, written, made
    )
    losses = to_gguf(final, _commonest(chosen)) if to_file else to_directory(final, None, None)
    rows = [
        {
            "matrix": unit.name,
            "M": unit.M,
            "K": unit.K,
            "format": one.format,
            "bytes": one.nbytes,
            "bits": one.nbytes * 8 / (unit.M * unit.K),
            "sensitivity": g,
            "estimated_kl": one.loss,
        }
        for unit, one, g in zip(units, chosen, measured.sensitivities, strict=True)
    ]
    nbytes = fixed + sum(one.nbytes for one in chosen)
    points = [(fixed + size, loss) for size, loss in curve(measured.choices)]
    return Fitted(rows, nbytes, planned.n_weights, points, losses)


def _commonest(chosen: Sequence[Choice]) -> str:
    """Return the GGUF type of most bytes, which names the file's type."""
    nbytes = Counter[str]()
    for one in chosen:
        nbytes[one.format.upper()] += one.nbytes
    return nbytes.most_common(1)[0][0]


class _Once:
    """Calls a function once, and keeps the result."""

    def __init__(self, function: Callable[[], int]) -> None:
        self._function, self._value = function, list[int]()

    def __call__(self) -> int:
        if not self._value:
            self._value.append(self._function())
        return self._value[0]


@dataclass
class _Measured:
    choices: list[list[Choice]]
    sensitivities: list[float]
    moments: Moments


def _sizes(target: str, unit: Unit) -> list[Choice]:
    return [
        Choice(f.name, nbytes_of(target, f, unit.M, unit.K), 0.0)
        for f in candidates(target, unit.K)
    ]


def _measured(
    job: Job,
    planned: Plan,
    target: str,
    units: Sequence[Unit],
    texts: Sequence[str],
    tokens: int,
    progress: Stage,
) -> _Measured:
    """Measure the loss of each format of each unit."""
    threads = resolve_threads(job.threads)
    running = Running.of(job.src, job.threads, job.i2s)
    windows = running.windows(texts, tokens)
    experts = any(item.kind == "experts" for item in planned.items.values())
    squares = calibrate(job.src, texts, tokens=tokens, threads=job.threads) if experts else {}

    def read(done: int, total: int) -> None:
        progress("reading", done, total)

    moments = Moments(running, windows, memory_bytes() // 4, squares, read)
    probe = Probe.of(running, windows, max(LEAST_PROBED, tokens // PROBED))
    kinds = kinds_of(units)
    probed = {kind[at].name for kind in kinds for at in measured_of(len(kind))}
    total, done = sum(unit.M * unit.K for unit in units), 0
    found = dict[str, _Found]()
    # Moments are read in the order of the layers.
    order = {name: i for i, name in enumerate(moments)}
    for unit in sorted(units, key=lambda u: order.get(u.item, len(order))):
        inputs = moments.get(unit.item)
        if inputs is None:  # an embedding that is no head: only its rows matter
            inputs = np.ones(unit.K, np.float32)
        rows, _ = probe.of_unit(unit)
        some = np.ascontiguousarray(rows[sampled(unit.M)])
        possible = [formats.get(one.format) for one in _sizes(target, unit)]
        one = _Found(format_errors(some, possible, inputs, threads, fed=False))
        if unit.name in probed:
            one.g = probe.sensitivity(unit, inputs)
            one.fed = format_errors(some, possible, inputs, threads)
        one.of_all = unit.M / len(some)
        found[unit.name] = one
        done += unit.M * unit.K
        progress("measuring", done, total)
    for kind in kinds:
        _between([found[unit.name] for unit in kind])
    choices = [found[unit.name].choices(_sizes(target, unit)) for unit in units]
    return _Measured(choices, [found[unit.name].g or 0.0 for unit in units], moments)


@dataclass
class _Found:
    """What is known of a unit: errors of its sampled rows in each format, without feedback and, if
    it is measured, with it; g; rows for each sampled one."""

    plain: list[float]
    fed: list[float] | None = None
    g: float | None = None
    of_all: float = 1.0

    def choices(self, sizes: Sequence[Choice]) -> list[Choice]:
        """Return the choices with their losses."""
        assert self.fed is not None
        assert self.g is not None
        scale = self.g * self.of_all
        pairs = zip(sizes, self.fed, strict=True)
        return [one._replace(loss=scale * error) for one, error in pairs]


def _between(kind: Sequence[_Found]) -> None:
    """Fill in what was not measured, from the measured units of the kind."""
    known = [i for i, one in enumerate(kind) if one.g is not None]
    logs = np.log([max(kind[i].g or 0.0, TINY) for i in known])
    ratios = [np.divide(kind[i].fed or [], np.maximum(kind[i].plain, TINY)) for i in known]
    ratio = np.mean(ratios, axis=0)
    for i, one in enumerate(kind):
        if one.g is None:
            one.g = float(np.exp(np.interp(i, known, logs)))
            one.fed = [float(error) for error in np.multiply(one.plain, ratio)]
