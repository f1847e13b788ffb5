"""Drafts: tokens that a request will probably have next, computed in one step and then checked.

A step computes the last known token and the drafts behind it, and draws a token from each row, as
if one had come after the other: with the parameters, history, mask and random number of its
position. While what was drawn is what was drafted, the next row counts; the first that differs is
the last. So drafts change how many tokens a step gives, and never which.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.engine import PREFILL_CHUNK, Engine, StepInput
from sterna.engine.guide import Guide
from sterna.engine.sampling import Draw, checked
from sterna.engine.sequence import Sequence
from sterna.errors import NonFiniteError, RequestError

__all__ = [
    "MOST_DRAFTS",
    "Costs",
    "DraftModel",
    "Forced",
    "HiddenStateReader",
    "Prediction",
    "PromptLookup",
    "Source",
    "Speculation",
    "usual_costs",
]

I32 = npt.NDArray[np.int32]
#: Time of a step of so many tokens, in any unit.
Costs = Callable[[int], float]

#: Drafts of a step: with the last token 16, which all kernels take straight from the decoder.
MOST_DRAFTS = 15
#: Tokens by which a text is looked up. Where so many are the same, mostly the next ones are, too.
LONG = 8
#: Where only so many are, in free text rarely; fewer match by chance.
SHORT = 3
#: 2^64 over the golden ratio, and odd (Knuth's multiplicative hashing).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def usual_costs(tokens: int) -> float:
    """A step of so many tokens, in steps of one: 4 tokens take 1.33 of a 2B model's on AVX-512."""
    return 1 + 0.11 * (tokens - 1)


class Source(Protocol):
    """Where drafts come from."""

    #: What a draft takes by itself, in steps of one token.
    cost: float
    #: What share of its drafts is expected to be right before any was made.
    prior: float

    def propose(self, history: I32, k: int) -> list[int]:
        """At most k tokens that may follow `history`, prompt and answer so far, int32 [n]."""
        ...


@runtime_checkable
class HiddenStateReader(Protocol):
    """A draft source that uses the hidden states of the model it drafts for."""

    def observe(self, history: I32, start: int, rows: npt.NDArray[np.float32]) -> None:
        """Take the hidden states of the tokens of `history` from `start` on, float32
        [n, hidden_size].

        Each comes once the token after it is known. Some may come again, others never."""
        ...


class PromptLookup:
    """What followed the last tokens when the prompt, or the answer, had them before.

    gram: how many of the last tokens must be the same, LONG or SHORT; the latest place counts.
    Memory: 8 to 16 bytes a token.
    """

    cost = 0.0

    def __init__(self, gram: int) -> None:
        self.prior = 0.8 if gram >= LONG else 0.35
        self._gram = gram
        # By the hash of `gram` tokens, where they end. One that displaces another costs a draft.
        self._ends = np.zeros(1 << 10, np.int32)
        self._seen = gram - 1  # ends up to here are in the table

    def propose(self, history: I32, k: int) -> list[int]:
        """As `Source.propose`. Where the place found is near the end, what it says is repeated."""
        n, gram = len(history), self._gram
        if n < gram:
            return []
        if 2 * n > len(self._ends):
            self._ends = np.zeros(1 << (4 * n - 1).bit_length(), np.int32)
            self._seen = gram - 1
        slots = self._slots(history[self._seen + 1 - gram :])
        self._ends[slots[:-1]] = np.arange(self._seen + 1, n, dtype=np.int32)
        self._seen = n - 1
        place = int(self._ends[slots[-1]])
        if place == 0 or (history[place - gram : place] != history[n - gram :]).any():
            return []
        return [int(history[place + i % (n - place)]) for i in range(k)]

    def _slots(self, tokens: I32) -> npt.NDArray[np.uint64]:
        """Of each run of `gram` tokens, its place in the table: a polynomial's highest bits."""
        runs = len(tokens) - self._gram + 1
        hashes: npt.NDArray[np.uint64] = np.zeros(runs, np.uint64)
        for i in range(self._gram):
            hashes = (hashes + tokens[i : i + runs].astype(np.uint64)) * _FACTOR
        hashes >>= np.uint64(65 - len(self._ends).bit_length())
        return hashes


class Forced:
    """What a grammar leaves no choice about."""

    cost, prior = 0.0, 0.95

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def propose(self, history: I32, k: int) -> list[int]:
        """As `Source.propose`, where the guide has followed the history's answer."""
        return self._guide.forced()[:k]


class Prediction:
    """A text that the answer is expected to be, or to have parts of: a file that is to be edited.

    begin: where the answer begins in the history; tokens: the text's.
    """

    cost, prior = 0.0, 0.8

    def __init__(self, begin: int, tokens: SequenceOf[int]) -> None:
        self._begin, self._tokens = begin, list(tokens)
        self._at = 0  # in the text, of the answer's first `_seen` tokens
        self._seen = 0
        self._places: dict[tuple[int, ...], list[int]] = {}
        for end in range(SHORT, len(self._tokens) + 1):
            self._places.setdefault(tuple(self._tokens[end - SHORT : end]), []).append(end)

    def propose(self, history: I32, k: int) -> list[int]:
        """As `Source.propose`: what follows in the text, from the place nearest to the last one."""
        answer = history[self._begin + self._seen :].tolist()
        self._seen += len(answer)
        if self._tokens[self._at : self._at + len(answer)] == answer:
            self._at += len(answer)
            return self._tokens[self._at : self._at + k]
        last = history[max(self._begin, len(history) - SHORT) :].tolist()
        places = self._places.get(tuple(last), [])
        if not places:
            self._at += len(answer)
            return []
        expected = self._at + len(answer)
        self._at = min(places, key=lambda place: abs(place - expected))
        return self._tokens[self._at : self._at + k]


