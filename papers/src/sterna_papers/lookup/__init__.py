"""The lookup-table formats of bitnet.cpp (arXiv 2502.11880) and T-MAC (arXiv 2407.00088).

Their kernels are a module of this package, native/lookup, which adds them to Sterna's. A process
that has called `register` knows the formats by their names, in `sterna.ops` as in models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.formats import Format
from sterna.formats.arithmetic import F32
from sterna.formats.codebook import TERNARY, Codebook
from sterna.formats.i2 import Ternary
from sterna.formats.i2p import LEVELS, FourLevel
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

__all__ = ["EXACT", "FORMATS", "ROUNDED", "register"]

#: Formats whose sums are exact, and the format with the same levels whose sums are products. The
#: five levels of elut5 are no other format's.
EXACT = {"tl1_1": "i2", "tl2_1": "i2", "tmac2_1": "i2", "elut4": "i2p", "elut5": None}
#: Formats whose tables have entries of one byte, and so rounded sums.
ROUNDED = ("tl1_0", "tl2_0", "tmac2_0")


class FiveLevel(Format):
    """Levels -2..2; a scale is max |w| / 2, as in symmetric integer quantisation."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """round(w / s), half to even, s = max |w| / 2, or 1 for zeros.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        axis = self.axis(scale)
        s = np.asarray(np.abs(w).max(axis=axis, initial=0.0) / np.float32(2), np.float32)
        s = np.where(s > 0, s, np.float32(1)).astype(np.float32)
        levels = np.clip(np.rint(w / (s[:, None] if axis else s)), -2, 2)
        return levels.astype(np.int8), s


def _ternary(name: str, bits: float, summary: str) -> Format:
    return Ternary(
        name=name,
        layout=Layout(name),
        bits=bits,
        summary=f"ternary, lookup by {summary} tables",
        codebook=TERNARY,
        scales=RowScales("tensor"),
    )


FORMATS = (
    _ternary("tl1_0", 2.0, "two, rounded"),
    _ternary("tl1_1", 2.0, "two, exact"),
    _ternary("tl2_0", 5 / 3, "three, rounded"),
    _ternary("tl2_1", 5 / 3, "three, exact"),
    _ternary("tmac2_0", 2.0, "bit, rounded"),
    _ternary("tmac2_1", 2.0, "bit, exact"),
    FourLevel(
        name="elut4",
        layout=Layout("elut4"),
        bits=2.0,
        summary="four levels, lookup by two, exact tables",
        codebook=LEVELS,
        scales=RowScales("row"),
    ),
    FiveLevel(
        name="elut5",
        layout=Layout("elut5"),
        bits=2.5,
        summary="five levels, lookup by two, exact tables",
        codebook=Codebook(range(-2, 3), offset=2),
        scales=RowScales("row"),
    ),
)


def register() -> None:
    """Add the kernels and the formats to this process; a second call changes nothing.

    Raises RuntimeError if this package was compiled against other headers than Sterna.
    """
    from sterna_papers import _lookup

    try:
        _native.add_layouts(_lookup.layouts)
    except (TypeError, ValueError) as error:
        raise RuntimeError(
            f"sterna-papers: must be built from the sources of the installed Sterna ({error}); "
            "run pip install . ./papers"
        ) from error
    for format in FORMATS:
        formats.register(format)
