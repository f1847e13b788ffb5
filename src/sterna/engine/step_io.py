"""Input and output of a step, for each sequence in it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.adapters import Adapter
from sterna.engine.sampling import EVERYTHING, DecidingLogits, Draw
from sterna.engine.sequence import Sequence

__all__ = ["StepInput", "StepOutput"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(eq=False, slots=True)
class StepInput:
    """One sequence's input to a step: its new tokens, and what to compute of the last of them.

    wanted: how many of them. draw: what to draw from their logits; None: the logits are wanted, of
    which those of `deciding` decide. drafts: how many of them, the last ones, may be taken back
    (`Sequence.settle`); a token comes before them. adapter: of this engine's model, the same in all
    steps of a sequence. rows: for an MTP layer, what the model's head
    has read of the token before each, float32 [tokens, hidden_size]; tells: whether what the head
    reads of each is wanted, of a model that has an MTP layer, or of that.
    """

    sequence: Sequence
    tokens: SequenceOf[int] | I32
    wanted: int = 0
    deciding: DecidingLogits = EVERYTHING
    draw: Draw | None = None
    drafts: int = 0
    adapter: Adapter | None = None
    rows: F32 | None = None
    tells: bool = False


@dataclass(eq=False, slots=True)
class StepOutput:
    """The result of a step for one `StepInput`: logits [wanted, vocab], or drawn tokens instead.

    `finite` of a drawn token is False where its logits were not finite. told: for inputs with
    `tells`, float32 [tokens, hidden_size].
    """

    logits: F32
    drawn: list[_native.SampleResult]
    told: F32 | None = None
