"""`WrappedWeights`: a source of weights that passes all requests on to another source.

Subclasses override the requests that they answer differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna.formats import Experts, PackedWeight, Shadow
from sterna.weights.sources import STACKED, Linear, Stacking, WeightSource

__all__ = ["WrappedWeights"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class WrappedWeights:
    """Answers each request as `source` does; `WeightSource` describes the methods."""

    source: WeightSource

    @property
    def modules(self) -> Mapping[str, PackedWeight]:
        """The matrices and tables handed out so far, by name."""
        return self.source.modules

    @property
    def tensors(self) -> Mapping[str, F32]:
        """The vectors handed out so far, float32, by name."""
        return self.source.tensors

    def has(self, name: str) -> bool:
        """Whether there is a matrix or a norm of this name."""
        return self.source.has(name)

    def vector(self, name: str, *shape: int) -> F32:
        """Return a small array, float32 of this shape."""
        return self.source.vector(name, *shape)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return the rows of `parts`."""
        return self.source.matrix(name, parts)

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return the rows of `parts` of all experts."""
        return self.source.experts(name, parts, count, stacking)

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Return the experts' biases, float32 [count, sum M]."""
        return self.source.experts_bias(name, parts, count, stacking)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return the embedding or the output head [vocab, hidden]."""
        return self.source.table(name, M, K)

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""
        return self.source.shadow(table)
