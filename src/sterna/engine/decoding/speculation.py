"""`Speculation`: drafts probable next tokens of a request, all checked by one step.

A step computes the last known token and the drafts after it, and draws a token from each row, as
if one had come after the other: with the parameters, history, mask and random number of its
position. As long as the drawn token is the drafted one, the next row counts; the first token that
differs is the last to count. So drafts change how many tokens a step gives, and never which.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.sequence import Sequence

__all__ = [
    "MOST_DRAFTS",
    "DraftSource",
    "HiddenStateReader",
    "Speculation",
    "StepTimes",
    "default_step_times",
]

I32 = npt.NDArray[np.int32]
#: Drafts of a step: with the last token 16, which all kernels take straight from the decoder.
MOST_DRAFTS = 15
#: Returns the times of a step, in any unit, by the tokens that one sequence has in it: 0 to
#: MOST_DRAFTS + 1. Most steps do not ask.
StepTimes = Callable[[], SequenceOf[float]]


def default_step_times(others: int = 0) -> list[float]:
    """Return the assumed times, in steps of one token, before measurements.

    For a 2B model on AVX-512, 4 tokens take 1.33. others: tokens of other sequences in the step.
    """
    return [1 + 0.11 * (others + n - 1) for n in range(MOST_DRAFTS + 2)]


class DraftSource(Protocol):
    """A source of drafts."""

    #: Time that making a draft takes, in steps of one token.
    cost: float
    #: Share of its drafts that is expected to be right before any was checked.
    prior: float

    def propose(self, history: I32, k: int) -> list[int]:
        """Return at most k tokens that may follow `history`, prompt and answer, int32 [n]."""
        ...


@runtime_checkable
class HiddenStateReader(Protocol):
    """A draft source that uses the hidden states of the model it drafts for."""

    def observe(self, history: I32, start: int, rows: npt.NDArray[np.float32]) -> None:
        """Take the hidden states of the tokens of `history` from `start` on, float32
        [n, hidden_size].

        Each comes once the token after it is known. Some may come again, others never."""
        ...


class _SourceRecord:
    """A source, and how often its latest drafts were right."""

    #: Weight of earlier steps' drafts after one more step.
    MEMORY = 0.9
    #: Drafts that the source's prior share counts for.
    PRIOR = 2.0
    #: If drafting does not pay, back off for 16 tokens, growing up to 512.
    PAUSE = (16, 512)

    def __init__(self, source: DraftSource) -> None:
        self.source = source
        self._forget()
        self._pause, self._rest_until = self.PAUSE[0], 0

    def rests(self, position: int) -> bool:
        """Whether it drafts nothing at this position, as its latest drafts did not pay."""
        return position < self._rest_until

    def worth(
        self,
        costs: SequenceOf[float],
        others: int,
        position: int,
        most: int,
        again: int,
        goes_back: bool,
    ) -> int:
        """Return how many drafts, up to `most`, give the most tokens per time at this position.

        costs: times of the step. again: tokens that the step computes again next to the last one;
        goes_back: whether the right drafts before a wrong one are computed again by the next step.
        """
        share = min(self._hits / self._seen, 0.99)
        expected, later = 1.0 + others, 0.0
        best, k = expected / costs[1 + again], 0
        for n in range(1, most + 1):
            if goes_back:  # after n - 1
                later += share ** (n - 1) * (1 - share) * (costs[n] - costs[1])
            expected += share**n
            time = costs[1 + again + n] + n * self.source.cost * costs[1] + later
            rate = expected / time
            if rate > best:
                best, k = rate, n
        if k == 0 and most > 0:
            # It tries again after a pause, with its prior share.
            self._rest_until = position + self._pause
            self._pause = min(2 * self._pause, self.PAUSE[1])
            self._forget()
        return k

    def _forget(self) -> None:
        self._hits, self._seen = self.source.prior * self.PRIOR, self.PRIOR

    def note(self, drafted: int, accepted: int) -> None:
        """Count a step's drafts; those after the first wrong one are not counted."""
        self._hits = self.MEMORY * self._hits + accepted
        self._seen = self.MEMORY * self._seen + min(drafted, accepted + 1)
        if accepted == drafted:
            self._pause = self.PAUSE[0]


class Speculation:
    """Chooses how many drafts a sequence's next step has, and which source makes them.

    Each source is asked for as many drafts as give the most tokens per time, by the share of its
    drafts that were right lately, or not at all if drafting does not pay. The first one that
    proposes any is taken.

    kv_cache: KV cache of the sequence. Recurrent layers cannot take a token back: after a wrong
    draft, the drafts before it are computed again from the state that the step began with, which
    needs room.
    """

    def __init__(
        self, sources: SequenceOf[DraftSource], kv_cache: KVCacheManager | None = None
    ) -> None:
        self._records = [_SourceRecord(source) for source in sources]
        self._latest: _SourceRecord | None = None
        self._kv_cache = kv_cache if kv_cache and kv_cache.state_bytes else None
        self._readers = [source for source in sources if isinstance(source, HiddenStateReader)]

    @property
    def wants_hidden_states(self) -> bool:
        """Whether a source needs the hidden states of all tokens."""
        return bool(self._readers)

    def observe(self, history: I32, start: int, rows: npt.NDArray[np.float32]) -> None:
        for reader in self._readers:
            reader.observe(history, start, rows)

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether the sequence's next step may have drafts."""
        return self._kv_cache is None or self._kv_cache.may_draft(sequence)

    def propose(
        self,
        history: I32,
        most: int,
        costs: StepTimes = default_step_times,
        others: int = 0,
        again: int = 0,
    ) -> list[int]:
        """Return at most `most` drafts for the tokens after `history`.

        costs: times of the step by how many tokens this sequence has in it; again: tokens that it
        computes again next to the last one; others: tokens that the step gives other sequences.
        """
        goes_back = self._kv_cache is not None
        times: SequenceOf[float] = ()
        for record in self._records:
            if record.rests(len(history)):
                continue
            times = times or costs()
            k = record.worth(times, others, len(history), most, again, goes_back)
            drafts = record.source.propose(history, k) if k else []
            if drafts:
                self._latest = record
                return drafts
        return []

    def note(self, drafted: int, accepted: int) -> None:
        """Note how many drafts of the latest step were right."""
        if self._latest is not None:
            self._latest.note(drafted, accepted)
