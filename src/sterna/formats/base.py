"""`Format`: the name of a code layout, a codebook of levels and a scale layout together.

Each format's file (i2.py, bf16.py, …) makes one `Format`; the code layout's header in
native/layouts holds its bit map and kernels. codec.py turns weights into levels and tiles. A matrix
in a format is a `PackedWeight`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.arithmetic import F32
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import ScaleLayout

__all__ = ["Format"]

MAX_INTEGER_K: int = _native.max_integer_k


@dataclass(frozen=True, eq=False)
class Format:
    """A weight format; docs/reference/formats.md explains the words.

    Like a numpy dtype, it prints as its name and equals it; `formats.get` and `sterna.ops` accept
    either.

    codebook: the levels of integer codes; None where the codes are floats.
    instead: name of a format with about the same bits, for rows that are no whole blocks
    (`formats.fitting`).
    searched: whether rounding searches for scales with less error than the format's rule gives.
    False where models are trained with that rule (up to five levels, powers of two), and for 256
    levels, where a search gains nothing.
    of_files: whether it exists only for files of its kind, and not for rounding.

    Subclasses override rounding (`quantize`, `quantize_blocks`) or storage (`encode`, `decode`,
    `codes_valid`).
    """

    name: str
    layout: Layout
    bits: float
    summary: str
    scales: ScaleLayout
    codebook: Codebook | None = None
    instead: str = ""
    searched: bool = False
    of_files: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether its name is the same, or is `other`."""
        return self.name == (other.name if isinstance(other, Format) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    # ------------------------------------------------------------------------ derived properties

    @property
    def integer(self) -> bool:
        """Whether activations are rounded to int8, and sums are of integers."""
        return self.codebook is not None

    @property
    def scaled(self) -> bool:
        """Whether rows have scales: all integer formats, and floats that are powers of two."""
        return self.scales.scaled

    @property
    def rounding(self) -> int | None:
        """Activations that share an int8 scale: 32, 256 or 0 (a whole token); None: not rounded."""
        return self.scales.x_group if self.integer else None

    @property
    def rounds_as_trained(self) -> bool:
        """Whether models with such weights are trained with inputs rounded as `rounding` says.

        This holds for few levels with an input scale for 256 values or for a token (BitNet).
        """
        book = self.codebook
        return book is not None and len(book.levels) < 6 and self.rounding != 32

    @property
    def takes_groups(self) -> bool:
        """Whether the suffix :gN makes a format with scales in groups of N."""
        return self.integer and self.layout.group_scales and not self.scales.group

    @property
    def value(self) -> float:
        """The weight of a level (or float) of 1, before the scale."""
        return self.codebook.value if self.codebook else 1.0

    @property
    def unit(self) -> float:
        """The factor by which kernels multiply a scale: the value of 1 in their integer sums."""
        return self.codebook.unit if self.codebook else 1.0

    @property
    def zero_x2(self) -> int:
        """Twice the code of level 0 (`Codebook.zero_x2`); 0 for floats."""
        return self.codebook.zero_x2 if self.codebook else 0

    @property
    def table(self) -> tuple[int, ...]:
        """The levels of codes 0, 1, … that kernels look up; none if codes are levels."""
        return self.codebook.by_code if self.codebook and self.layout.levels else ()

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.layout.tile_rows

    def tile_bytes(self, K: int) -> int:
        """Count the bytes of a tile of `tile_rows` rows and K columns, padding included."""
        return self.layout.tile_bytes(K)

    def n_tiles(self, M: int) -> int:
        """Count the tiles of M rows."""
        return self.layout.n_tiles(M)

    def scale_bytes(self, M: int, K: int) -> int:
        """Count the bytes of scales that one pass over a packed matrix reads."""
        return self.scales.nbytes(self.layout, M, K)

    def check_shape(self, M: int, K: int, name: str = "weight") -> None:
        """Raise RequestError where the format cannot hold (or exactly sum) a matrix [M, K]."""
        if self.integer and K > MAX_INTEGER_K:
            raise RequestError(
                f"{self.name}: K must be at most {MAX_INTEGER_K} for exact int32 sums, "
                f"but {name} has K={K}; use a float format"
            )
        if K % self.scales.block:
            other = self.instead or "i8, which has a scale for each row"
            raise RequestError(
                f"{self.name}: K must be a multiple of {self.scales.block}, but {name} has K={K}; "
                f"choose another format, such as {other}"
            )
        if not (0 <= M < 2**31 and 0 <= K < 2**31):
            raise RequestError(f"{self.name}: M and K must lie below 2^31, but {name} is {M}x{K}")

    # ----------------------------------------------------------------- what subclasses override

    def with_scales(self, name: str, scales: ScaleLayout) -> Format:
        """Return this format with other scales, by the name that says so."""
        return replace(self, name=name, scales=scales)

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).

        scale: "tensor" or "row", None: the format's own. Floats are kept: (values [M, K], 1).
        """
        return np.asarray(w, dtype=np.float32), np.ones((), np.float32)

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round blocks float32 [B, block] -> (levels int8 [B, block], scales float32 [B, ...]).

        Scales in groups are [B] or, with minima, [B, 2]. The default rounds a block like a row.
        """
        return self.quantize(blocks, "row")

    def axis(self, scale: str | None) -> int | None:
        """Return the axis of weights [M, K] along which a scale is shared; None: one for all."""
        return 1 if (scale or self.scales.default) == "row" else None

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Return the scales as the format stores them, float32; raises as `ScaleLayout.check`."""
        return self.scales.check(scales, M, K, self.name)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Encode levels or floats [M, K] into the codes to pack, [M, K]."""
        return self.codebook.encoded(values) if self.codebook else values

    def decode(self, raw: F32) -> npt.NDArray[Any]:
        """Decoded codes, float32 [M, K] -> levels int8 or int16 [M, K], or float32 values."""
        return self.codebook.decoded(raw) if self.codebook else raw

    def negated(self, levels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return levels of random weights with the opposite sign, the lowest as the highest."""
        assert self.codebook is not None
        opposite: npt.NDArray[Any] = np.clip(-levels, *self.codebook.ends)
        return opposite

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all codes of an untrusted file, in any order, are in the codebook.

        Without a codebook any byte is valid, unless a subclass overrides this.
        """
        return not self.codebook or self.layout.codes_valid(codes, self.codebook.max_code, threads)
