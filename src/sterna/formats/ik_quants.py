"""How formats of ik_llama.cpp's own types are rounded, and what they share.

Files have such weights; they are not among the formats that are offered for rounding. Their levels
are uneven, from one of two tables, the second one a little higher: a bit of each group says which.
Where both tables together have at most sixteen levels, `lut4` looks them all up. Those of IQ4_K
and IQ4_KS have sixteen each, so that what the second one adds is a minimum, 4 d s_g.

Types of five and six bits have more levels than kernels look up: theirs are bytes.

Tables: ggml-common.h of ik_llama.cpp (iq2nl_values, iq3nl_values, iq4k_values, iq5nl_values,
iq6nl_values).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.codebook import Codebook
from sterna.formats.iq4_nl import CODEBOOK
from sterna.formats.kquants import KQuant, Whole
from sterna.formats.layout import Layout
from sterna.formats.level_tables import codebook
from sterna.formats.scales import SuperBlockScales

__all__ = [
    "IQ2", "IQ3", "IQ5", "IQ5_SHIFT", "IQ6", "IQ6_SHIFT", "SHIFT", "IkQuant", "of_bytes",
    "of_table", "shifted",
]  # fmt: skip

#: Levels of codes 0, 1, …; the shifted ones follow those that are not.
IQ2 = (-31, -13, 1, 17, -26, -8, 6, 22)
IQ3 = (-63, -40, -23, -10, 1, 13, 28, 47, -59, -36, -19, -6, 5, 17, 32, 51)
#: What is added to sixteen levels of shifted groups.
SHIFT = 4
#: Levels of groups that are not shifted, and what is added to those of shifted ones.
IQ5 = (
    -126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
    -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121,
)  # fmt: skip
IQ5_SHIFT = 2
IQ6 = (
    -127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54,
    -51, -47, -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5,
    -2, 0, 3, 6, 9, 12, 14, 17, 20, 23, 27, 30, 33, 36, 40, 44,
    47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98, 103, 109, 115, 121,
)  # fmt: skip
IQ6_SHIFT = 1


class IkQuant(KQuant):
    """A format of super-blocks; where there are minima, rounding shifts all groups."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round super-blocks float32 [B, 256] -> (levels int8 [B, 256], scales float32 [B, ...]).

        A group's largest value decides its scale. Shifted levels reach from -123 to 117. Weights
        take any levels of a table, also ones that a file's group would not have together.
        """
        if not self._layout.minima:
            return super().quantize_blocks(blocks)
        assert self.codebook is not None
        groups = self._groups(blocks)
        largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=0)[None], 0)[0]
        low = np.float32(self.codebook.low + SHIFT)
        whole = Whole.of(self._by_block(largest / low), 0, self._layout.scale_range)
        levels = self._levels(groups - SHIFT * whole.values.reshape(-1), whole.values.reshape(-1))
        parts = whole.parts(np.zeros(len(whole.d), np.bool_))
        minima = parts.copy()
        minima[:, 0 if self._layout.wide else slice(1, None)] *= SHIFT
        return (
            np.ascontiguousarray(levels.T).reshape(blocks.shape).astype(np.int8),
            np.asarray(np.stack([parts, minima], axis=1), np.float32),
        )


def _ik(name: str, bits: float, **fields: Any) -> IkQuant:
    summary = f"uneven levels, super-blocks (ik_llama.cpp's {name.upper()})"
    return IkQuant(name=name, bits=bits, summary=summary, instead="iq4_nl", of_files=True, **fields)


def of_table(name: str, levels: tuple[int, ...], group: int, most: tuple[int, int]) -> IkQuant:
    """Make a format of at most sixteen levels; most: the range of scales of groups of 16 or 32 k.

    Codes take four bits, whatever they take in files.
    """
    table = (*levels, *levels[-1:] * (16 - len(levels)))
    return _ik(
        name,
        4 + 16 / 256 + 8 / group,
        layout=Layout("lut4" if group == 32 else "lut4x16"),
        codebook=codebook(table),
        scales=SuperBlockScales(group, scale_range=most),
    )


def shifted(name: str, scales: SuperBlockScales) -> IkQuant:
    """Make a format of iq4_nl's levels, which minima shift."""
    floats = 64 if scales.wide else 32
    return _ik(
        name,
        4 + floats / 256 + 16 / scales.group,
        layout=Layout("lut4" if scales.group == 32 else "lut4x16"),
        codebook=CODEBOOK,
        scales=scales,
    )


def of_bytes(name: str, levels: tuple[int, ...], shift: int, scales: SuperBlockScales) -> IkQuant:
    """Make a format of a table's levels and of those above them by `shift`, a byte each.

    scales: of groups of 16 k.
    """
    both = sorted({*levels, *(level + shift for level in levels)})
    return _ik(
        name,
        8 + (32 if scales.wide else 16) / 256 + 8 / 16,
        layout=Layout("b8x16"),
        codebook=Codebook(tuple(both), offset=128),
        scales=scales,
    )
