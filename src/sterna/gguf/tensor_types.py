"""The tensor types of GGUF files. Several types may share an id.

Ids: ggml.h of llama.cpp, of microsoft/BitNet, which gave some of them other meanings, and of
ik_llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sterna.files.words import words

__all__ = [
    "BLOCK_TYPES",
    "FLOAT_TYPES",
    "IK_BLOCK_TYPES",
    "IK_TYPES",
    "SCALED_TYPES",
    "Layout",
    "candidates",
    "is_known",
    "nbytes_of",
]


class Layout(NamedTuple):
    """A type's name, and the weights and bytes of a block along K; I2_S has 32 bytes more."""

    name: str
    k: int
    nbytes: int
    extra: int = 0  # further bytes of the whole tensor
    row: int = 0  # further bytes of each row, before its blocks
    rows: int = 1  # rows that lie side by side
    plain: str = ""  # the type that it is read as, if that is another one

    @property
    def as_read(self) -> str:
        """The name of the type that tensors are read as."""
        return self.plain or self.name

    @property
    def moves(self) -> bool:
        """Whether `ik_rows` makes plain blocks of its rows."""
        return self.rows > 1 or (self.row > 0 and self.name in BLOCK_TYPES)


I2_S = Layout("I2_S", 4, 1, 32)
FLOAT_TYPES = ("F32", "F16", "BF16")
#: Types whose blocks `blocks` reads.
BLOCK_TYPES = words("""
    Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4 IQ4_NL IQ4_XS Q1_0 Q2_0
    PQ2_0 PTQ1_0 STQ1_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
""")
#: Those of them that ik_llama.cpp alone has.
IK_BLOCK_TYPES = words("""
    Q6_0 IQ2_K IQ3_K IQ4_K IQ5_K IQ6_K IQ2_KS IQ3_KS IQ2_KL IQ4_KS IQ4_KSS IQ5_KS
""")
BLOCK_TYPES += IK_BLOCK_TYPES
#: Small floats with a scale for each 16, as NVFP4's safetensors have them.
SCALED_TYPES = ("NVFP4",)

