"""numpy as a participant: the sgemm of its BLAS, which is OpenBLAS or MKL."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna_papers.peers.case import F32, Options, Part
from sterna_papers.peers.products import Products

__all__ = ["create"]


class Float32(Products):
    """np.matmul into an output array that exists already."""

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Transpose the weight, as the product needs it."""
        self.weight = np.ascontiguousarray(weight.T, np.float32)
        return self.weight.nbytes

    def copy(self, count: int) -> None:
        """Make `count` arrays of the weight."""
        self.weights = [self.weight.copy() for _ in range(count)]

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as float32, which holds its whole numbers exactly."""
        self.x = x.astype(np.float32)
        self.y = np.empty((len(x), self.weight.shape[1]), np.float32)

    def multiply(self, copy: int) -> object:
        """Compute y = x W^T."""
        return np.matmul(self.x, self.weights[copy], out=self.y)

    def result(self, y: object) -> F32:
        """Return the array as float32."""
        return np.asarray(y, np.float32)

    def release(self) -> None:
        self.weights = []


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant. variant: f32. The process's environment sets the threads."""
    return np.__version__, options.variant, None, [Float32(options)]
