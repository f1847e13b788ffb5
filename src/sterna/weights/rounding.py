"""Converts a weight to another format: one rule decides between keeping and rounding.

Loading a packed model in another format, conversion and GGUF export all follow it. Rows are taken
in pieces of bounded size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.errors import RequestError
from sterna.formats import Format, PackedWeight, codec, weighted
from sterna.formats.feedback import Feedback
from sterna.weights.loss import Loss
from sterna.weights.packing import has_levels, layer_scale

__all__ = [
    "CHUNK_WEIGHTS",
    "RoundingOf",
    "Rows",
    "converted",
    "has_levels_of",
    "keeps",
    "plain",
    "repacked",
    "row_chunks",
]

F32 = npt.NDArray[np.float32]
TERNARY = (-1, 1)
CHUNK_WEIGHTS = 1 << 21  # float32: 8 MiB, of which a rounding has half a dozen at once
#: What rounds the weights of a name; it gets their rows in order.
RoundingOf = Callable[[str], weighted.Rounding]


def plain(name: str) -> weighted.Rounding:
    """Round each weight by itself, by `weighted.rounded`."""
    return weighted.rounded


def row_chunks(weight: PackedWeight, whole: bool = False) -> Iterator[PackedWeight]:
    """Yield the rows of a weight in order, as weights of about CHUNK_WEIGHTS that share memory."""
    f = weight.format
    tiles = max(1, CHUNK_WEIGHTS // (f.tile_rows * weight.K))
    step = weight.M if whole else tiles * f.tile_rows
    for start in range(0, weight.M, step):
        rows = slice(start, min(start + step, weight.M))
        of_tiles = slice(start // f.tile_rows, -(-rows.stop // f.tile_rows))
        scale = f.scales.rows_of(weight.scale, rows, f.layout)
        yield PackedWeight(f, rows.stop - start, weight.K, weight.codes[of_tiles], scale)


def has_levels_of(new: Format, old: Format) -> bool:
    """Whether a format has all levels of another and may keep them; scales may be rounded.

    If old groups do not consist of new ones, rounding again is better, except for +-1 and 0.
    """
    if old.codebook is None or new.codebook is None:
        return False
    levels = old.codebook.levels
    if not (has_levels(old, levels) and has_levels(new, levels)):
        return False
    if old.scales.any_number and not new.scales.any_number:  # few scales are powers of two
        return False
    return _finer(new, old) or new.codebook.ends == old.codebook.ends == TERNARY


def _finer(new: Format, old: Format) -> bool:
    """Whether each new scale has weights of a single old one."""
    group = new.scales.group
    return not old.scales.group or (bool(group) and old.scales.group % group == 0)


def keeps(new: Format, old: Format) -> bool:
    """Whether a weight keeps its levels in a format."""
    return new.scaled and (_differ_in_name(new, old) or has_levels_of(new, old))


def _rounds_scales_only(new: Format, old: Format) -> bool:
    """Whether weights are 0 or plus or minus a scale, and stay so but for the scale's rounding."""
    book = old.codebook
    if book is None or book.ends != TERNARY or not old.scales.single:
        return False
    return not new.scaled or (has_levels_of(new, old) and _finer(new, old))


def _base(f: Format) -> str:
    """Return the name of a format without the suffix for scales."""
    return f.name.partition(":")[0]


def _differ_in_name(new: Format, old: Format) -> bool:
    """Whether formats differ only in the placement of rows' scales, as i2 and i2:tensor."""
    return old.scales.group == new.scales.group and _base(old) == _base(new)


def repacked(
    weight: PackedWeight, format: str | None, threads: int, name: str, is_layer: bool = True
) -> PackedWeight:
    """Put `weight` into `format` (None: its own), if nothing is lost or the weight is of floats.

    If rows are no whole blocks, `formats.fitting` replaces the format.

    Levels that the format has are kept with their scales: the same matrix. Of ternary weights only
    the scale is rounded, to the type that the format has for it, or to the format itself if it is
    of floats. Floats are rounded as a checkpoint's, of a layer or an embedding. Raises
    RequestError, with `name`, for any other pair: rounding twice would lose twice.
    """
    if format is None:
        return weight
    old, new = weight.format, formats.fitting(formats.get(format), weight.K)
    if new == old:
        return weight
    kept = keeps(new, old) and new.scales.group == old.scales.group
    may_round = not old.scaled or _rounds_scales_only(new, old)
    if kept or may_round:
        new.check_shape(weight.M, weight.K, name)
        scale = layer_scale(new) if is_layer else None
        rows = Rows(new, weight.M, weight.K, scale, threads, measures=not may_round)
        if rows.add(weight, name).exact:
            return rows.finish()
    raise RequestError(
        f"{name}: packed as {old.name}, it runs in formats that hold its levels and scales, "
        f"but got {new.name}; load the checkpoint that it was made from"
    )


