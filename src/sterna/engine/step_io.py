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

    wanted: how many of the last tokens want logits. draw: how to sample from these; None: return
    the logits, of which those of `deciding` are computed. drafts: how many of the tokens, the last
    ones, may be taken back (`Sequence.settle`); at least one token comes before them. adapter: of
    this engine's model, the same in all steps of a sequence. previous_hidden_states: for an MTP
    layer, the hidden state of the token before each, float32 [tokens, hidden_size].
    return_hidden_states: of each token; for an MTP layer and for models that have one.
    """

    sequence: Sequence
    tokens: SequenceOf[int] | I32
    wanted: int = 0
    deciding: DecidingLogits = EVERYTHING
    draw: Draw | None = None
    drafts: int = 0
    adapter: Adapter | None = None
    previous_hidden_states: F32 | None = None
    return_hidden_states: bool = False


@dataclass(eq=False, slots=True)
class StepOutput:
    """The result of a step for one `StepInput`: logits [wanted, vocab], or drawn tokens instead.

    `finite` of a drawn token is False where its logits were not finite. hidden_states: if asked
    for, float32 [tokens, hidden_size], after the model's last norm.
    """

    logits: F32
    drawn: list[_native.SampleResult]
    hidden_states: F32 | None = None
