"""The weights of a tower, in the format that it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.weights.sources import STACKED, Linear, Stacking, WeightSource

__all__ = ["DEFAULT", "TowerWeights"]

F32 = npt.NDArray[np.float32]
#: The format of towers whose file has floats, and that of matrices whose rows are no whole blocks;
#: docs/how-to/images.md has what they lose.
DEFAULT, OTHERWISE = "q8_0", "i8"


@dataclass(frozen=True)
class TowerWeights:
    """The source of a tower's weights, by names of the checkpoint.

    source: in the format; otherwise: in `OTHERWISE`.
    """

    source: WeightSource
    otherwise: WeightSource
    format: str | None

    @classmethod
    def of(cls, source: WeightSource, asked: str | None, floats: bool) -> TowerWeights:
        """Return the weights in a format. None: `DEFAULT` where the file has floats, as they are
        elsewhere. Raises RequestError for an unknown format."""
        format = asked or (DEFAULT if floats else None)
        if format is not None:
            format = formats.get(format).name
        return cls(_in(format, source), _in(OTHERWISE, source), format)

    @property
    def modules(self) -> Mapping[str, PackedWeight]:
        """The source's packed matrices, by name."""
        return self.source.modules

    @property
    def tensors(self) -> Mapping[str, F32]:
        """The source's float32 vectors, by name."""
        return self.source.tensors

    def has(self, name: str) -> bool:
        """Whether there is a matrix of this name."""
        return self.source.has(name)

    def vector(self, name: str, *shape: int) -> F32:
        """Return a small array, float32 of this shape."""
        return self.source.vector(name, *shape)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return the rows of `parts`."""
        fits = self.format is None or parts[0].K % formats.get(self.format).scales.block == 0
        return (self.source if fits else self.otherwise).matrix(name, parts)

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return the rows of `parts` of all experts."""
        return self.source.experts(name, parts, count, stacking)

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Return the experts' biases."""
        return self.source.experts_bias(name, parts, count, stacking)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return a table."""
        return self.source.table(name, M, K)

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the shadow of a table."""
        return self.source.shadow(table)


def _in(format: str | None, source: WeightSource) -> WeightSource:
    # All sources are dataclasses, which their protocol cannot say.
    return replace(source, format=format)  # type: ignore[type-var]
