"""How the K-quants q2_k ... q6_k are rounded; scales/superblocks.py has their scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats import search
from sterna.formats.arithmetic import F32, half_or_smallest, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.scales import SuperBlockScales
from sterna.formats.scales.numbers import COARSE
from sterna.formats.scales.superblocks import SUPER_K

__all__ = ["KQuant", "Whole"]

Levels = npt.NDArray[Any]


class KQuant(Format):
    """A format of super-blocks."""

    @property
    def _layout(self) -> SuperBlockScales:
        assert isinstance(self.scales, SuperBlockScales)
        return self.scales

    def quantize_blocks(self, blocks: F32) -> tuple[Levels, F32]:
        """Round super-blocks float32 [B, 256] -> (levels int8 [B, 256], scales float32 [B, ...]).

        A group's largest value (or range) decides its scale. Scales are rounded to whole multiples
        of a 16-bit float.
        """
        assert self.codebook is not None
        groups = self._groups(blocks)
        if self.scales.minima:
            m = np.minimum(groups.min(axis=0), 0)
            d = (groups.max(axis=0, initial=0.0) - m) / np.float32(self.codebook.high)
            whole_m = Whole.of(self._by_block(m), 0, self._layout.minimum_range)
            return self._made(groups, self._by_block(np.asarray(d, np.float32)), whole_m)
        largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=0)[None], 0)[0]
        return self._made(groups, self._by_block(largest / np.float32(self.codebook.low)), None)

    def searched_blocks(self, blocks: F32, weight: F32) -> tuple[Levels, F32]:
        """Round as `quantize_blocks`, with scales of less error; weight [B, 256]: of errors.

        The search treats each group as if it had a scale (and minimum) of its own. Then minima are
        rounded, and scales are fitted to them and rounded.
        """
        assert self.codebook is not None
        groups = self._groups(blocks)
        shift = np.frexp(np.abs(blocks).max(axis=1, initial=0.0))[1].astype(np.int32)
        of_group = np.repeat(shift, self._layout.groups)
        x = np.ldexp(groups, -of_group)
        e, nothing = self._groups(weight), np.zeros(x.shape[1], np.float32)
        weighted = search.Weighted(x, e)
        whole_m = None
        if self._layout.minimum_range:
            d, m = search.scale_and_minimum(weighted, self.codebook, (nothing, nothing), True)
            whole_m = Whole.of(self._by_block(np.ldexp(m, of_group)), 0, self._layout.minimum_range)
            minima = np.ldexp(whole_m.values.reshape(-1), -of_group)
            above = search.Weighted(x - minima, e)
            d = search.fitted(above, self.codebook, search.fitted(above, self.codebook, d))
        else:
            d = search.scales(weighted, self.codebook, nothing)
        return self._made(groups, self._by_block(np.ldexp(d, of_group)), whole_m)

    def _groups(self, blocks: F32) -> F32:
        """Reorder [B, 256] to [group, B * groups]."""
        return np.ascontiguousarray(np.asarray(blocks, np.float32).reshape(-1, self.scales.group).T)

    def _by_block(self, values: F32) -> F32:
        """Reorder [B * groups] to [B, groups]."""
        return np.asarray(values, np.float32).reshape(-1, self._layout.groups)

    def _made(self, groups: F32, scales: F32, minima: Whole | None) -> tuple[Levels, F32]:
        """Round groups [group, B * groups], for scales [B, groups] and minima, to levels, parts."""
        layout = self._layout
        end = 1 if layout.minima else 0
        whole = Whole.of(scales, end, layout.scale_range)
        m = np.float32(0) if minima is None else minima.values.reshape(-1)
        d = whole.values.reshape(-1)
        levels = self._levels(groups - m, d)
        # An f16 as small as this has few bits left: zeros may be nearer than its multiples.
        error, size = (
            np.square(values, dtype=np.float64).sum(axis=0).reshape(scales.shape).sum(axis=1)
            for values in (levels * d + m - groups, groups)
        )
        zeros = (np.abs(whole.d) < COARSE) & (error > size)
        parts = [part.parts(zeros) for part in (whole, *([minima] if minima else []))]
        made = np.stack(parts, axis=1) if minima else parts[0]
        return (
            np.ascontiguousarray(levels.T).reshape(-1, SUPER_K).astype(np.int8),
            np.asarray(made, np.float32),
        )

    def _levels(self, groups: F32, scales: F32) -> F32:
        """Round groups [group, G] over their scales [G] to the nearest level."""
        assert self.codebook is not None
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.nan_to_num(groups * inverse_or_zero(scales))
        return search.Nearest(self.codebook)(ratios)


@dataclass(frozen=True)
class Whole:
    """Values as d [B] times whole numbers [B, G]."""

    d: F32
    whole: F32

    @classmethod
    def of(cls, values: F32, end: int, limits: tuple[int, int] | None) -> Whole:
        """Put the largest of values [B, G] on the given limit.

        The other end of `limits` is as far from zero or nearer. d is rounded to f16 first, and to
        the smallest rather than to 0. end: 0 where the limit's sign is that of the largest value's
        opposite (ggml's choice of signs), 1 where values are not negative.
        """
        assert limits is not None
        at = np.abs(values).argmax(axis=1)[:, None]
        largest = np.take_along_axis(values, at, 1)[:, 0]
        d = half_or_smallest(
            largest / np.float32(limits[0] if limits[0] and not end else limits[1])
        )
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            whole = np.where(d[:, None] == 0, np.float32(0), values / d[:, None])
        return cls(d, np.clip(np.rint(whole), *limits).astype(np.float32))

    @property
    def values(self) -> F32:
        """d times whole numbers, [B, G]."""
        return np.asarray(self.d[:, None] * self.whole, np.float32)

    def parts(self, zeros: npt.NDArray[np.bool_]) -> F32:
        """Return [B, 1 + G], 0 in the blocks that are to be zeros."""
        parts = np.concatenate([self.d[:, None], self.whole], axis=1)
        parts[zeros] = 0
        return parts
