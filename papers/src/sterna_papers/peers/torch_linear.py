"""PyTorch as a participant: bf16 `F.linear`, and oneDNN's int8 product with prepacked weights."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna_papers.peers.case import F32, Options, Part, require
from sterna_papers.peers.products import Products

__all__ = ["create"]


class TorchProducts(Products):
    """The common part of both: lists of tensors."""

    def __init__(self, options: Options, torch: Any) -> None:
        super().__init__(options)
        self.torch = torch
        self.weights: list[Any] = []

    def copy(self, count: int) -> None:
        """Clone the packed weight, or pack a prepacked one again."""
        self.weights = [self._pack() for _ in range(count)]

    @abstractmethod
    def _pack(self) -> Any: ...

    def result(self, y: Any) -> F32:
        """Return the tensor as a float32 array."""
        values: F32 = y.float().numpy()
        return values

    def release(self) -> None:
        self.weights = []


class Bf16(TorchProducts):
    """torch.nn.functional.linear on bf16 tensors."""

    #: The sums are exact; the output is rounded to 8 bits of significand.
    tolerance = 2.0**-8

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Convert levels to bf16, which is exact."""
        self.weight = self.torch.from_numpy(weight).bfloat16()
        return 2 * weight.size

    def _pack(self) -> Any:
        return self.weight.clone()

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as bf16, which is exact for whole numbers up to 127."""
        self.x = self.torch.from_numpy(x).bfloat16()

    def multiply(self, copy: int) -> object:
        """Compute y = x W^T."""
        return self.torch.nn.functional.linear(self.x, self.weights[copy])


class OneDnnInt8(TorchProducts):
    """torch.ops.onednn.qlinear_pointwise: int8 x, prepacked int8 W, float32 y, row scales."""

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Prepack the weight; oneDNN chooses the layout by the number of tokens."""
        self.weight, self.n = self.torch.from_numpy(weight), n
        self.scale = self.torch.ones(len(weight))
        self.zero = self.torch.zeros(len(weight), dtype=self.torch.int32)
        return weight.size

    def _pack(self) -> Any:
        return self.torch.ops.onednn.qlinear_prepack(self.weight, [self.n, self.weight.shape[1]])

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as int8 with scale 1 and zero point 0."""
        self.x = self.torch.from_numpy(x)

    def multiply(self, copy: int) -> object:
        """Compute y = x W^T, dequantised in the same call."""
        return self.torch.ops.onednn.qlinear_pointwise(
            self.x, 1.0, 0, self.weights[copy], self.scale, self.zero, None,
            1.0, 0, self.torch.float32, "none", [], "",
        )  # fmt: skip


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant. variant: bf16 or int8."""
    torch = require("torch", "torch")
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    kind = {"bf16": Bf16, "int8": OneDnnInt8}[options.variant]
    return torch.__version__, options.variant, None, [kind(options, torch)]
