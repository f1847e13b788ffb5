"""Greedy decoding of sequences without a text, by the same steps as requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.engine import Draw, Engine, StepInput
from sterna.engine import Sequence as EngineSequence
from sterna.sampling_params import SamplingParams

__all__ = ["Greedy"]

_PARAMS = SamplingParams()


class Greedy:
    """Continues a sequence with the given tokens, and then with those that the steps draw.

    most: the most tokens to feed.
    """

    def __init__(self, sequence: EngineSequence, tokens: Sequence[int], most: int) -> None:
        self.sequence = sequence
        self._tokens = np.zeros(sequence.length + most, np.int32)
        self._known = sequence.length + len(tokens)
        self._tokens[sequence.length : self._known] = tokens

    @classmethod
    def step(cls, engine: Engine, batch: Sequence[Greedy]) -> None:
        """Feed the known tokens of each sequence, and draw the next token of each."""
        inputs = []
        for one in batch:
            draw = Draw(_PARAMS.native, one._tokens[: one._known])
            new = one._tokens[one.sequence.length : one._known]
            inputs.append(StepInput(one.sequence, new, 1, draw=draw))
        for one, output in zip(batch, engine.run(inputs), strict=True):
            if one._known < len(one._tokens):
                one._tokens[one._known] = output.drawn[0].token
                one._known += 1