@dataclass
class Rows:
    """A weight in the making: `add` takes its rows from weights in any format, in order.

    M: most rows. scale: as in `weighted.rounded`. measures: whether `losses` are computed. squares:
    mean squares of the layer's input (`formats.weighted`), float32 [K], or more. rounding: what
    rounds, by the name of the rows.
    """

    format: Format
    M: int
    K: int
    scale: str | None
    threads: int
    measures: bool = True
    squares: F32 | Feedback | None = None
    rounding: RoundingOf = plain
    losses: list[Loss] = field(default_factory=list)
    _codes: npt.NDArray[np.uint8] = field(init=False)
    _scales: list[tuple[int, npt.NDArray[Any]]] = field(default_factory=list)  # (rows, scales)
    _waiting: list[npt.NDArray[Any]] = field(default_factory=list)  # rows that fill no tile yet
    _done: int = 0

    def __post_init__(self) -> None:
        """Check the shape; RequestError."""
        f = self.format
        f.check_shape(self.M, self.K)
        # Pages take memory once they are written.
        self._codes = np.empty((f.n_tiles(self.M), f.tile_bytes(self.K)), np.uint8)

    def add(self, weight: PackedWeight, name: str) -> Loss:
        """Add all rows of a weight, as one entry of `losses`."""
        loss = Loss(name, weight.M, weight.K, weight.format.name, self.format.name)
        self.losses.append(loss)
        aligned = weight.M % self.format.tile_rows == 0 and not self._waiting
        if weight.format == self.format.name and aligned:
            self._copy_tiles(weight)
            return loss
        told = loss if self.measures else None
        made = converted(
            weight, self.format, self.scale, told, self.threads, self.squares, self.rounding(name)
        )
        for levels, scale in made:
            self._take(levels, scale)
        return loss

    def finish(self) -> PackedWeight:
        """Return the weight of the rows so far."""
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
        self._waiting.append(levels)
        self._pack(final=False)

    def _pack(self, final: bool) -> None:
        """Pack the rows that fill tiles; at the end all."""
        rows = sum(map(len, self._waiting))
        packed = rows if final else rows // self.format.tile_rows * self.format.tile_rows
        if packed == 0:
            return
        levels = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        codes = codec.codes_of(self.format, levels[:packed], self.threads)
        start = self._done // self.format.tile_rows
        self._codes[start : start + len(codes)] = codes
        self._done += packed
        self._waiting = [levels[packed:].copy()] if packed < rows else []

    def _scale(self) -> npt.NDArray[Any]:
        scales = self.format.scales
        joined = scales.joined(self._scales)
        return scales.pack(joined, self.format.layout, self._done, self.K)


def converted(
    weight: PackedWeight,
    new: Format,
    scale: str | None,
    loss: Loss | None,
    threads: int,
    squares: F32 | Feedback | None = None,
    rounding: weighted.Rounding = weighted.rounded,
) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Yield the rows of a weight in another format: (levels, scales) as `ops.unpack`, or a float
    format's bits and 1.

    Levels that the format has are kept, with a scale that preserves their values. Others are
    rounded by `rounding`, with `squares` (as in `Rows`) if given. Errors are added to `loss`.
    """
    old = weight.format
    keep = keeps(new, old)
    # One scale for a tensor depends on all of its rows.
    keeps_scales = keep and (_differ_in_name(new, old) or _finer(new, old))
    whole = not keeps_scales and new.scaled and (scale or new.scales.default) == "tensor"
    for chunk in row_chunks(weight, whole):
        if keep:
            yield _kept(chunk, new, whole, loss, threads)
        else:
            values = ops.dequantize(chunk, threads=threads)
            if new.scaled:
                levels, scales = rounding(new, values, scale, squares, threads)
                made = levels, new.check_scales(scales, *values.shape)
                if loss is not None:
                    loss.add(values, codec.real_values(new, *made))
                yield made
            else:
                bits = new.encode(values)
                if loss is not None:
                    stored = formats.float_format(new.name).floats(bits)
                    loss.add(values, stored[:, : values.shape[1]])  # words may be of whole groups
                yield bits, np.ones((), np.float32)


def _kept(
    chunk: PackedWeight, new: Format, whole: bool, loss: Loss | None, threads: int
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
    if loss is not None and (merged or not np.array_equal(stored, scale)):
        loss.add(ops.dequantize(chunk, threads=threads), codec.real_values(new, levels, stored))
    return levels, stored


def _merged(new: Format, old: Format, levels: npt.NDArray[Any], scale: F32, whole: bool) -> F32:
    """Fit scales of least squares for levels -1, 0, 1 in new groups, rows or (whole) one.

    Every sum here is exact, so a scale that all old groups share stays the same.
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
