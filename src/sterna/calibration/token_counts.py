"""Numbers of tokens at which kernels change their way, chosen for each format."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sterna import _native
from sterna.calibration.measured import keep, kept, place
from sterna.checkpoints.cache import cache_dir
from sterna.errors import RequestError, shown
from sterna.formats import PackedWeight
from sterna.runtime import Threads

__all__ = ["Measure", "TokenCount"]

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
