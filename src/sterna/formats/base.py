"""What a weight format is: a code layout, a codebook of levels and a scale, under a user's name.

A format's file (i2.py, bf16.py, …) makes one `Format`; the code layout's header in native/formats
holds its bit map and kernels. The numpy functions here are the oracle that the kernels are tested
against, written for reading, not for speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError, shown
from sterna.formats.arithmetic import (
    F32,
    first_index,
    fma_f32,
    half_if_finite,
    half_or_smallest,
    quantize_activations,
)

__all__ = ["GROUP_K", "Format", "PackedWeight"]

MAX_INTEGER_K: int = _native.max_integer_k
GROUP_K = 32  # activations that share a scale, where weights have scales in groups
COARSE = 2.0**-21  # of f16 scales: below it they are whole multiples, 0 to 8, of the smallest
MAX_GROUPED = 2.0**40  # of weights: no level times a scale that is an f16 is as large
PAD_K = 64  # integer layouts pad K to it


@dataclass(frozen=True, eq=False)  # equal to itself alone: arrays are not compared
class PackedWeight:
    """A matrix W [M, K] in a format's tiles.

    codes: uint8 [ceil(M / tile_rows), tile_bytes]; scale: float32, shape () (one for all) or (M,)
    (one a row), or for groups of k the kernels' lines of them, uint8 [tiles, bytes] (`scales` has
    their values). A weight is level * scale, for i2p level / 4 * scale, plus a minimum where the
    format has one. Float formats have the scale 1, but for those of powers of two.
    """

    format: str
    M: int
    K: int
    codes: npt.NDArray[np.uint8] = field(repr=False)
    scale: npt.NDArray[Any] = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K): output and input features."""
        return self.M, self.K

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the weights reads: codes and scales."""
        try:
            return self.codes.nbytes + self._scale_bytes
        except (AttributeError, TypeError):
            raise self.refused() from None

    @property
    def _scale_bytes(self) -> int:
        """Bytes of the scales that the kernels read: groups', or float32 for rows of all tiles."""
        from sterna.formats import get

        return get(self.format).scale_bytes(self.M, self.K)

    @property
    def scales(self) -> F32:
        """The scales' values, float32: (), (M,), or of groups Format.scale_shape."""
        from sterna.formats import get

        format = get(self.format)
        try:
            if not format.group:
                return np.asarray(self.scale, np.float32)
            scales = format.unpack_scales(self.scale, self.M, self.K)
            _native.require_whole(self.scale)
            return scales
        except (AttributeError, IndexError, TypeError, ValueError):
            raise self.refused() from None

    def refused(self) -> RequestError:
        """The error of fields that neither `ops.pack` nor a model's file has filled in."""
        arrays = (
            f"{getattr(a, 'dtype', type(a).__name__)} {getattr(a, 'shape', '')}".strip()
            for a in (self.codes, self.scale)
        )
        return RequestError(
            f"packed: codes and scale must be those that ops.pack makes for {self.format} and M, K "
            f"= {shown(self.M)}, {shown(self.K)}, but got {' and '.join(arrays)}"
        )


