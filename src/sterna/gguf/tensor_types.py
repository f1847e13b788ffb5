"""The tensor types of GGUF files. Several types may share an id.

Ids: ggml.h of llama.cpp and of microsoft/BitNet, which gave some of them other meanings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sterna.files.words import words

__all__ = [
    "BLOCK_TYPES",
    "FLOAT_TYPES",
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
    row: int = 0  # further bytes of each row


I2_S = Layout("I2_S", 4, 1, 32)
FLOAT_TYPES = ("F32", "F16", "BF16")
#: Types whose blocks `blocks` reads.
BLOCK_TYPES = words("""
    Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 MXFP4 IQ4_NL IQ4_XS Q1_0 Q2_0
    PQ2_0 PTQ1_0 STQ1_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S
""")
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
    # Two forks of llama.cpp gave these ids to types of their own.
    142: (Layout("PQ2_0", 128, 34), Layout("IQ2_TN", 256, 64, row=4), Layout("IQ2_TN", 256, 66)),
    143: (Layout("PTQ1_0", 128, 28), Layout("IQ1_TN", 64, 13, row=2), Layout("IQ1_TN", 256, 54)),
}
#: Types that metadata keys with the prefix `prism.` announce.
PRISM_IDS = {142: "PQ2_0", 143: "PTQ1_0"}
#: microsoft/BitNet's types of ids whose bytes fit nothing above. Such tensors depend on a file of
#: tile sizes that was made for one machine.
TILED = {38: "TL1", 39: "TL2", 42: "TL2"}

#: ik_llama.cpp's types, which nothing here reads. _R4, _R8 and _R16 interleave rows.
IK_TYPES: dict[int, str] = {
    133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K",
    140: "IQ5_K", 141: "IQ6_K", 144: "IQ4_KS", 145: "IQ2_KS", 146: "IQ4_KSS", 151: "Q8_KV",
    152: "IQ5_KS", 153: "IQ2_KT", 154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL",
    158: "IQ1_KT", 202: "Q4_0_R8", 206: "Q5_0_R4", 208: "Q8_0_R8", 210: "Q2_K_R4", 211: "Q3_K_R4",
    212: "Q4_K_R4", 213: "Q5_K_R4", 214: "Q6_K_R4", 216: "IQ2_XXS_R4", 217: "IQ2_XS_R4",
    218: "IQ3_XXS_R4", 219: "IQ1_S_R4", 220: "IQ4_NL_R4", 221: "IQ3_S_R4", 222: "IQ2_S_R4",
    223: "IQ4_XS_R8", 229: "IQ1_M_R4", 230: "BF16_R16", 233: "Q6_0_R4", 335: "IQ2_BN_R4",
    337: "IQ2_K_R4", 338: "IQ3_K_R4", 339: "IQ4_K_R4", 340: "IQ5_K_R4", 344: "IQ4_KS_R4",
    352: "IQ5_KS_R4", 353: "MXFP4_R8", 397: "Q8_K_R16", 398: "Q8_KV_R8", 399: "Q8_K_R8",
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
