"""Families of checkpoints that `transformers` has no class for, or reads as plain floats.

Each `Family` writes a small checkpoint in the published layout and says, written out from the
publication and not from Sterna, what it means: the real weights of every linear layer, whether
their inputs are rounded, and the norms before o and down. `reference` makes a `transformers` Llama
of that. Nothing here imports Sterna.
"""

from __future__ import annotations

from families.base import Family, reference
from families.onebit import ONEBIT
from families.paretoq import PARETOQ
from families.power_of_two import POWER_OF_TWO
from families.ternary import TERNARY
from families.trilm import TRILM

__all__ = ["FAMILIES", "Family", "reference"]

FAMILIES: dict[str, Family] = {**TERNARY, **ONEBIT, **TRILM, **PARETOQ, **POWER_OF_TWO}
