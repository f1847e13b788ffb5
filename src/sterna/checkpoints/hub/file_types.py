"""The types of GGUF files, as their names say them, and their bits a weight."""

from __future__ import annotations

import re

from sterna.files.words import words

__all__ = [
    "FOUR_BITS",
    "MOST_BITS",
    "SPLIT",
    "TRAINED",
    "kind_of",
    "name_without_kind",
    "nominal_bits",
    "stem_of",
]


def _table(text: str) -> dict[str, float]:
    cells = words(text)
    return {name: float(bits) for name, bits in zip(cells[::2], cells[1::2], strict=True)}


#: Bits a weight of whole files of an 8B model, by the type in their name. Source: the tables of
#: llama.cpp's quantize; for the levels of trained models and floats, the bits of their blocks.
BITS = _table("""
    IQ1_S 2.0  IQ1_M 2.15  IQ2_XXS 2.38  IQ2_XS 2.59  IQ2_S 2.74  IQ2_M 2.93
    IQ3_XXS 3.25  IQ3_XS 3.5  IQ3_S 3.66  IQ3_M 3.76  IQ4_XS 4.46  IQ4_NL 4.68
    Q2_K_S 2.97  Q2_K 3.16  Q2_K_L 3.3  Q2_K_XL 3.3
    Q3_K_S 3.64  Q3_K_M 4.0  Q3_K 4.0  Q3_K_L 4.3  Q3_K_XL 4.3
    Q4_0 4.66  Q4_1 5.1  Q4_K_S 4.67  Q4_K_M 4.89  Q4_K 4.89  Q4_K_L 5.0  Q4_K_XL 5.0
    MXFP4 4.5  MXFP4_MOE 4.5  NVFP4 4.5
    Q5_0 5.6  Q5_1 6.1  Q5_K_S 5.57  Q5_K_M 5.7  Q5_K 5.7  Q5_K_L 5.8  Q5_K_XL 5.8
    Q6_K 6.56  Q6_K_L 6.7  Q6_K_XL 7.2  Q8_0 8.5  Q8_K_XL 10.5  BF16 16  F16 16  FP16 16  F32 32
    PTQ1_0 1.75  PQ2_0 2.13  STQ1_0 1.31  Q2_0 2.25  Q1_0 1.13  I2_S 2.0  TQ1_0 1.69  TQ2_0 2.06
""")
#: Levels that models are trained with: more bits would hold the same weights.
TRAINED = words("PTQ1_0 PQ2_0 STQ1_0 Q2_0 Q1_0 I2_S TQ1_0 TQ2_0")
MOST_BITS = BITS["Q8_0"]  # more bits do not change what a model says
FOUR_BITS = BITS["Q4_K_XL"]  # the most that counts as about four
SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
_KIND = re.compile(
    rf"(?:(?<=[-._])|^)(?:UD-)?({'|'.join(sorted(BITS, key=len, reverse=True))})(?=[-.]|$)",
    re.IGNORECASE,
)


def stem_of(path: str) -> str:
    """Return a file's name without folders, its number among parts, and .gguf, in lower case."""
    last = path.lower().rpartition("/")[2]
    split = SPLIT.fullmatch(last)
    return split[1] if split else last.removesuffix(".gguf")


def kind_of(stem: str) -> str | None:
    """Return the last type in a file's name, in upper case; None if it has none."""
    found = _KIND.findall(stem)
    return found[-1].upper() if found else None


def name_without_kind(stem: str) -> str:
    """Return what is left of a file's name: the same for all files of a model."""
    return _KIND.sub("", stem).strip("-._").lower()


def nominal_bits(kind: str) -> float:
    """Return about how many bits a weight files of this type have."""
    return BITS[kind]
