"""From rows in one weight format to rows in another, in pieces of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.convert.loss import Loss
from sterna.errors import RequestError, shown
from sterna.formats import Format, PackedWeight, codec

__all__ = [
    "CHUNK_WEIGHTS",
    "Rows",
    "holds",
    "layer_scale",
    "row_chunks",
    "with_scales",
]

F32 = npt.NDArray[np.float32]
TERNARY = (-1, 1)
CHUNK_WEIGHTS = 1 << 21  # float32: 8 MiB, of which a rounding has half a dozen at once


def row_chunks(weight: PackedWeight, whole: bool = False) -> Iterator[PackedWeight]:
    """The rows of a weight in order, as weights of about CHUNK_WEIGHTS that share its memory."""
    f = weight.format
    tiles = max(1, CHUNK_WEIGHTS // (f.tile_rows * weight.K))
    step = weight.M if whole else tiles * f.tile_rows
    for start in range(0, weight.M, step):
        rows = slice(start, min(start + step, weight.M))
        of_tiles = slice(start // f.tile_rows, -(-rows.stop // f.tile_rows))
        scale = f.scales.rows_of(weight.scale, rows, f.layout)
        yield PackedWeight(f, rows.stop - start, weight.K, weight.codes[of_tiles], scale)


def layer_scale(format: Format) -> str | None:
    """Where rounding a layer to a format puts scales: in rows, unless its name says otherwise."""
    return None if ":" in format.name else "row"


def holds(new: Format, old: Format) -> bool:
    """Whether a format has all levels of another and may keep them; scales may be rounded.

    Where old groups do not consist of new ones, it is better to round again, but for +-1 and 0.
    """
    if not (new.codebook and old.codebook) or _is_special(new) or _is_special(old):
        return False
    scales = _finer(new, old) or new.codebook.ends == old.codebook.ends == TERNARY
    return new.codebook.has_all(old.codebook.levels) and scales


def _finer(new: Format, old: Format) -> bool:
    """Whether each new scale is one of the old ones."""
    group = new.scales.group
    return not old.scales.group or (bool(group) and old.scales.group % group == 0)


def _is_special(f: Format) -> bool:
    """Whether levels are a codebook's, or scales not any float, or have a minimum beside them."""
    is_even = f.codebook is None or f.codebook.is_even
    return not (is_even and f.scales.single and f.scales.any_number)


@dataclass
class Rows:
    """A weight in the making: `add` takes its rows from weights in any format, in order.

    M: rows that there will be at most. scale: as `codec.rounded` takes it.
    """

    format: Format
    M: int
    K: int
    scale: str | None
    threads: int
    losses: list[Loss] = field(default_factory=list)
    _codes: npt.NDArray[np.uint8] = field(init=False)
    _scales: list[tuple[int, npt.NDArray[Any]]] = field(default_factory=list)  # of so many rows
    _rest: list[npt.NDArray[Any]] = field(default_factory=list)  # rows that fill no tile yet
    _done: int = 0

    def __post_init__(self) -> None:
        """Checks the shape; RequestError."""
        f = self.format
        f.check_shape(self.M, self.K)
        # Pages that are not written do not exist yet.
        self._codes = np.empty((f.n_tiles(self.M), f.tile_bytes(self.K)), np.uint8)

    def add(self, weight: PackedWeight, name: str) -> Loss:
        """All rows of a weight, which becomes one entry of `losses`."""
        loss = Loss(name, weight.M, weight.K, weight.format.name, self.format.name)
        self.losses.append(loss)
        aligned = weight.M % self.format.tile_rows == 0 and not self._rest
        if weight.format == self.format.name and aligned:
            self._copy_tiles(weight)
            return loss
        for levels, scale in converted(weight, self.format, self.scale, loss, self.threads):
            self._take(levels, scale)
        return loss

    def finish(self) -> PackedWeight:
        """The weight of the rows so far."""
        self._pack(final=True)
        codes = self._codes[: self.format.n_tiles(self._done)]
        made = PackedWeight(self.format, self._done, self.K, codes, self._scale())
        rows = 0
        for loss in self.losses:
            before, rows = made.nbytes * rows // made.M, rows + loss.M
            loss.nbytes = made.nbytes * rows // made.M - before
        return made

    def _copy_tiles(self, weight: PackedWeight) -> None:
        start = self._done // self.format.tile_rows
        self._codes[start : start + len(weight.codes)] = weight.codes
        self._scales.append((weight.M, weight.scales))
        self._done += weight.M

    def _take(self, levels: npt.NDArray[Any], scale: npt.NDArray[Any]) -> None:
        self._scales.append((len(levels), scale))
        self._rest.append(levels)
        self._pack(final=False)

    def _pack(self, final: bool) -> None:
        """The rows that fill tiles; at the end all."""
        rows = sum(map(len, self._rest))
        packed = rows if final else rows // self.format.tile_rows * self.format.tile_rows
        if packed == 0:
            return
        levels = self._rest[0] if len(self._rest) == 1 else np.concatenate(self._rest)
        codes = codec.codes_of(self.format, levels[:packed], self.threads)
        start = self._done // self.format.tile_rows
        self._codes[start : start + len(codes)] = codes
        self._done += packed
        self._rest = [levels[packed:].copy()] if packed < rows else []

    def _scale(self) -> npt.NDArray[Any]:
        scales = self.format.scales
        joined = scales.joined(self._scales)
        return scales.pack(joined, self.format.layout, self._done, self.K)


