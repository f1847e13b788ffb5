"""What a weight format is: a code layout, a codebook of levels and a scale, under a user's name.

A format's file (i2.py, bf16.py, …) makes one `Format`; the code layout's header in native/formats
holds its bit map and kernels. The numpy functions here are the oracle that the kernels are tested
against, written for reading, not for speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError

__all__ = ["Format", "PackedWeight", "fma_f32", "mean_abs", "quantize_activations"]

F32 = npt.NDArray[np.float32]

MAX_INTEGER_K: int = _native.max_integer_k
#: All exponent bits of a float layout: an infinity or NaN has them set.
EXPONENTS = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000}


@dataclass(frozen=True)
class PackedWeight:
    """A matrix W [M, K] in a format's tiles.

    codes: uint8 [ceil(M / tile_rows), tile_bytes]; scale: float32, shape () (one for all) or (M,)
    (one a row). A weight is level * scale for i1, i2, t5 and i8, level / 4 * scale for i2p. Float
    formats have the scale 1.
    """

    format: str
    M: int
    K: int
    codes: npt.NDArray[np.uint8] = field(repr=False)
    scale: F32 = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K): output and input features."""
        return self.M, self.K

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the weights reads: codes and scales."""
        return self.codes.nbytes + self._scale_bytes

    @property
    def _scale_bytes(self) -> int:
        """Bytes of the float32 scales, one for each row of every tile; float formats have none."""
        from sterna.formats import get

        format = get(self.format)
        return 4 * self.codes.shape[0] * format.tile_rows if format.integer else 0


@dataclass(frozen=True)
class Format:
    """A weight format. See docs/architecture.md for the words.

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
    offset: int = 0
    step: int = 1
    z2: int = 0
    unit: float = 1.0
    default_scale: str = "tensor"
    step_k: int = 1  # k of one step of a float layout: K is padded to it with zeros

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
        if not (0 <= M < 2**31 and 0 <= K < 2**31):
            raise RequestError(f"{self.name}: M and K must lie below 2^31, but {name} is {M}x{K}")

    def check_levels(self, levels: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """`levels` [M, K] as int8; RequestError names the first one the codebook lacks."""
        assert self.levels is not None
        low, high = self.levels
        if levels.dtype.kind not in "iub":
            rounded = np.rint(levels)
            if not np.array_equal(rounded, levels):
                raise RequestError(
                    f"{self.name}: levels must be whole numbers, but got dtype {levels.dtype} with "
                    "fractions; use ops.quantize for real weights"
                )
            levels = rounded
        wrong = (levels < low) | (levels > high)
        if self.step > 1:
            wrong |= (levels.astype(np.int64) - low) % self.step != 0
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise RequestError(
                f"{self.name}: levels must lie in {{{low}, {low + self.step}, …, {high}}}, "
                f"but element {at} is {levels[at]}"
            )
        return np.ascontiguousarray(levels, dtype=np.int8)

    def pack_codes(self, values: npt.NDArray[Any], threads: int = 1) -> npt.NDArray[np.uint8]:
        """Levels int8 [M, K] (or float values, for a float format) -> tiles."""
        M, K = values.shape
        self.check_shape(M, K)
        if self.integer:
            source, data = "levels", values
        else:
            source = "f32" if self.layout == "f32" else "half"
            data = self.encode(values)
        return _native.pack(
            self.layout, source, np.ascontiguousarray(data), M, K, self.offset, self.step, threads
        )

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Float values -> the format's bits (float formats only)."""
        if values.dtype == np.uint16:
            return values  # already bits
        with np.errstate(over="ignore"):  # reported below
            x = np.asarray(values, dtype=np.float32)
            half = x.astype(np.float16).view(np.uint16) if self.layout == "f16" else None
        if self.layout == "f32":
            return x
        if half is None:
            bits = x.view(np.uint32)
            half = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
        mask = EXPONENTS[self.layout]
        if (wrong := (half & mask) == mask).any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise NonFiniteError(
                f"{self.name}: weights must be finite and in range, but element {at} is {x[at]}; "
                "use bf16 or f32"
            )
        return half

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights [M, K] -> (levels, scale). Float formats return the weights."""
        return np.asarray(w, dtype=np.float32), np.float32(1.0)

    def native(self, packed: PackedWeight) -> _native.Weight:
        """The kernels' view of a packed weight; it keeps the arrays alive."""
        scale = None
        if self.integer:
            scale = np.zeros(packed.codes.shape[0] * self.tile_rows, np.float32)
            scale[: packed.M] = packed.scale * np.float32(self.unit)
        return _native.Weight(self.layout, packed.M, packed.K, packed.codes, scale, self.z2)

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether packed codes from an untrusted file, in any order, are all of the codebook.

        For a float format: whether all are finite.
        """
        if self.integer:
            return _native.codes_valid(self.layout, codes, self.z2, threads)
        words = codes.view(np.uint32 if self.layout == "f32" else np.uint16)
        return not _native.has_non_finite(words, EXPONENTS[self.layout], threads)

    def unpack(self, packed: PackedWeight, isa: str, threads: int) -> npt.NDArray[Any]:
        """Tiles -> levels int8 [M, K], or float32 values for a float format."""
        raw = _native.unpack(self.native(packed), isa, threads)
        if not self.integer:
            return raw
        return (raw.astype(np.int16) * self.step - self.offset).astype(np.int8)

    def reference_linear(self, x: F32, packed: PackedWeight) -> F32:
        """y [N, M] from x [N, K] in numpy, with the kernels' arithmetic: the oracle."""
        values = self.unpack(packed, "scalar", 1)
        x = np.asarray(x, np.float32)
        if not self.integer:
            acc = np.zeros((x.shape[0], packed.M), np.float32)
            values = np.pad(values, ((0, 0), (0, -packed.K % self.step_k)))
            x = np.pad(x, ((0, 0), (0, -packed.K % self.step_k)))
            for k in range(values.shape[1]):
                acc = fma_f32(values[None, :, k], x[:, None, k], acc)
            return acc
        q, s_x = quantize_activations(x)
        per_level = 2 // self.step  # t counts half steps of the codebook
        t = per_level * (q.astype(np.int64) @ values.T.astype(np.int64))
        s_w = np.broadcast_to(packed.scale * np.float32(self.unit), (packed.M,))
        y: F32 = t.astype(np.float32) * (s_w[None, :] * s_x[:, None])
        return y


def quantize_activations(x: F32) -> tuple[npt.NDArray[np.int8], F32]:
    """x [N, K] -> (int8 [N, K] in [-127, 127], scale [N]): symmetric, per token, half to even."""
    absmax = np.maximum(np.abs(x).max(axis=1, initial=0.0), np.float32(1e-5))
    inverse = np.float32(127) / absmax
    q = np.rint(x * inverse[:, None]).astype(np.int8)
    return q, (absmax / np.float32(127)).astype(np.float32)


def mean_abs(w: F32, axis: int | None) -> F32:
    """Mean of |w| over `axis` (None: all of it), at least 1e-5: float32 () or [M]."""
    if not w.size:
        return np.full(w.shape[:1] if axis else (), 1e-5, np.float32)
    mean = np.abs(w).mean(axis=axis, dtype=np.float64)
    return np.asarray(np.maximum(mean, 1e-5), np.float32)


def fma_f32(a: F32, b: F32, c: F32) -> F32:
    """a * b + c in float32, rounded once.

    The product is exact in float64; the sum is rounded to odd there, which makes the final rounding
    to float32 correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    odd = np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)
    with np.errstate(over="ignore"):
        return odd.astype(np.float32)
