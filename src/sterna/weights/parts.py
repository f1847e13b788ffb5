"""The requests of an architecture to a source of weights: linear layers, and places of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["STACKED", "Linear", "OfHeads", "Stacking"]


@dataclass(frozen=True)
class Linear:
    """One linear layer of a checkpoint: tensor `name`.weight, M output and K input features.

    bias: whether the model adds the vector `name`.bias [M] to the result. exact: whether the layer
    keeps the checkpoint's format even if the user asks for another one, because it is small and
    decisive, such as a router. In the name of a layer of experts, `{}` is an expert's number.
    kernel: the shape of a row as the checkpoint has it, for a convolution of patches that do not
    overlap; (): [K].
    """

    name: str
    M: int
    K: int
    bias: bool = False
    exact: bool = False
    kernel: tuple[int, ...] = ()

    def of_expert(self, expert: int) -> Linear:
        """Return the layer of one expert."""
        return replace(self, name=self.name.replace("{}", str(expert)))


@dataclass(frozen=True)
class Stacking:
    """The place of an expert's matrix in a tensor of all experts.

    transposed: floats are [K, M]. alternating: rows of two parts take turns; otherwise all rows of
    the first precede the second's.
    """

    transposed: bool = False
    alternating: bool = False

    def rows(self, parts: list[Linear], part: Linear) -> slice:
        """Return the rows of a part."""
        at = parts.index(part)
        if self.alternating:
            return slice(at, None, len(parts))
        first = sum(p.M for p in parts[:at])
        return slice(first, first + part.M)

    def order(self, parts: list[Linear]) -> npt.NDArray[np.int64] | None:
        """Return indices of stored rows that put the parts in sequence; None if they are so."""
        if not self.alternating or len(parts) == 1:
            return None
        every = np.arange(sum(part.M for part in parts), dtype=np.int64)
        return np.concatenate([every[self.rows(parts, part)] for part in parts])


STACKED = Stacking()


@dataclass(frozen=True)
class OfHeads(Stacking):
    """The place of a head's matrix in a linear layer of all heads, the rows of one after another's.

    module: the layer's name. rows: how many rows a head has; first: the one of them where the
    matrix begins. transposed: it is stored as [K, M].
    """

    module: str = ""
    rows_of_head: int = 0
    first: int = 0

    def whole(self, part: Linear, heads: int) -> Linear:
        """Return the layer of all heads."""
        return Linear(self.module, heads * self.rows_of_head, part.M if self.transposed else part.K)

    def of(self, bits: npt.NDArray[Any], head: int, part: Linear) -> npt.NDArray[Any]:
        """Return a head's matrix [M, K] of the rows of all."""
        begin = head * self.rows_of_head + self.first
        own = bits[begin : begin + (part.K if self.transposed else part.M)]
        return np.ascontiguousarray(own.T if self.transposed else own)
