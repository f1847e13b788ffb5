"""A token drawn from logits: by which parameters, masks and logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.masks import Masks
from sterna.errors import NonFiniteError

__all__ = ["DecidingLogits", "Draw"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class DecidingLogits:
    """Which logits of a step decide: the `count` largest, ties included, and those within `gap`.

    count 0: all of them. gap: logits at most so much below the count-th largest decide, too.
    """

    count: int = 0
    gap: float = 0.0


#: All logits decide.
EVERYTHING = DecidingLogits()


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """A token to draw from each row of logits, with these parameters.

    history: the sequence's tokens, int32, those of the step included; each row sees those up to its
    own. answer_begin: how many of them are the prompt's. masks: of each row, which tokens are
    allowed, int32 [rows, words] with a bit a token, the lowest of a word first; None: all. late:
    these, where they are still to be made; a step has it done beside it.
    """

    params: _native.SampleParams
    history: I32
    answer_begin: int = 0
    masks: I32 | None = None
    late: Masks | None = None

    @property
    def native(self) -> tuple[_native.SampleParams, I32, int, I32 | None]:
        """The arguments of the native sampler."""
        return self.params, self.history, self.answer_begin, self.masks

    def sample(self, logits: F32, position: int) -> _native.SampleResult:
        """The token at `position`, with the last row's mask if any, from logits [vocab]."""
        if self.late is not None:
            self.late.check()
        return _native.sample(logits, self.native, position)


def checked(drawn: _native.SampleResult) -> _native.SampleResult:
    """What was drawn; NonFiniteError where the logits were not finite."""
    if not drawn.finite:
        raise NonFiniteError(
            "logits: must be finite, but got NaN or infinity; the model's weights are damaged"
        )
    return drawn
