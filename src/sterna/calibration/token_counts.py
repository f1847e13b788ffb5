"""Numbers of tokens at which kernels change their way, chosen for each format."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

from sterna import _native
from sterna.calibration.measured import GAIN, LEAST_BYTES, keep, kept, place, usual_seconds
from sterna.checkpoints.cache import cache_dir
from sterna.errors import RequestError, shown
from sterna.formats import PackedWeight
from sterna.runtime import Threads

__all__ = ["Measure", "TokenCount", "crossing", "samples_of", "step_seconds"]

_LEAST_WEIGHT_BYTES = 1 << 20
# Rows that are timed at once, as in a layer: a round of a vocabulary's head would take all seconds.
_PIECE_BYTES = 4 << 20
Samples = Mapping[str, Sequence[PackedWeight]]
#: (weights of one shape, threads, unit, seconds) -> the number; None if it could not be measured.
Measure = Callable[[Sequence[PackedWeight], Threads, str, float], int | None]


@dataclass(frozen=True)
class TokenCount:
    """One such number; 0: as the kernels do by themselves.

    what: its name in the file of measurements. variable: the one of the environment that says it
    for all formats, and pins: what that may say. counts: what a measurement may find, next to 0.
    budget_s: seconds that measuring takes, for all formats of a model.
    """

    what: str
    variable: str
    pins: range
    counts: Collection[int]
    budget_s: float

    def known(self, threads: Threads, isa: str) -> dict[str, int]:
        """Return what was measured so far on this machine, for each format."""
        count_of = kept(self.what, f"{place(threads)}, {isa}")
        if not isinstance(count_of, dict):
            return {}
        return {name: n for name, n in count_of.items() if n in (0, *self.counts)}

    def choose(
        self, samples: Samples, measure: Measure, threads: Threads, isa: str, measures: bool
    ) -> dict[str, int]:
        """Return the number for each format of the samples that has another one than 0.

        It comes from the environment, or from an earlier measurement on this machine, or, where it
        `measures`, from one now. Raises RequestError for what the variable must not say.
        """
        if pinned := os.environ.get(self.variable, ""):
            return dict.fromkeys(samples, self._pinned(pinned))
        if cache_dir() is None or isa == _native.isas()[0]:
            return {}
        count_of = self.known(threads, isa)
        missing = [name for name in samples if name not in count_of]
        if missing and measures:
            for name in missing:
                n = measure(samples[name], threads, isa, self.budget_s / len(missing))
                if n is not None:
                    count_of[name] = n
            keep(self.what, f"{place(threads)}, {isa}", count_of)
        return {name: n for name, n in count_of.items() if n and name in samples}

    def _pinned(self, text: str) -> int:
        if text.isascii() and text.isdigit() and int(text) in self.pins:
            return int(text)
        raise RequestError(
            f"{self.variable}: must lie in {self.pins[0]}..{self.pins[-1]}, but got {shown(text)}"
        )


def samples_of(weights: Iterable[PackedWeight]) -> dict[str, list[PackedWeight]]:
    """Return weights of one shape for each format.

    They are the smallest that a step is timed well with and that are more than a cache holds, else
    those of the most bytes.
    """
    alike: dict[str, dict[tuple[int, int], list[PackedWeight]]] = {}
    for weight in weights:
        shapes = alike.setdefault(weight.format.name, {})
        shapes.setdefault((weight.M, weight.K), []).append(weight)

    def nbytes(several: list[PackedWeight]) -> int:
        return sum(weight.nbytes for weight in several)

    samples = {}
    for name, shapes in alike.items():
        fitting = [
            several
            for several in shapes.values()
            if several[0].nbytes >= _LEAST_WEIGHT_BYTES and nbytes(several) >= LEAST_BYTES
        ]
        smallest = min(fitting, key=lambda several: several[0].nbytes, default=None)
        samples[name] = smallest or max(shapes.values(), key=nbytes)
    return samples


def step_seconds(
    packed: Sequence[PackedWeight],
    limit: Literal["direct_tokens", "joint_tokens", "tile_tokens"],
    ways: Sequence[tuple[int, int]],
    threads: Threads,
    isa: str,
    budget_s: float,
) -> dict[tuple[int, int], float] | None:
    """Time steps of so many tokens under so high a limit; None if the machine is too busy.

    packed: weights of one shape, whose rows take turns, so that all come from memory.
    """
    weights = cycle([rows.native() for weight in packed for rows in _pieces(weight)])

    def seconds_of(step: tuple[int, int]) -> float:
        weight = next(weights)
        n, value = step
        setattr(weight, limit, value)
        return _native.time_linear([weight], n, isa, threads, 1)[0]

    return usual_seconds(ways, seconds_of, budget_s)


def crossing(
    seconds: Mapping[tuple[int, int], float],
    crossings: Iterable[int],
    before: int,
    after: int,
    usual: int,
) -> int:
    """Return the number of tokens from which on to go the second way, if that gains; else 0.

    seconds: the time of a step by its number of tokens and its way: `before` or `after`, of which
    the kernels take `usual` by themselves. The crossing costs least over all steps, each of which
    weighs the same.
    """
    counts = {n for n, _ in seconds}

    def cost(way_of: Mapping[int, int]) -> float:
        least = {n: min(seconds[n, before], seconds[n, after]) for n in counts}
        return sum(seconds[n, way_of[n]] / least[n] for n in counts)

    costs = {at: cost({n: after if n >= at else before for n in counts}) for at in crossings}
    best = min(costs, key=lambda at: costs[at])
    return best if costs[best] * GAIN < cost(dict.fromkeys(counts, usual)) else 0


def _pieces(weight: PackedWeight) -> Iterator[PackedWeight]:
    """Cut a weight into pieces of whole tiles and about `_PIECE_BYTES`; rows that are left over
    are not timed."""
    size = weight.format.tile_rows
    tile_bytes = -(-weight.nbytes // len(weight.codes))
    rows = min(weight.M, max(_PIECE_BYTES // tile_bytes, 1) * size)
    return (weight.rows(first, rows) for first in range(0, weight.M - rows + 1, rows))
