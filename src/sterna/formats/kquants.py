"""How the K-quants q2_k ... q6_k are rounded; scales/superblocks.py has their scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, half_or_smallest
from sterna.formats.base import Format
from sterna.formats.scales import SuperBlockScales
from sterna.formats.scales.numbers import COARSE
from sterna.formats.scales.superblocks import SUPER_K

__all__ = ["KQuant"]

#: Factors of what a group's largest value asks for: rounding takes that of the least square error.
SEARCH = np.linspace(0.7, 1.1, 9, dtype=np.float32)
#: Those where errors are weighted: the largest value may be one that hardly counts.
WEIGHTED_SEARCH = np.linspace(0.4, 1.15, 16, dtype=np.float32)
#: Parts of a group's smallest value that are tried as its minimum then.
MINIMA = (1.0, 0.9, 0.8, 0.65, 0.5)


class KQuant(Format):
    """A format of super-blocks."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round super-blocks float32 [B, 256] -> (levels int8 [B, 256], scales float32 [B, ...]).

        A group's scale is one of nine around what its largest value (or range) asks for, that of
        the least square error; these are rounded to whole multiples of a 16-bit float. Simpler than
        ggml's iterated search, so ggml's files have smaller errors.
        """
        return self._made(blocks, None, np.float32(1))

    def weighted_blocks(self, blocks: F32, weight: F32) -> Iterator[tuple[npt.NDArray[Any], F32]]:
        """As `quantize_blocks`, several to choose from, with errors that count by `weight`.

        weight: float32 [B, 256]. Minima are some parts of a group's smallest value.
        """
        layout = self.scales
        assert isinstance(layout, SuperBlockScales)
        for part in MINIMA if layout.minima else MINIMA[:1]:
            yield self._made(blocks, weight, np.float32(part))

    def _made(
        self, blocks: F32, weight: F32 | None, part: np.float32
    ) -> tuple[npt.NDArray[Any], F32]:
        layout = self.scales
        assert isinstance(layout, SuperBlockScales)
        groups = np.asarray(blocks, np.float32).reshape(-1, layout.groups, layout.group)
        e = None if weight is None else weight.reshape(groups.shape)
        m = np.minimum(groups.min(axis=2, initial=0.0), 0) if layout.minima else np.float32(0)
        if part != 1:
            m = m * part
        if layout.minimum_range:
            d_m, whole_m = _whole(m, 0, layout.minimum_range)
            m = (d_m[:, None] * whole_m)[..., None]
            scales = self._searched(groups - m, (groups - m).max(axis=2, initial=0.0), 1, e)
        else:
            at = np.abs(groups).argmax(axis=2)[..., None]
            scales = self._searched(groups, np.take_along_axis(groups, at, 2)[..., 0], 0, e)
        d, whole = _whole(scales, 1 if layout.minima else 0, layout.scale_range)
        levels = self._levels(groups - m, d[:, None] * whole)
        parts = np.concatenate([d[:, None], whole], axis=1)
        # An f16 as small as this has few bits left: zeros may be nearer than what it makes.
        coarse = np.flatnonzero(np.abs(d) < COARSE)
        w, real = groups[coarse], levels[coarse] * (d[:, None] * whole)[coarse, :, None]
        error = real + (m[coarse] if layout.minima else m) - w
        zeros = coarse[np.square(error).sum(axis=(1, 2)) > np.square(w).sum(axis=(1, 2))]
        parts[zeros] = 0
        if layout.minima:
            d_m[zeros], whole_m[zeros] = 0, 0
            parts = np.stack([parts, np.concatenate([d_m[:, None], whole_m], axis=1)], axis=1)
        return levels.reshape(len(blocks), SUPER_K).astype(np.int8), parts

    def _levels(self, groups: F32, scales: F32) -> F32:
        """Groups [B, G, group] over their scales [B, G], to the nearest level."""
        assert self.codebook is not None
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = np.where(scales[..., None] == 0, np.float32(0), groups / scales[..., None])
        return np.asarray(np.clip(np.rint(ratio), *self.codebook.ends), np.float32)

    def _searched(self, groups: F32, largest: F32, end: int, weight: F32 | None) -> F32:
        """Scales [B, G] around the one that puts `largest` on the first (0) or last (1) level.

        weight: of the squares of errors, float32 [B, G, group]; None: all count the same.
        """
        assert self.codebook is not None
        start = largest / np.float32(self.codebook.ends[end])
        best, least = start, np.full(start.shape, np.inf, np.float32)
        for factor in SEARCH if weight is None else WEIGHTED_SEARCH:
            scales = start * factor
            rounded = self._levels(groups, scales) * scales[..., None]
            with np.errstate(over="ignore"):
                error = np.square(rounded - groups)
                error = (error if weight is None else error * weight).sum(axis=2)
            best, least = np.where(error < least, scales, best), np.minimum(error, least)
        return np.asarray(best, np.float32)


def _whole(values: F32, end: int, limits: tuple[int, int]) -> tuple[F32, F32]:
    """Values [B, G] as d [B] times whole numbers [B, G]: the largest is on the given limit.

    The other end of `limits` is as far from zero or nearer. d is rounded to f16 first, and to the
    smallest rather than to 0. end: 0 where the limit's sign is that of the largest value's opposite
    (ggml's choice of signs), 1 where values are not negative.
    """
    at = np.abs(values).argmax(axis=1)[:, None]
    largest = np.take_along_axis(values, at, 1)[:, 0]
    d = largest / np.float32(limits[0] if limits[0] and not end else limits[1])
    d = half_or_smallest(d)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        whole = np.where(d[:, None] == 0, np.float32(0), values / d[:, None])
    return d, np.clip(np.rint(whole), *limits).astype(np.float32)
