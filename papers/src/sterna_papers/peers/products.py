"""Matrix products as a participant: y [n, M] = x [n, K] W^T, compared with exact integers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from sterna.formats import GROUP_K
from sterna_papers.peers.case import F32, Case, Options, matrices

__all__ = ["MIN_SECONDS", "Products"]

#: A model's weights come from memory, so a product with few tokens rotates over copies of W that
#: together exceed the caches (the largest L3 of common servers is below this). With many tokens the
#: weights are a small part of the traffic: a few copies, so that none is in L2.
FEW_TOKENS = 16
ROTATION_BYTES = 512 << 20
MIN_COPIES, MAX_COPIES = 3, 256
MIN_SECONDS = 0.3  # the least time of all calls of a measurement


class Products(ABC):
    """The base of participants that multiply: a subclass packs W and calls its kernel.

    x holds whole numbers in -127..127, and each 32 of them have a 127, so that the symmetric int8
    scale of a token, or of a block of 32 or more, is 1. W is ternary. Sums stay below
    127 * 65536 < 2^24, so they are exact in float32 in any order. One reference serves every type;
    `tolerance` bounds the rounding of a type's output.
    """

    tolerance = 0.0  # relative to the exact result

    def __init__(self, options: Options) -> None:
        self.options = options
        self.cases = matrices(options)
        self._case: Case | None = None
        self._next = 0

    @abstractmethod
    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack W, int8 [M, K], levels -1..1; returns the bytes of W that one product reads."""

    @abstractmethod
    def copy(self, count: int) -> None:
        """Hold `count` copies of the packed W, at different addresses."""

    @abstractmethod
    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x, int8 [n, K], in the peer's own type."""

    @abstractmethod
    def multiply(self, copy: int) -> object:
        """Compute one product with a copy of W; calls of this are timed."""

    @abstractmethod
    def result(self, y: object) -> F32:
        """Convert what `multiply` returned to float32 [n, M]."""

    @abstractmethod
    def release(self) -> None:
        """Drop the weights and the input."""

    def weight_bytes(self, case: Case) -> float | None:
        """Return the bytes of W that one product reads."""
        self._prepare(case)
        return float(self._bytes)

    def check(self, case: Case) -> tuple[bool, str]:
        """Compare all outputs with the exact integer product."""
        self._prepare(case)
        wrong = self._wrong(self.multiply(0))
        limit = f"relative {self.tolerance:.1e}" if self.tolerance else "exact"
        return wrong == 0, f"{wrong} of {self._y.size} outputs differ from the integers ({limit})"

    def time(self, case: Case) -> tuple[float, bool]:
        """Return the mean seconds of a product over all copies, and whether the last was right."""
        self._prepare(case)
        self._rotate(1)  # wakes the threads
        calls, took = 0, 0.0
        while took < MIN_SECONDS:
            seconds, y = self._rotate(max(1, calls))
            took, calls = took + seconds, calls + max(1, calls)
        return took / calls, self._wrong(y) == 0

    def _rotate(self, calls: int) -> tuple[float, object]:
        begin = time.perf_counter()
        for i in range(self._next, self._next + calls):
            y = self.multiply(i % self._copies)
        took = time.perf_counter() - begin
        self._next += calls
        return took, y

    def _prepare(self, case: Case) -> None:
        if case == self._case:
            return
        assert case.M is not None
        assert case.K is not None
        rng = np.random.default_rng(0)
        if self._case is None or (self._case.M, self._case.K) != (case.M, case.K):
            if self._case is not None:
                self.release()
            self._weight = rng.integers(-1, 2, (case.M, case.K), np.int8)
        self._x = rng.integers(-127, 128, (case.n, case.K), np.int16).astype(np.int8)
        self._x[:, ::GROUP_K] = 127
        self._y = self._x.astype(np.float32) @ self._weight.T.astype(np.float32)
        self._bytes = self.pack(self._weight, case.n)
        enough = -(-ROTATION_BYTES // self._bytes) if case.n <= FEW_TOKENS else MIN_COPIES
        self._copies = min(MAX_COPIES, max(MIN_COPIES, enough))
        self.copy(self._copies)
        self.input(self._x)
        self._rotate(self._copies)  # a library may prepare each weight at its first use
        self._case = case

    def _wrong(self, y: object) -> int:
        error = np.abs(self.result(y) - self._y)
        return int((~(error <= self.tolerance * np.abs(self._y))).sum())
