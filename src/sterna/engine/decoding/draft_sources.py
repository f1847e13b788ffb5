"""Where drafts come from: earlier text, a grammar, a predicted output, a smaller model."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.reasoning_budget import ReasoningMatcher
from sterna.engine.decoding.sampling import Draw, checked_finite
from sterna.engine.engine import PREFILL_CHUNK, Engine
from sterna.engine.kv_cache.sequence import Sequence
from sterna.engine.step_io import StepInput
from sterna.errors import NonFiniteError, RequestError

__all__ = ["LONG", "SHORT", "DraftModel", "ForcedTokens", "PredictedOutput", "PromptLookup"]

I32 = npt.NDArray[np.int32]

#: Tokens by which `PromptLookup` looks a text up: after so many equal ones, the next are mostly
#: equal, too.
LONG = 8
#: The same, shorter: in free text rarely right, and fewer would match by chance.
SHORT = 3
#: 2^64 over the golden ratio, and odd (Knuth's multiplicative hashing).
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class PromptLookup:
    """Drafts what followed the last tokens where prompt or answer had them before.

    gram: how many of the last tokens must be equal, LONG or SHORT; the latest such place counts.
    Takes 8 to 16 bytes a token.
    """

    cost: float = 0.0

    def __init__(self, gram: int) -> None:
        self.prior: float = 0.8 if gram >= LONG else 0.35
        self._gram = gram
        # Where `gram` tokens end, by their hash. A collision loses the earlier place.
        self._ends = np.zeros(1 << 10, np.int32)
        self._seen = gram - 1  # ends up to here are in the table

    def propose(self, history: I32, k: int) -> list[int]:
        """Propose as `DraftSource.propose`; a place near the end is repeated to get k tokens."""
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
        """Return the table slot of each run of `gram` tokens: the highest bits of a polynomial."""
        runs = len(tokens) - self._gram + 1
        hashes: npt.NDArray[np.uint64] = np.zeros(runs, np.uint64)
        for i in range(self._gram):
            hashes = (hashes + tokens[i : i + runs].astype(np.uint64)) * _FACTOR
        hashes >>= np.uint64(65 - len(self._ends).bit_length())
        return hashes


class ForcedTokens:
    """Drafts the tokens that a grammar leaves no choice about."""

    cost: float = 0.0
    prior: float = 0.95

    def __init__(self, matcher: GrammarMatcher | ReasoningMatcher) -> None:
        self._matcher = matcher

    def propose(self, history: I32, k: int) -> list[int]:
        """Propose as `DraftSource.propose`, if the matcher has followed the answer."""
        return self._matcher.forced_tokens()[:k]


class PredictedOutput:
    """Drafts from a text that the answer will resemble, such as a file that is to be edited.

    begin: where the answer begins in the history; tokens: token ids of the text.
    """

    cost: float = 0.0
    prior: float = 0.8

    def __init__(self, begin: int, tokens: SequenceOf[int]) -> None:
        self._begin, self._tokens = begin, list(tokens)
        self._at = 0  # the place in the text after the answer's first `_seen` tokens
        self._seen = 0
        self._places: dict[tuple[int, ...], list[int]] = {}
        for end in range(SHORT, len(self._tokens) + 1):
            self._places.setdefault(tuple(self._tokens[end - SHORT : end]), []).append(end)

    def propose(self, history: I32, k: int) -> list[int]:
        """Propose as `DraftSource.propose`: the tokens after the match nearest to the last one."""
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
    """Drafts with a smaller model of the same tokenizer, which draws with the request's own random
    numbers.

    engine: engine of the smaller model; params: the request's; begin: where its answer begins;
    cost: time of a draft, in the model's steps of one token. It has a sequence of its own in its
    engine, and drafts nothing if that has no room.
    """

    prior: float = 0.6

    def __init__(
        self, engine: Engine, params: _native.SampleParams, begin: int, cost: float
    ) -> None:
        self.cost = cost
        self._engine, self._params, self._begin = engine, params, begin
        self._sequence = Sequence()
        self._computed: I32 = np.zeros(0, np.int32)  # tokens of its sequence

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
        """Rewind to where the computed tokens differ from the history, before its last token."""
        n = min(self._sequence.length, len(self._computed), len(history) - 1)
        other = np.flatnonzero(self._computed[:n] != history[:n])
        self._engine.kv_cache.rewind(self._sequence, int(other[0]) if len(other) else n)

    def _next(self, text: I32) -> int:
        while True:
            part = text[self._sequence.length :][:PREFILL_CHUNK]
            last = self._sequence.length + len(part) == len(text)
            draw = Draw(self._params, text, self._begin) if last else None
            (output,) = self._engine.run([StepInput(self._sequence, part, int(last), draw=draw)])
            self._computed = text[: self._sequence.length].copy()
            if last:
                return int(checked_finite(output.drawn[0]).token)