_LAYOUTS: dict[int, tuple[Layout, ...]] = {
    0: (Layout("F32", 1, 4),),
    1: (Layout("F16", 1, 2),),
    2: (Layout("Q4_0", 32, 18),),
    3: (Layout("Q4_1", 32, 20),),
    6: (Layout("Q5_0", 32, 22),),
    7: (Layout("Q5_1", 32, 24),),
    8: (Layout("Q8_0", 32, 34),),
    9: (Layout("Q8_1", 32, 36), Layout("Q8_1", 32, 40)),
    10: (Layout("Q2_K", 256, 84),),
    11: (Layout("Q3_K", 256, 110),),
    12: (Layout("Q4_K", 256, 144),),
    13: (Layout("Q5_K", 256, 176),),
    14: (Layout("Q6_K", 256, 210),),
    15: (Layout("Q8_K", 256, 292),),
    16: (Layout("IQ2_XXS", 256, 66),),
    17: (Layout("IQ2_XS", 256, 74),),
    18: (Layout("IQ3_XXS", 256, 98),),
    19: (Layout("IQ1_S", 256, 50),),
    20: (Layout("IQ4_NL", 32, 18),),
    21: (Layout("IQ3_S", 256, 110),),
    22: (Layout("IQ2_S", 256, 82),),
    23: (Layout("IQ4_XS", 256, 136),),
    24: (Layout("I8", 1, 1),),
    25: (Layout("I16", 1, 2),),
    26: (Layout("I32", 1, 4),),
    27: (Layout("I64", 1, 8),),
    28: (Layout("F64", 1, 8),),
    29: (Layout("IQ1_M", 256, 56),),
    30: (Layout("BF16", 1, 2),),
    31: (Layout("Q4_0_4_4", 32, 18),),
    32: (Layout("Q4_0_4_8", 32, 18),),
    33: (Layout("Q4_0_8_8", 32, 18),),
    34: (Layout("TQ1_0", 256, 54),),
    35: (Layout("TQ2_0", 256, 66),),
    36: (I2_S, Layout("IQ4_NL_4_4", 32, 18)),
    37: (Layout("IQ4_NL_4_8", 32, 18),),
    38: (Layout("IQ4_NL_8_8", 32, 18),),
    39: (Layout("MXFP4", 32, 17),),
    40: (Layout("NVFP4", 64, 36),),
    41: (Layout("Q1_0", 128, 18),),
    42: (Layout("Q2_0", 64, 18), Layout("PQ2_0", 128, 34), Layout("STQ1_0", 256, 42)),
    43: (Layout("STQ1_0", 256, 42),),  # Tencent's later files
    133: (Layout("Q6_0", 32, 26),),
    137: (Layout("IQ2_K", 256, 76),),
    138: (Layout("IQ3_K", 256, 110),),
    139: (Layout("IQ4_K", 256, 144),),
    140: (Layout("IQ5_K", 256, 176),),
    141: (Layout("IQ6_K", 256, 212),),
    # Two forks of llama.cpp gave these ids to types of their own.
    142: (Layout("PQ2_0", 128, 34), Layout("IQ2_TN", 256, 64, row=4), Layout("IQ2_TN", 256, 66)),
    143: (Layout("PTQ1_0", 128, 28), Layout("IQ1_TN", 64, 13, row=2), Layout("IQ1_TN", 256, 54)),
    144: (Layout("IQ4_KS", 256, 136, row=4),),
    145: (Layout("IQ2_KS", 256, 70, row=2),),
    146: (Layout("IQ4_KSS", 256, 128, row=4),),
    152: (Layout("IQ5_KS", 256, 168, row=4),),
    156: (Layout("IQ3_KS", 256, 102, row=2),),
    157: (Layout("IQ2_KL", 256, 86, row=2),),
    202: (Layout("Q4_0_R8", 32, 18, rows=8, plain="Q4_0"),),
    206: (Layout("Q5_0_R4", 32, 22, rows=4, plain="Q5_0"),),
    208: (Layout("Q8_0_R8", 32, 34, rows=8, plain="Q8_0"),),
    210: (Layout("Q2_K_R4", 256, 84, rows=4, plain="Q2_K"),),
    211: (Layout("Q3_K_R4", 256, 110, rows=4, plain="Q3_K"),),
    212: (Layout("Q4_K_R4", 256, 144, rows=4, plain="Q4_K"),),
    213: (Layout("Q5_K_R4", 256, 176, rows=4, plain="Q5_K"),),
    214: (Layout("Q6_K_R4", 256, 210, rows=4, plain="Q6_K"),),
    216: (Layout("IQ2_XXS_R4", 256, 66, rows=4, plain="IQ2_XXS"),),
    217: (Layout("IQ2_XS_R4", 256, 74, rows=4, plain="IQ2_XS"),),
    218: (Layout("IQ3_XXS_R4", 256, 98, rows=4, plain="IQ3_XXS"),),
    219: (Layout("IQ1_S_R4", 256, 48, row=2, rows=4, plain="IQ1_S"),),
    220: (Layout("IQ4_NL_R4", 32, 18, rows=4, plain="IQ4_NL"),),
    221: (Layout("IQ3_S_R4", 256, 110, rows=4, plain="IQ3_S"),),
    222: (Layout("IQ2_S_R4", 256, 82, rows=4, plain="IQ2_S"),),
    223: (Layout("IQ4_XS_R8", 256, 136, rows=8, plain="IQ4_XS"),),
    230: (Layout("BF16_R16", 2, 4, rows=16, plain="BF16"),),
    233: (Layout("Q6_0_R4", 32, 26, rows=4, plain="Q6_0"),),
    337: (Layout("IQ2_K_R4", 256, 76, rows=4, plain="IQ2_K"),),
    338: (Layout("IQ3_K_R4", 256, 110, rows=4, plain="IQ3_K"),),
    339: (Layout("IQ4_K_R4", 256, 144, rows=4, plain="IQ4_K"),),
    340: (Layout("IQ5_K_R4", 256, 176, rows=4, plain="IQ5_K"),),
    344: (Layout("IQ4_KS_R4", 256, 136, row=4, rows=4, plain="IQ4_KS"),),
    352: (Layout("IQ5_KS_R4", 256, 168, row=4, rows=4, plain="IQ5_KS"),),
    353: (Layout("MXFP4_R8", 32, 17, rows=8, plain="MXFP4"),),
}
#: Types that metadata keys with the prefix `prism.` announce.
PRISM_IDS = {142: "PQ2_0", 143: "PTQ1_0"}
#: microsoft/BitNet's types of ids whose bytes fit nothing above. Such tensors depend on a file of
#: tile sizes that was made for one machine.
TILED = {38: "TL1", 39: "TL2", 42: "TL2"}

#: Types of ik_llama.cpp that nothing here reads: with trellises (KT), of its own BitNet models
#: (BN), and of keys, values and activations (Q8).
IK_TYPES: dict[int, str] = {
    134: "IQ1_BN", 135: "IQ2_BN", 151: "Q8_KV", 153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT",
    158: "IQ1_KT", 229: "IQ1_M_R4", 335: "IQ2_BN_R4", 397: "Q8_K_R16", 398: "Q8_KV_R8",
    399: "Q8_K_R8",
}  # fmt: skip


def is_known(type_id: int) -> bool:
    """Whether any type has this id."""
    return type_id in _LAYOUTS


def nbytes_of(layout: Layout, shape: Sequence[int]) -> int | None:
    """Count the bytes of a tensor [.., K] in this layout; None if rows are not whole blocks."""
    n = 1
    for size in shape:
        n *= size
    if layout is I2_S:  # blocks run on from row to row
        return n // layout.k + layout.extra if n % layout.k == 0 else None
    if shape[-1] % layout.k:
        return None
    return n // layout.k * layout.nbytes + n // shape[-1] * layout.row


def candidates(type_id: int) -> tuple[Layout, ...]:
    """List the types that have this id, the usual one first."""
    return _LAYOUTS[type_id]