class DraftModel:
    """Another model of the same tokenizer, which draws with the request's own random numbers.

    params, begin: of the request, and where its answer begins; cost: what a token of it takes. It
    has a sequence of its own in its engine, and drafts nothing where that has no room.
    """

    prior = 0.6

    def __init__(
        self, engine: Engine, params: _native.SampleParams, begin: int, cost: float
    ) -> None:
        self.cost = cost
        self._engine, self._params, self._begin = engine, params, begin
        self._sequence = Sequence()
        self._computed: I32 = np.zeros(0, np.int32)  # the tokens of its sequence

    def propose(self, history: I32, k: int) -> list[int]:
        k = min(k, self._engine.context - len(history))
        text = np.concatenate([history, np.zeros(max(k, 0), np.int32)])
        try:
            self._go_back(history)
            for known in range(len(history), len(history) + k):
                text[known] = self._next(text[:known])
        except (RequestError, NonFiniteError):
            return []
        return [int(token) for token in text[len(history) :]]

    def _go_back(self, history: I32) -> None:
        """To where what was computed is no longer the history's, and before its last token."""
        n = min(self._sequence.length, len(self._computed), len(history) - 1)
        other = np.flatnonzero(self._computed[:n] != history[:n])
        self._engine.rewind(self._sequence, int(other[0]) if len(other) else n)

    def _next(self, text: I32) -> int:
        while True:
            part = text[self._sequence.length :][:PREFILL_CHUNK]
            last = self._sequence.length + len(part) == len(text)
            draw = Draw(self._params, text, self._begin) if last else None
            (output,) = self._engine.run([StepInput(self._sequence, part, int(last), draw=draw)])
            self._computed = text[: self._sequence.length].copy()
            if last:
                return int(checked(output.drawn[0]).token)


class _Record:
    """A source, and how often its latest drafts were right."""

    #: Of the drafts of earlier steps, how many still count after one more.
    MEMORY = 0.9
    #: How many drafts the source's prior share counts for.
    PRIOR = 2.0
    #: Tokens without drafts after it did not pay; each time twice as many.
    PAUSE = (16, 512)

    def __init__(self, source: Source) -> None:
        self.source = source
        self._forget()
        self._pause, self._rest_until = self.PAUSE[0], 0

    def worth(
        self, costs: Costs, others: int, position: int, most: int, again: int, goes_back: bool
    ) -> int:
        """How many drafts give most tokens for the time at this position, up to `most`.

        again: tokens that are computed beside the last one in any case; goes_back: where a draft is
        wrong, those before it are computed again with the next step's.
        """
        if position < self._rest_until:
            return 0
        share = min(self._hits / self._seen, 0.99)
        expected, later = 1.0 + others, 0.0
        best, k = expected / costs(1 + again), 0
        for n in range(1, most + 1):
            if goes_back:  # after n - 1
                later += share ** (n - 1) * (1 - share) * (costs(n) - costs(1))
            expected += share**n
            time = costs(1 + again + n) + n * self.source.cost * costs(1) + later
            rate = expected / time
            if rate > best:
                best, k = rate, n
        if k == 0 and most > 0:
            # It tries again after a pause, as if it had not yet been wrong.
            self._rest_until = position + self._pause
            self._pause = min(2 * self._pause, self.PAUSE[1])
            self._forget()
        return k

    def _forget(self) -> None:
        self._hits, self._seen = self.source.prior * self.PRIOR, self.PRIOR

    def note(self, drafted: int, accepted: int) -> None:
        """So many of a step's drafts were right; those behind the first wrong one do not count."""
        self._hits = self.MEMORY * self._hits + accepted
        self._seen = self.MEMORY * self._seen + min(drafted, accepted + 1)
        if accepted == drafted:
            self._pause = self.PAUSE[0]


class Speculation:
    """The sources of one sequence's drafts, and how many of them are worth it.

    The first source that has something to say is asked for as many as make most tokens for the time
    of a step, by the share of its drafts that were right lately; none where that is no gain.

    engine: whose sequence it is; None: of a model without recurrent layers. These cannot take a
    token back: where a draft is wrong, those before it are computed again from the state that they
    began with, and that has to have room.
    """

    def __init__(self, sources: SequenceOf[Source], engine: Engine | None = None) -> None:
        self._records = [_Record(source) for source in sources]
        self._latest: _Record | None = None
        self._engine = engine
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
        return self._engine is None or self._engine.may_draft(sequence)

    def propose(
        self, history: I32, most: int, costs: Costs = usual_costs, others: int = 0, again: int = 0
    ) -> list[int]:
        """At most so many drafts of what follows `history`.

        costs: of the step by this sequence's tokens, of which so many are computed `again` beside
        the last one and the drafts; others: tokens that the step gives other sequences.
        """
        goes_back = self._engine is not None and self._engine.state_bytes > 0
        for record in self._records:
            k = record.worth(costs, others, len(history), most, again, goes_back)
            drafts = record.source.propose(history, k) if k else []
            if drafts:
                self._latest = record
                return drafts
        return []

    def note(self, drafted: int, accepted: int) -> None:
        """So many of the drafts of the latest step were right."""
        if self._latest is not None:
            self._latest.note(drafted, accepted)
