"""The weights of a tower, in the format that it runs in."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sterna import formats
from sterna.formats import PackedWeight
from sterna.weights.sources import Linear, WeightSource
from sterna.weights.wrapped import WrappedWeights

__all__ = ["DEFAULT", "TowerWeights"]

#: The format of towers whose file has floats, and that of matrices whose rows are no whole blocks;
#: docs/how-to/images.md has what they lose.
DEFAULT, OTHERWISE = "q8_0", "i8"


@dataclass(frozen=True)
class TowerWeights(WrappedWeights):
    """The source of a tower's weights, by names of the checkpoint.

    source: in the format; otherwise: in `OTHERWISE`.
    """

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

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return the rows of `parts`."""
        fits = self.format is None or parts[0].K % formats.get(self.format).scales.block == 0
        return (self.source if fits else self.otherwise).matrix(name, parts)


def _in(format: str | None, source: WeightSource) -> WeightSource:
    # All sources are dataclasses, which their protocol cannot say.
    return replace(source, format=format)  # type: ignore[type-var]