@dataclass(frozen=True)
class Format:
    """A weight format. See docs/formats.md for the words.

    An integer format stores code = (level + offset) / step, and computes
    t = 2 * sum(code * x) - z2 * sum(x), so that level = (2 * code - z2) / (2 / step), and
    y = float(t) * (unit * scale * x_scale).
    """

    name: str
    layout: str
    bits: float
    summary: str
    integer: bool = True
    levels: tuple[int, int] | None = None  # lowest and highest
    codebook: tuple[int, ...] = ()  # the levels, where they are not evenly spaced
    offset: int = 0
    step: int = 1
    z2: int = 0
    unit: float = 1.0
    default_scale: str = "tensor"
    group: int = 0  # k of a scale, a multiple of 32; 0: a scale for each row or for all
    x_group: int = GROUP_K  # k of a scale of activations where weights have groups: 32 or 256
    scale_type: str = "f16"  # of groups, or "e8m0": a power of two in a byte
    group_scales: bool = True  # integer: whether a suffix :gN may give it scales in groups
    minima: bool = False  # whether a group's weights are level * scale + minimum
    step_k: int = 1  # k of one step of a float layout: K is padded to it with zeros
    lossless: bool = True  # integer: sums are exact; False: as reference_linear rounds them

    @property
    def scaled(self) -> bool:
        """Whether rows have scales: all integer formats, and floats that are powers of two."""
        return self.integer or self.default_scale != "none"

    @property
    def rounding(self) -> int | None:
        """Activations sharing a scale in int8: 32, 256, 0 (all of a token); None: not rounded."""
        if not self.integer:
            return None
        return self.x_group if self.group else 0

    @property
    def takes_groups(self) -> bool:
        """Whether a suffix :gN gives it scales in groups."""
        return self.integer and self.group_scales and not self.group

    @property
    def value(self) -> float:
        """What a level of 1 stands for, times the scale."""
        return self.unit * (2 // self.step)

    @property
    def block(self) -> int:
        """Where there are groups, K is a multiple of it: a group, or a super-block of several."""
        return self.group

    def n_groups(self, K: int) -> int:
        """Groups of a row of K columns."""
        return K // self.group

    def n_blocks(self, K: int) -> int:
        """Blocks of a row of K columns, which are rounded by themselves."""
        return K // self.block

    def scale_shape(self, M: int, K: int) -> tuple[int, ...]:
        """Shape of the scales of a matrix [M, K] in groups."""
        return (M, self.n_groups(K), 2) if self.minima else (M, self.n_groups(K))

    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Scales of groups -> float32 [M, groups, 1], or [M, groups, 2]: a scale, a minimum."""
        return scales.reshape(M, self.n_groups(K), 2 if self.minima else 1)

    def typical_scale(self, scales: F32, factor: float) -> F32:
        """One scale for all groups: the median of some, times a factor."""
        typical = np.median(scales if self.minima else np.abs(scales), axis=0)
        return np.asarray(typical * factor, np.float32)

    def scale_bytes(self, M: int, K: int) -> int:
        """Bytes of scales that one pass over a packed matrix reads."""
        if not self.scaled:
            return 0
        if not self.group:
            return 4 * self.n_tiles(M) * self.tile_rows
        return self.n_tiles(M) * self._scale_lines(K) * self.tile_rows * self._scale_dtype.itemsize

    @property
    def _scale_dtype(self) -> np.dtype[Any]:
        return np.dtype({"f16": np.float16, "e8m0": np.uint8}[self.scale_type])

    def _scale_lines(self, K: int) -> int:
        """Lines of a tile's scales; K is padded like the codes'."""
        return -(-(-(-K // PAD_K) * PAD_K) // self.group) * (2 if self.minima else 1)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return _native.tile_rows(self.layout)

    def tile_bytes(self, K: int) -> int:
        """Bytes of one tile of `tile_rows` rows and K columns, padding included."""
        return _native.tile_bytes(self.layout, K)

    def n_tiles(self, M: int) -> int:
        """Tiles of M rows."""
        return -(-M // self.tile_rows)

    def check_shape(self, M: int, K: int, name: str = "weight") -> None:
        """Raise RequestError where the format cannot hold (or exactly sum) a matrix [M, K]."""
        if self.integer and K > MAX_INTEGER_K:
            raise RequestError(
                f"{self.name}: K must be at most {MAX_INTEGER_K} for exact int32 sums, "
                f"but {name} has K={K}; use a float format"
            )
        if self.group and K % self.block:
            raise RequestError(
                f"{self.name}: K must be a multiple of {self.block}, but {name} has K={K}; "
                "choose a format with a scale for each row, such as i8"
            )
        if not (0 <= M < 2**31 and 0 <= K < 2**31):
            raise RequestError(f"{self.name}: M and K must lie below 2^31, but {name} is {M}x{K}")

    @property
    def level_type(self) -> type[np.signedinteger[Any]]:
        """Of arrays of levels: int8, or int16 where they reach 128."""
        return np.int16 if self.levels is not None and self.levels[1] > 127 else np.int8

    def check_levels(self, levels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`levels` [M, K] as `level_type`; RequestError names the first that the codebook lacks."""
        assert self.levels is not None
        low, high = self.levels
        if levels.dtype.kind == "f":
            if (wrong := ~np.isfinite(levels)).any():
                at = first_index(wrong)
                raise NonFiniteError(
                    f"{self.name}: levels must be finite, but element {at} is {levels[at]}"
                )
            if (wrong := np.rint(levels) != levels).any():
                at = first_index(wrong)
                raise RequestError(
                    f"{self.name}: levels must be whole numbers, but element {at} is {levels[at]}; "
                    "use ops.quantize for real weights"
                )
        wrong = (levels < low) | (levels > high)
        every = self.codebook or tuple(range(low, high + 1, self.step))
        if self.step > 1 or self.codebook:
            wrong |= ~np.isin(levels, every)
        if wrong.any():
            at = first_index(wrong)
            few = len(every) <= 5 or bool(self.codebook)
            all_ = ", ".join(map(str, every if few else (low, low + 1, "…", high)))
            raise RequestError(
                f"{self.name}: levels must lie in {{{all_}}}, but element {at} is {levels[at]}"
            )
        return np.ascontiguousarray(levels, dtype=self.level_type)

    def pack_codes(
        self,
        values: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
        threads: int = 1,
        order: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """Levels int8 [M, K] (or float values, for a float format) -> tiles.

        values: several are the rows of one matrix, one after the other; order: of its rows, those
        that are packed first, second, and so on.
        """
        parts = [values] if isinstance(values, np.ndarray) else list(values)
        self.check_shape(sum(len(part) for part in parts), parts[0].shape[1])
        return self._packed_codes(parts, threads, order)

    def codes_of(self, values: npt.NDArray[Any], threads: int = 1) -> npt.NDArray[np.uint8]:
        """The same of one matrix of any K: groups may be cut."""
        return self._packed_codes([values], threads, None)

    def _packed_codes(
        self,
        parts: Sequence[npt.NDArray[Any]],
        threads: int,
        order: npt.NDArray[np.int64] | None,
    ) -> npt.NDArray[np.uint8]:
        source = "levels" if self.integer else "words"
        words = [np.ascontiguousarray(self.encode(part)) for part in parts]
        return _native.pack(self.layout, source, words, self.offset, self.step, order, threads)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What kernels pack: levels as they are; float formats say what else."""
        return values

    def with_method(self, method: str) -> Format:
        """The same format with another method of rounding; RequestError where it has but one."""
        from sterna.formats import names_of

        several = names_of(lambda f: type(f).with_method is not Format.with_method)
        raise RequestError(
            f"method: {self.name} is rounded in one way only, "
            f"but got {shown(method)}; methods are for "
            f"{several}"
        )

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights [M, K] -> (levels, scale). Float formats return the weights."""
        return np.asarray(w, dtype=np.float32), np.float32(1.0)

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round groups [B, group] -> (levels [B, group], scales [B] or, with minima, [B, 2]).

        A format with groups of its own has its own rule; else a group is rounded like a row.
        """
        return self.quantize(blocks, "row")

    def quantize_groups(self, w: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights [M, K] -> (levels, scales [M, groups] or, with minima, [.., 2])."""
        M, K = w.shape
        self.check_shape(M, K)
        self._check_size(w)
        blocks = w.reshape(-1, self.group)
        levels, scales = self.quantize_blocks(blocks)
        if self.scale_type == "f16":
            levels, scales = self._with_stored_scales(blocks, levels, scales)
        return levels.reshape(M, K), scales.reshape(M, self.n_groups(K), *scales.shape[1:])

    def _check_size(self, w: F32) -> None:
        """RequestError for a weight so large that its scale is no f16, and its sums are no float32.

        What is less far off is named by `check_scales`.
        """
        if self.scale_type != "e8m0" and max(w.max(initial=0), -w.min(initial=0)) > MAX_GROUPED:
            at = first_index(np.abs(w) > MAX_GROUPED)
            raise RequestError(
                f"{self.name}: scale must be at most 65504, as an f16, but element {at} of the "
                f"weights is {w[at]!s}; use a format with a scale for each row, such as i8"
            )

    def _with_stored_scales(
        self, blocks: F32, levels: npt.NDArray[Any], scales: F32
    ) -> tuple[npt.NDArray[Any], F32]:
        """Levels [B, group] and scales [B, ...] of rounding, for the scales as an f16 holds them.

        An f16 below COARSE has few bits left: of such a block the best is taken of what was
        rounded, the levels nearest to its weights for the scale as stored, and zeros.
        """
        d = np.abs(scales[:, 0] if self.minima else scales)
        coarse = np.flatnonzero(d < COARSE)
        if not coarse.size:
            return levels, scales
        w, first, s = blocks[coarse].astype(np.float64), levels[coarse], scales[coarse]
        stored, lifted = half_if_finite(s), half_or_smallest(s)
        if self.minima:
            lifted[:, 1] = stored[:, 1]  # a minimum of 0 leaves more of the block than the smallest
        tried = [
            (first, stored),
            (self._nearest(w, lifted), lifted),
            (first, np.zeros_like(stored)),
        ]
        errors = [np.square(self._block_values(*one) - w).sum(axis=1) for one in tried]
        best = np.argmin(errors, axis=0)  # the first of equal ones
        levels, scales = levels.copy(), scales.copy()
        for i, (of_block, scale) in enumerate(tried):
            here = best == i
            levels[coarse[here]], scales[coarse[here]] = of_block[here], scale[here]
        return levels, scales

    def _block_values(self, levels: npt.NDArray[Any], scales: F32) -> npt.NDArray[np.float64]:
        """What blocks [B, group] stand for."""
        pairs = scales.astype(np.float64).reshape(len(scales), -1)
        values = levels * (pairs[:, :1] * self.value)
        return np.asarray(values + pairs[:, 1:] if self.minima else values)

    def _nearest(self, w: npt.NDArray[np.float64], scales: F32) -> npt.NDArray[Any]:
        """The levels [B, group] nearest to weights, any for a scale of 0."""
        assert self.levels is not None
        low, high = self.levels
        all_ = np.array(self.codebook or range(low, high + 1, self.step), self.level_type)
        pairs = scales.astype(np.float64).reshape(len(scales), -1)
        d = np.where(pairs[:, :1] == 0, 1, pairs[:, :1] * self.value)
        ratio = (w - pairs[:, 1:] if self.minima else w) / d
        return all_[np.searchsorted((all_[1:] + all_[:-1]) / 2, ratio)]

    def rounded(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights [M, K] -> (levels, scale), in the format's groups if it has any."""
        return self.quantize_groups(w) if self.group else self.quantize(w, scale)

    def packed_scale(self, scale: npt.NDArray[Any], M: int, K: int) -> npt.NDArray[Any]:
        """What a PackedWeight [M, K] holds for a scale; raises as `check_scales` does."""
        if self.group:
            return self.pack_scales(self.check_scales(scale, M, K), M, K)
        return np.asarray(scale, np.float32)

    def scales_valid(self, lines: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all scales of groups, from an untrusted file, are finite and in range."""
        exponent = {"e8m0": 0xFF, "f16": 0x7C00}[self.scale_type]
        values = lines.view(f"u{self._scale_dtype.itemsize}")
        return not _native.has_non_finite(values, exponent, threads)

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Scales of groups as float32 of the values that `scale_type` holds.

        RequestError for a wrong shape or a value that it does not hold, NonFiniteError.
        """
        shape = self.scale_shape(M, K)
        s = np.asarray(scales, np.float32)
        if s.shape not in ((), shape):
            raise RequestError(
                f"{self.name}: scale must have shape () or {shape}, but got {s.shape}"
            )
        s = np.broadcast_to(s, shape)
        if self.scale_type == "e8m0":
            mantissa, _ = np.frexp(s)
            fits = (mantissa == 0.5) & (s >= np.float32(2.0**-127))
        else:
            with np.errstate(over="ignore"):
                s = s.astype(self._scale_dtype).astype(np.float32)
            fits = np.isfinite(s)
        if not fits.all():
            at = first_index(~fits)
            got = np.broadcast_to(np.asarray(scales, np.float32), shape)[at]
            if not np.isfinite(got):
                raise NonFiniteError(f"{self.name}: scale must be finite, but {at} is {got}")
            rule = "2^-127 to 2^127" if self.scale_type == "e8m0" else "at most 65504, as an f16"
            raise RequestError(f"{self.name}: scale must be {rule}, but {at} is {got}")
        return s

    def pack_scales(self, scales: F32, M: int, K: int) -> npt.NDArray[np.uint8]:
        """What `check_scales` returned -> the kernels' lines of scales, uint8 [tiles, bytes]."""
        if self.scale_type == "e8m0":
            typed = (np.frexp(scales)[1] + 126).astype(np.uint8)  # 0.5 * 2^e is 2^(e - 1)
        else:
            typed = scales.astype(self._scale_dtype)
        per_group = 2 if self.minima else 1
        tiles, groups = self.n_tiles(M), self.n_groups(K)
        lines = np.zeros((tiles, self.tile_rows, self._scale_lines(K)), typed.dtype)
        rows = lines.reshape(tiles * self.tile_rows, self._scale_lines(K))
        rows[:M, : groups * per_group] = typed.reshape(M, groups * per_group)
        packed = np.ascontiguousarray(lines.transpose(0, 2, 1))
        return packed.reshape(tiles, self._scale_lines(K) * self.tile_rows).view(np.uint8)

    def unpack_scales(self, lines: npt.NDArray[np.uint8], M: int, K: int) -> F32:
        """The kernels' lines -> float32 [M, groups] or, with minima, [M, groups, 2]."""
        tiles, count = lines.shape[0], self._scale_lines(K)
        typed = lines.view(self._scale_dtype).reshape(tiles, count, self.tile_rows)
        rows = typed.transpose(0, 2, 1).reshape(tiles * self.tile_rows, count)
        rows = rows[:M, : self.n_groups(K) * (2 if self.minima else 1)]
        if self.scale_type == "e8m0":
            values = np.ldexp(np.float32(1), rows.astype(np.int32) - 127)
        else:
            values = rows.astype(np.float32)
        return np.ascontiguousarray(values, np.float32).reshape(self.scale_shape(M, K))

    def native(self, packed: PackedWeight) -> _native.Weight:
        """The kernels' view of a packed weight; it keeps the arrays alive."""
        scale = None
        if self.group:
            groups = (
                packed.scale, self.group, self.x_group, self.scale_type, self.minima, self.value,
            )  # fmt: skip
            return _native.Weight(
                self.layout, packed.M, packed.K, packed.codes, None, self.z2, groups
            )
        if self.scaled:
            scale = np.zeros(packed.codes.shape[0] * self.tile_rows, np.float32)
            scale[: packed.M] = packed.scale * np.float32(self.unit)
        return _native.Weight(self.layout, packed.M, packed.K, packed.codes, scale, self.z2)

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether packed codes from an untrusted file, in any order, are all of the codebook."""
        return _native.codes_valid(self.layout, codes, self.z2, threads)

    def unpack(self, packed: PackedWeight, isa: str, threads: int) -> npt.NDArray[Any]:
        """Tiles -> levels int8 [M, K], or float32 values for a float format."""
        raw = _native.unpack(self.native(packed), isa, threads)
        if not self.integer:
            return raw
        levels = raw.astype(np.int16) * self.step - self.z2 * self.step // 2
        return levels.astype(self.level_type)

    def reference_linear(self, x: F32, packed: PackedWeight) -> F32:
        """y [N, M] from x [N, K] in numpy, with the kernels' arithmetic: the oracle."""
        x = np.asarray(x, np.float32)
        if not self.integer:
            values = _native.unpack(self.native(packed), "scalar", 1)
            acc = np.zeros((x.shape[0], packed.M), np.float32)
            values = np.pad(values, ((0, 0), (0, -packed.K % self.step_k)))
            x = np.pad(x, ((0, 0), (0, -packed.K % self.step_k)))
            for k in range(values.shape[1]):
                acc = fma_f32(values[None, :, k], x[:, None, k], acc)
            return acc * self._row_scales(packed) if self.scaled else acc
        levels = self.unpack(packed, "scalar", 1)
        if self.group:
            return self._reference_groups(x, packed, levels)
        q, s_x = quantize_activations(x)
        per_level = 2 // self.step  # t counts half steps of the codebook
        t = per_level * (q.astype(np.int64) @ levels.T.astype(np.int64))
        y: F32 = t.astype(np.float32) * (self._row_scales(packed)[None, :] * s_x[:, None])
        return y

    def _row_scales(self, packed: PackedWeight) -> F32:
        return np.broadcast_to(packed.scale * np.float32(self.unit), (packed.M,))

    def _reference_groups(self, x: F32, packed: PackedWeight, levels: npt.NDArray[Any]) -> F32:
        """The same where weights and activations have scales in groups (native/grouped.h)."""
        size = self.x_group
        N, blocks = x.shape[0], packed.K // size
        q, s_x = quantize_activations(x.reshape(-1, size), 1e-30)
        q, s_x = q.reshape(N, blocks, size).astype(np.int64), s_x.reshape(N, blocks)
        levels = levels.reshape(packed.M, blocks, size).astype(np.int64)
        scales = self.group_values(packed.scales, packed.M, packed.K)
        y = np.zeros((N, packed.M), np.float32)
        for b in range(blocks):
            s_w = scales[:, b * size // self.group]
            t = (q[:, b] @ levels[:, b].T).astype(np.float32)
            y = fma_f32(t, s_w[None, :, 0] * np.float32(self.value) * s_x[:, b, None], y)
            if self.minima:
                sums = q[:, b].sum(axis=1).astype(np.float32) * s_x[:, b]
                y = fma_f32(s_w[None, :, 1], sums[:, None], y)
        return y
