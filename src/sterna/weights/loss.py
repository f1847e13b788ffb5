"""The error that a conversion to another format adds to a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Loss"]

F32 = npt.NDArray[np.float32]


@dataclass
class Loss:
    """The formats of one matrix before and after, and the error of its weights.

    stored, format: the formats before and after. nbytes: bytes of its codes and scales after; if
    several matrices share a packed weight, its share by rows. exact: whether every weight kept its
    value. max_error: the largest |w' - w|. moved_zeros: weights that were 0 and are not any more,
    as in a format without a zero.
    """

    name: str
    M: int
    K: int
    stored: str = ""
    format: str = ""
    nbytes: int = 0
    max_error: float = 0.0
    moved_zeros: int = 0
    _error: float = 0.0  # sum of (w' - w)^2, in float64
    _signal: float = 0.0  # sum of w^2

    @property
    def exact(self) -> bool:
        """Whether every weight kept its value."""
        return self.max_error == 0

    @property
    def relative_rms(self) -> float:
        """Root of mean squares of the error over that of the weights; 0 where nothing is lost."""
        if self._error == 0:
            return 0.0
        return math.sqrt(self._error / self._signal) if self._signal else math.inf

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio in dB: infinite where nothing is lost."""
        if self._error == 0:
            return math.inf
        return 10 * math.log10(self._signal / self._error) if self._signal else -math.inf

    def merge(self, other: Loss) -> None:
        """Add the errors of other rows of the same matrix."""
        self.max_error = max(self.max_error, other.max_error)
        self.moved_zeros += other.moved_zeros
        self._error += other._error
        self._signal += other._signal

    def add(self, before: F32, after: F32) -> None:
        """Add the errors of some weights."""
        self._signal += _squares(before)
        error = after - before
        largest = float(max(error.max(initial=0.0), -error.min(initial=0.0)))
        if largest > 0:
            self.max_error = max(self.max_error, largest)
            self._error += _squares(error)
            self.moved_zeros += int(np.count_nonzero(error[before == 0]))

    def row(self) -> dict[str, Any]:
        """Return a row of a table or of JSON."""
        return {
            "tensor": self.name,
            "M": self.M,
            "K": self.K,
            "from": self.stored,
            "to": self.format,
            "bytes": self.nbytes,
            "exact": self.exact,
            "relative_rms_error": self.relative_rms,
            "max_error": self.max_error,
            "moved_zeros": self.moved_zeros,
            "snr_db": self.snr_db,
        }


def _squares(values: F32) -> float:
    """Sum squares in float64."""
    # numpy's dot product is avoided: its threads wait for each other when the cores are busy.
    return float(np.square(values, dtype=np.float64).sum())
