"""Power-of-two weights as words: Table 1 of "Demystifying Power-of-Two Quantization" (2025).

A weight is sign * 2^exponent with a sign of -1 or 1; there is no zero. An encoding puts a row
of K of them into words:

    name    the paper's name  word    bits
    pot8    F32:U8:E5:P1      uint8   sign << 7 | e,        e = 0..31; bits 6 and 5 are 0
    pot16   F32:U16:E8:P1     uint16  sign << 15 | e << 7,  e = 0..255; bits 6..0 are 0
    pot4    F32:U8:E3:P2      uint8   two of sign << 3 | e, e = 0..7: k = 2i in the low nibble of
                                      word i, 2i + 1 in the high one; a last one left over is 0
    fxpot   I32:U32:E5:P1     uint32  sign << 31 | e,       e = 0..31; bits 30..5 are 0

A sign bit of 1 is negative. Everything here is numpy, written for reading: the oracle of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import first_index

__all__ = ["ENCODINGS", "Encoding"]

Array = npt.NDArray[Any]
#: Bits of a float32 below its exponent.
MANTISSA_BITS = 23


@dataclass(frozen=True)
class Encoding:
    """How words store sign * 2^exponent, and how products with it are computed.

    table1: the paper's name; exponent_bits: e is below 2^exponent_bits; shift: the place of the
    exponent's lowest bit; per_word: weights of a word; fixed: products are int32, not float32.
    """

    name: str
    table1: str
    word: np.dtype[Any]
    exponent_bits: int
    shift: int = 0
    per_word: int = 1
    fixed: bool = False

    @property
    def max_exponent(self) -> int:
        """The largest exponent; the smallest is 0."""
        return (1 << self.exponent_bits) - 1

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return self.word.itemsize * 8 // self.per_word

    def words(self, K: int) -> int:
        """Count the words of a row of K weights."""
        return -(-K // self.per_word)

    def encode(self, signs: Array, exponents: Array) -> Array:
        """Encode signs [M, K] of -1 and 1 and integer exponents [M, K] in words [M, words(K)].

        Raises RequestError for another shape or dtype, a sign of 0 or any other, or an exponent out
        of range; it names the element.
        """
        signs, exponents = self._checked(signs, exponents)
        fields = exponents.astype(np.uint32) << self.shift
        fields |= (signs < 0).astype(np.uint32) << (self.bits - 1)
        if self.per_word == 1:
            return fields.astype(self.word)
        fields = np.pad(fields, ((0, 0), (0, -fields.shape[1] % self.per_word)))
        words = np.zeros((fields.shape[0], self.words(signs.shape[1])), np.uint32)
        for i in range(self.per_word):
            words |= fields[:, i :: self.per_word] << (i * self.bits)
        return words.astype(self.word)

    def decode(self, codes: Array, K: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint8]]:
        """Decode words [M, words(K)] to signs int8 [M, K] of -1 and 1, exponents uint8 [M, K].

        Raises RequestError for another shape or dtype, or for bits set that must be 0, in a word's
        unused bits or in the padding of an odd K; it names the word.
        """
        codes = self._checked_words(codes, K)
        if stray := self.stray(codes, K):
            raise RequestError(
                f"{self.name}: bits outside sign and exponent, and padding, must be 0, but word "
                f"{stray} is {int(codes[stray]):#x}; the codes are damaged or of another encoding"
            )
        fields = self._fields(codes)[:, :K]
        signs = np.where(fields >> (self.bits - 1), -1, 1).astype(np.int8)
        return signs, (fields >> self.shift & self.max_exponent).astype(np.uint8)

    def stray(self, codes: Array, K: int) -> tuple[int, int] | None:
        """Find the first word with bits set that must be 0; None: there is none."""
        fields = self._fields(codes)
        fields[:, :K] &= ~np.uint32(1 << (self.bits - 1) | self.max_exponent << self.shift)
        if not fields.any():
            return None
        row, k = first_index(fields)
        return row, k // self.per_word

    def _fields(self, codes: Array) -> npt.NDArray[np.uint32]:
        """Return a field for each weight, padding included."""
        fields = np.empty((codes.shape[0], codes.shape[1] * self.per_word), np.uint32)
        for i in range(self.per_word):
            fields[:, i :: self.per_word] = codes >> (i * self.bits) & ((1 << self.bits) - 1)
        return fields

    def multiply(self, x: Array, signs: Array, exponents: Array, *, special: bool = True) -> Array:
        """x * sign * 2^exponent, element by element; all three of one shape after broadcasting.

        x float32: the IEEE product, which is exact or an infinity; zeros keep the product's sign,
        and a NaN stays one. special=False: e is added to the bits of x's exponent and the sign is
        inverted, whatever comes out (the paper's Algorithms 2 and 3): zeros, subnormals,
        infinities, NaN and products of 2^128 and more are then wrong. fxpot, x int32:
        sign * (x << e) modulo 2^32. Raises RequestError as `encode` does.
        """
        wanted = np.dtype(np.int32 if self.fixed else np.float32)
        x = np.asarray(x)
        if x.dtype != wanted:
            raise RequestError(f"{self.name}: x must be {wanted}, but got {x.dtype}; convert it")
        signs, exponents = np.broadcast_arrays(*self._in_range(signs, exponents))
        if self.fixed:
            shifted = x.view(np.uint32) << exponents.astype(np.uint32)
            negated = np.where(signs < 0, -shifted, shifted)
            return np.asarray(negated, np.uint32).view(np.int32)
        if special:
            # Exact in float64, whose exponents reach 1023; float32 is then exact or infinite.
            with np.errstate(over="ignore", invalid="ignore"):
                powers = np.ldexp(signs.astype(np.float64), exponents.astype(np.int32))
                return np.asarray(x.astype(np.float64) * powers, np.float32)
        bits = x.view(np.uint32) + (exponents.astype(np.uint32) << MANTISSA_BITS)
        bits ^= (signs < 0).astype(np.uint32) << 31
        return bits.view(np.float32)

    def _checked(self, signs: Array, exponents: Array) -> tuple[Array, Array]:
        """Both as arrays [M, K] of one shape, in range."""
        signs, exponents = self._in_range(signs, exponents)
        if signs.ndim != 2 or signs.shape != exponents.shape:
            raise RequestError(
                f"{self.name}: signs and exponents must both have the shape [M, K], but got "
                f"{signs.shape} and {exponents.shape}"
            )
        return signs, exponents

    def _in_range(self, signs: Array, exponents: Array) -> tuple[Array, Array]:
        signs, exponents = np.asarray(signs), np.asarray(exponents)
        for what, values in (("signs", signs), ("exponents", exponents)):
            if values.dtype.kind not in "iu":
                raise RequestError(
                    f"{self.name}: {what} must be integers, but got dtype {values.dtype}; round "
                    "real weights with sterna.formats.pot_methods first"
                )
        if (wrong := (signs != 1) & (signs != -1)).any():
            at = first_index(wrong)
            remedy = "it has no zero: round with nearest or denseshift, or use the format pot4z"
            if signs[at]:
                remedy = "put the size of a weight into its exponent"
            raise RequestError(
                f"{self.name}: signs must be -1 or 1, but element {at} is {signs[at]}; {remedy}"
            )
        if (wrong := (exponents < 0) | (exponents > self.max_exponent)).any():
            at = first_index(wrong)
            raise RequestError(
                f"{self.name}: exponents must be 0 to {self.max_exponent}, but element {at} is "
                f"{exponents[at]}; choose another scale, or an encoding of more exponents"
            )
        return signs, exponents

    def _checked_words(self, codes: Array, K: int) -> npt.NDArray[np.uint32]:
        codes = np.asarray(codes)
        if K < 0:
            raise RequestError(f"{self.name}: K must not be negative, but got {K}")
        if codes.dtype != self.word:
            raise RequestError(
                f"{self.name}: words must be {self.word}, but got {codes.dtype}; other encodings "
                "have other words"
            )
        if codes.ndim != 2 or codes.shape[1] != self.words(K):
            raise RequestError(
                f"{self.name}: K={K} weights are {self.words(K)} words of a row, so the shape must "
                f"be [M, {self.words(K)}], but got {codes.shape}"
            )
        return codes.astype(np.uint32)


ENCODINGS: dict[str, Encoding] = {
    e.name: e
    for e in (
        Encoding("pot8", "F32:U8:E5:P1", np.dtype(np.uint8), 5),
        Encoding("pot16", "F32:U16:E8:P1", np.dtype(np.uint16), 8, shift=7),
        Encoding("pot4", "F32:U8:E3:P2", np.dtype(np.uint8), 3, per_word=2),
        Encoding("fxpot", "I32:U32:E5:P1", np.dtype(np.uint32), 5, fixed=True),
    )
}
