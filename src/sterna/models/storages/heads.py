"""Heads of a width that no attention kernel has, run as wider ones with zeros in between.

Kernels take widths that are multiples of 16; 1bitLLM's -3B has heads of 100. Rotation pairs the
elements d and d + width / 2 of a head, so each half is followed by zeros:

    stored   | 0 .. 49 | 50 .. 99 |
    run      | 0 .. 49 | 6 zeros | 50 .. 99 | 6 zeros |

Zero rows of q, k and v and zero columns of o change no sum. Two means are over the width: scores
are divided by sqrt(run) where sqrt(stored) is meant, so rows of q are multiplied by
sqrt(run / stored); and a norm between attention and o, which is `norm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
WIDTH = 16  # of which the kernels take multiples


@dataclass(frozen=True)
class Heads:
    """So many heads of `stored` elements, run as `width`; both are even."""

    count: int
    stored: int
    width: int

    @property
    def places(self) -> npt.NDArray[np.intp]:
        """Where the stored elements of all heads go."""
        half = np.arange(self.stored // 2)
        head = np.concatenate([half, half + self.width // 2])
        places = np.arange(self.count)[:, None] * self.width + head
        return np.asarray(places.reshape(-1))

    def rows(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values of stored rows -> of the rows that are run, zeros between them."""
        out = np.zeros((self.count * self.width, *values.shape[1:]), values.dtype)
        out[self.places] = values
        return out

    def columns(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The same of the columns of a matrix."""
        return np.ascontiguousarray(self.rows(values.T).T)

    @property
    def q_factor(self) -> float:
        """What rows of q are multiplied by."""
        return math.sqrt(self.width / self.stored)

    def norm(self, weight: F32, eps: float) -> tuple[F32, float]:
        """(weight, eps) of an RMSNorm over all heads, whose mean then counts the zeros as well."""
        part = self.stored / self.width
        return self.rows(weight * np.float32(math.sqrt(part))), eps * part