def _base(f: Format) -> str:
    """Its name without what it says of scales."""
    return f.name.partition(":")[0]


def converted(
    weight: PackedWeight, new: Format, scale: str | None, loss: Loss, threads: int
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The rows of a weight in another format, some at a time: (levels, scales) as `ops.unpack`, or
    a float format's bits and 1.

    Levels that the format has are kept, with a scale that makes them worth the same; others are
    rounded. `loss` learns what changed.
    """
    old = weight.format
    same = _base(old) == _base(new) and old.scales.group == new.scales.group
    keep = new.scaled and (same or holds(new, old))
    # A scale for all of a tensor follows from all of it.
    own_scales = keep and (same or _finer(new, old))
    whole = not own_scales and new.scaled and (scale or new.scales.default) == "tensor"
    for chunk in row_chunks(weight, whole):
        if keep:
            yield _kept(chunk, new, whole, loss, threads)
        else:
            values = ops.dequantize(chunk, threads=threads)
            if new.scaled:
                made = _rounded(new, values, scale)
                loss.add(values, codec.real_values(new, *made))
                yield made
            else:
                bits = new.encode(values)
                loss.add(values, formats.float_format(new.name).floats(bits))
                yield bits, np.ones((), np.float32)


def _kept(
    chunk: PackedWeight, new: Format, whole: bool, loss: Loss, threads: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    old = chunk.format
    levels, scale = ops.unpack(chunk, threads=threads)
    merged = not _finer(new, old)
    if merged:
        scale = _merged(new, old, levels, scale, whole)
    elif new.scales.group and not old.scales.group:
        scale = np.broadcast_to(np.reshape(scale, (-1, 1)), new.scales.shape(chunk.M, chunk.K))
    elif new.scales.group != old.scales.group:
        scale = np.repeat(scale, old.scales.group // new.scales.group, axis=1)
    scale = np.asarray(scale * np.float32(old.value / new.value), np.float32)
    stored = new.check_scales(scale, chunk.M, chunk.K)
    if merged or not np.array_equal(stored, scale):
        loss.add(ops.dequantize(chunk, threads=threads), codec.real_values(new, levels, stored))
    return levels, stored


def _merged(new: Format, old: Format, levels: npt.NDArray[Any], scale: F32, whole: bool) -> F32:
    """The scales of new groups, rows or (whole) all, of levels -1, 0, 1: of least square error.

    So what is the same in all old groups stays what it is: every sum here is exact.
    """
    M, K = levels.shape
    group = new.scales.group
    part = math.gcd(old.scales.group, group or K)
    counts = np.abs(levels).reshape(M, -1, part).sum(axis=2, dtype=np.float64)
    totals = counts * np.repeat(scale, old.scales.group // part, axis=1)
    to = (M, K // group, -1) if group else (1 if whole else M, -1)
    total, count = (a.reshape(to).sum(axis=-1) for a in (totals, counts))
    scale = np.asarray(total / np.maximum(count, 1), np.float32)
    return scale[0] if whole else scale


def _rounded(
    format: Format, values: F32, scale: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Real weights -> (levels, scales), the scales being those that the format can hold."""
    levels, scales = codec.rounded(format, values, scale)
    return levels, format.check_scales(scales, *values.shape)


def with_scales(format: str, scales: str | None) -> str:
    """The format's name with `scales`: "tensor", "row" or "group:N"; RequestError for another."""
    if scales is None:
        return format
    kind, _, size = scales.partition(":")
    if kind in ("tensor", "row") and not size:
        return formats.get(f"{format}:{kind}").name
    if kind == "group" and size:
        return formats.get(f"{format}:g{size}").name
    raise RequestError(
        f"scales: must be tensor, row or group:N such as group:128, not {shown(scales)}"
    )
