"""What a weight format is: a code layout, a codebook of levels and a scale layout, by a name.

A format's file (i2.py, bf16.py, …) makes one `Format`; the code layout's header in native/layouts
holds its bit map and kernels. How weights become its levels and tiles is codec.py; a matrix in a
format is a `PackedWeight`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """A weight format. See docs/reference/formats.md for the words.

    It prints as its name and equals it, as a numpy dtype does; `formats.get` and `sterna.ops` take
    it for its name.

    codebook: None where the codes are floats. lossless: of integers, whether sums of products are
    exact; False: they are sums of rounded table entries. instead: the name of the format, of about
    the same bits, for a matrix whose rows are no whole blocks (`formats.fitting`). searched:
    whether rounding looks for scales of less error than its rule's. Rules that models are trained
    with (of up to five levels, and powers of two) stay; of 256 levels there is nothing to gain.

    A subclass says what is special to some formats: how they are rounded (`quantize`,
    `quantize_blocks`), or what they store (`encode`, `decode`, `codes_valid`).
    """

    name: str
    layout: Layout
    bits: float
    summary: str
    scales: ScaleLayout
    codebook: Codebook | None = None
    lossless: bool = True
    instead: str = ""
    searched: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether its name is the same, or is `other`."""
        return self.name == (other.name if isinstance(other, Format) else other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)

    # ----------------------------------------------------------------------------- what follows

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
        """Activations sharing a scale in int8: 32, 256, 0 (all of a token); None: not rounded."""
        return self.scales.x_group if self.integer else None

    @property
    def rounds_as_trained(self) -> bool:
        """Whether models of such weights are trained with inputs that `rounding` says: of few
        levels, whose inputs share a scale over a token or 256 values of it (BitNet)."""
        book = self.codebook
        return book is not None and len(book.levels) < 6 and self.rounding != 32

    @property
    def takes_groups(self) -> bool:
        """Whether a suffix :gN gives it scales in groups."""
        return self.integer and self.layout.group_scales and not self.scales.group

    @property
    def value(self) -> float:
        """What a level, or float, of 1 stands for, times the scale."""
        return self.codebook.value if self.codebook else 1.0

    @property
    def unit(self) -> float:
        """What kernels multiply a scale by: what one of their sums' units is worth."""
        return self.codebook.unit if self.codebook else 1.0

    @property
    def zero_x2(self) -> int:
        """The codebook's, 0 of floats."""
        return self.codebook.zero_x2 if self.codebook else 0

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.layout.tile_rows

    def tile_bytes(self, K: int) -> int:
        """Bytes of one tile of `tile_rows` rows and K columns, padding included."""
        return self.layout.tile_bytes(K)

    def n_tiles(self, M: int) -> int:
        """Tiles of M rows."""
        return self.layout.n_tiles(M)

    def scale_bytes(self, M: int, K: int) -> int:
        """Bytes of scales that one pass over a packed matrix reads."""
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

    # ------------------------------------------------------------- what a subclass says otherwise

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).

        scale: "tensor" or "row", None: the format's own. Floats are kept: (values [M, K], 1).
        """
        return np.asarray(w, dtype=np.float32), np.float32(1.0)

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round blocks float32 [B, block] -> (levels int8 [B, block], scales float32 [B, ...]).

        Of scales in groups they are [B] or, with minima, [B, 2]. A format with blocks of its own
        has its own rule; else a block is rounded like a row.
        """
        return self.quantize(blocks, "row")

    def axis(self, scale: str | None) -> int | None:
        """The axis of weights [M, K] that shares a scale in `quantize`; None: all."""
        return 1 if (scale or self.scales.default) == "row" else None

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Scales as float32 of the values that are held for them; raises as `ScaleLayout.check`."""
        return self.scales.check(scales, M, K, self.name)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Levels or floats [M, K] -> what is packed for each, [M, K]."""
        return self.codebook.encoded(values) if self.codebook else values

    def decode(self, raw: F32) -> npt.NDArray[Any]:
        """What kernels decode, float32 [M, K] -> levels int8 or int16 [M, K], or float32 values."""
        return self.codebook.decoded(raw) if self.codebook else raw

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether packed codes from an untrusted file, in any order, are all of the codebook; where
        there is none, any byte is, unless a subclass says otherwise."""
        return not self.codebook or self.layout.codes_valid(codes, self.codebook.max_code, threads)
