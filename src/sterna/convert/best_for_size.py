"""The best model for given bytes: a format for each matrix, rounded with error feedback.

    goal = Goal(bits=2.8)
    fitted = best_for_size("models/llama", "llama-2.8", goal, texts)

The unrounded model reads a text once for the second moments of layers' inputs (`moments`), and some
hundred tokens once more for each matrix, with this one changed (`sensitivity`). Losses and bytes of
all formats of the runtime then decide (`allocation`), and the weights are written. A run that was
killed goes on where it ended (`unfinished`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sterna import formats, models
from sterna.checkpoints.model_shape import SHARE, Shape, memory_of, shape_of_config
from sterna.checkpoints.resolve import resolve
from sterna.convert.allocation import Choice, allocate, curve, least_bytes
from sterna.convert.candidates import candidates, fixed_bytes, sizes_of, units_of
from sterna.convert.gguf_export import gguf_overhead, to_gguf
from sterna.convert.job import Job, Stage
from sterna.convert.measuring import measure
from sterna.convert.packed_export import directory_overhead, to_directory
from sterna.convert.plan import plan
from sterna.convert.recovery import Recovered, Recovery, check_source, recovered
from sterna.convert.targets import check_places
from sterna.convert.unfinished import begun_with, unfinished
from sterna.errors import RequestError
from sterna.files.writing import require_space
from sterna.weights.loss import Loss

__all__ = ["Fitted", "Goal", "best_for_size"]


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
    choices at other sizes. recovered: what training regained.
    """

    rows: list[dict[str, Any]]
    nbytes: int
    n_weights: int
    curve: list[tuple[int, float]]
    losses: list[Loss] = field(default_factory=list)
    recovered: Recovered | None = None

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
    recovery: Recovery | None = None,
    progress: Stage = lambda stage, done, total: None,
) -> Fitted:
    """Write the best model that meets the goal at `dst`: a packed directory, or a GGUF file.

    target: the runtime, "sterna" or "gguf" (llama.cpp). texts, tokens: what the model reads, as for
    `calibrate`. recovery: trains scales and vectors of the rounded model. progress: called with a
    stage's name, work done and in all. Raises RequestError before anything is measured, for a goal
    that cannot be met, with the smallest that can, and for a disk that is too small; and as
    `convert`. After an error or a kill, the folder NAME.unfinished next to `dst` stays, by which
    the next call for this source and text, of any goal, gives the same bits in less time.
    """
    path = resolve(src, inspect=models.require_architecture)
    to_file = target == "gguf"
    candidates(target, 32)  # refuses other runtimes
    if to_file != str(dst).lower().endswith(".gguf"):
        kind = "a name that ends in .gguf" if to_file else "a folder's name, without .gguf"
        remedy = "" if to_file else "; --for gguf makes a GGUF file"
        raise RequestError(f"{dst}: must be {kind}, since the model is for {target}{remedy}")
    job = Job(path, Path(dst), str(src), None, force, threads, i2s, {}, None)
    check_places(job.src, job.dst, force, file=to_file)
    overhead = _Once(lambda: gguf_overhead(job) if to_file else directory_overhead(job))
    overhead()  # raises what the target cannot hold
    model, planned = plan(path, threads, i2s)
    if recovery is not None:
        check_source(planned, str(src))
        recovery.check(model, planned, texts)
    units, fixed = units_of(planned), fixed_bytes(planned)
    shape = shape_of_config(model.json)
    budget = goal.weight_bytes(planned.n_weights, overhead, shape)
    sizes = [sizes_of(target, unit) for unit in units]
    least = fixed + least_bytes(sizes)
    if least > budget:
        name, asked, possible = goal.least(least, planned.n_weights, overhead, shape)
        raise RequestError(
            f"{name}: must be at least {possible}, the smallest that {src} can have in formats of "
            f"{target}, but got {asked}"
        )
    begun = begun_with(path, texts, tokens=tokens, runtime=target, i2s=i2s)
    most = fixed + sum(max(one.nbytes for one in of_unit) for of_unit in sizes)
    size = min(budget, most) + overhead()
    require_space(job.dst, size)
    with unfinished(job.dst, begun, reserve=size) as kept:
        measured = measure(job, planned, target, texts, tokens, kept, progress)
        chosen = allocate(measured.choices, budget - fixed)
        made = {unit.name: formats.get(one.format) for unit, one in zip(units, chosen, strict=True)}
        final = replace(
            job,
            squares=measured.moments,
            progress=lambda done, total: progress("rounding", done, total),
            formats=made,
            rounding=lambda name: kept.rounded,
        )
        found = None
        if recovery is not None:
            teacher = measured.moments.running
            final, found = recovered(final, planned, recovery, teacher, texts, kept, progress)
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
    return Fitted(rows, nbytes, planned.n_weights, points, losses, found)


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
