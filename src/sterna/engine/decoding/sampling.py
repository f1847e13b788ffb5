"""`Draw`: how a step samples tokens from its logits. The sampler is native/sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.decoding.token_masks import TokenMasks
from sterna.errors import NonFiniteError, RequestError

__all__ = ["DecidingLogits", "Draw"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class DecidingLogits:
    """Which logits a step must compute exactly; with an exact head, others may be -inf.

    count: how many of the largest logits, with all ties of the last; 0: all. gap: in addition, the
    logits that are at most this far below the count-th largest.
    """

    count: int = 0
    gap: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 0 or not 0 <= self.gap <= 1e30:
            raise RequestError(
                f"deciding: needs count >= 0 and gap >= 0, but got {self.count}, {self.gap}"
            )


ALL_LOGITS = DecidingLogits()


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """How to sample a token from each row of a sequence's logits.

    history: the sequence's tokens, int32, including those of the step; each row sees the tokens up
    to its own. answer_begin: how many of them are the prompt's. masks: tokens allowed in each row,
    int32 [rows, words], one bit a token, the lowest bit of a word first; None: all. pending_masks:
    the same masks if they are still to be filled, during the step. mu: mirostat's state before the
    first row's token; NaN where the answer begins.
    """

    params: _native.SampleParams
    history: I32
    answer_begin: int = 0
    masks: I32 | None = None
    pending_masks: TokenMasks | None = None
    mu: float = math.nan

    @property
    def native(self) -> tuple[_native.SampleParams, I32, int, I32 | None, float]:
        """The native sampler's arguments."""
        return self.params, self.history, self.answer_begin, self.masks, self.mu

    def sample(self, logits: F32, position: int) -> _native.SampleResult:
        """Sample the token at `position` from logits [vocab], under the last row's mask if any."""
        if self.pending_masks is not None:
            self.pending_masks.check()
        return _native.sample(logits, self.native, position)


def checked_finite(drawn: _native.SampleResult) -> _native.SampleResult:
    """Return the drawn tokens; raises NonFiniteError if the logits were not finite."""
    if not drawn.finite:
        raise NonFiniteError(
            "logits: must be finite, but got NaN or infinity; the model's weights are damaged"
        )
    return drawn
