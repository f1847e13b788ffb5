"""A Hadamard rotation of a layer's input, which spreads the outliers of a few features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sterna import graph
from sterna.errors import RequestError, shown

__all__ = ["Rotation"]


class Rotation(graph.Rotation):
    """x -> H(signs * x) / sqrt(block), in blocks of the last dimension; it is orthogonal.

    Weights that were rotated in this way, row by row, give the same products with rotated inputs: W
    x = (R W) (R x). The sums have the order of Sterna's kernels, and so their bits.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate [..., K] -> [..., K], of x's dtype; RequestError if blocks do not divide K."""
        K, block = x.shape[-1], self.block
        if block < 1 or block & (block - 1) or K % block or K % 16:
            raise RequestError(
                f"rotation: blocks must be a power of two that divides K={K}, a multiple of 16, "
                f"but got {shown(block)}"
            )
        y = x.float()
        if self.signs is not None:
            y = y * torch.from_numpy(self.signs).to(y.device)
        half = 1
        while half < block:
            low, high = y.reshape(*x.shape[:-1], -1, 2, half).unbind(-2)
            y = torch.stack((low + high, low - high), -2).flatten(-3)
            half *= 2
        return (y * float(np.float32(1) / np.sqrt(np.float32(block)))).to(x.dtype)
