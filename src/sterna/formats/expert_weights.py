"""The same matrix of each of several experts, in one packed weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.base import Format
from sterna.formats.packed_weight import PackedWeight

__all__ = ["Experts"]


@dataclass(frozen=True, eq=False)
class Experts:
    """A matrix [M, K] of each of `count` experts: their tiles, one expert after the other.

    Each begins at a tile, so an expert is a range of tiles. Zero rows fill its last tile, and count
    as rows of `weight`.
    """

    weight: PackedWeight
    count: int
    M: int

    @property
    def K(self) -> int:
        """Input features."""
        return self.weight.K

    @property
    def format(self) -> Format:
        """The format of every expert."""
        return self.weight.format

    @classmethod
    def rows_of(cls, format_rows: int, count: int, M: int) -> int:
        """Return the rows of the one weight, in tiles of `format_rows`."""
        return count * (-(-M // format_rows) * format_rows)

    @classmethod
    def of(cls, count: int, experts: Iterable[PackedWeight], name: str) -> Experts:
        """Join `count` weights of one shape and format; RequestError, with `name`, if they differ.

        They are taken one by one, and not kept.
        """
        codes, scales, first = None, [], None
        for i, expert in enumerate(experts):
            if first is None or codes is None:
                first = expert
                tiles, nbytes = expert.codes.shape
                codes = _native.alloc(count * tiles * nbytes).reshape(count, tiles, nbytes)
            if (expert.format, expert.shape) != (first.format, first.shape):
                raise RequestError(
                    f"{name}: all experts must have one format and shape, {first.format} "
                    f"{list(first.shape)}, but expert {i} has {expert.format} "
                    f"{list(expert.shape)}; give them one --format"
                )
            codes[i] = expert.codes
            scales.append(expert.scale)
        assert first is not None
        assert codes is not None
        f, rows = first.format, cls.rows_of(first.format.tile_rows, count, first.M)
        scale = f.scales.stacked(scales, first.M, rows // count)
        packed = PackedWeight(f, rows, first.K, codes.reshape(-1, codes.shape[2]), scale)
        return cls(packed, count, first.M)

    def __getitem__(self, i: int) -> PackedWeight:
        """Return the weight of expert i, which shares memory."""
        if not 0 <= i < self.count:
            raise IndexError(i)
        return self.weight.rows(i * (self.weight.M // self.count), self.M)

    def __iter__(self) -> Iterator[PackedWeight]:
        """Yield the weights of all experts."""
        return (self[i] for i in range(self.count))
