"""A whole model as a participant: prompts and generation, with checked logits."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from sterna_papers.energy import Rapl
from sterna_papers.peers.case import F32, Case, Options, distance, end_to_end

__all__ = ["LIMIT", "EndToEnd"]

#: The tokens compared with go in one at a time up to FIRST, then in pieces of PIECE, which takes a
#: fraction of the time; the last one is alone again.
FIRST, PIECE = 64, 8
#: The context before a case goes in so many at a time.
CONTEXT_PIECE = 512

#: Two ways to compute the same logits may differ by the rounding of int8 activations: a value that
#: float rounding moves across a step changes by 1/127 of its token's maximum, in four quantisations
#: a layer. With unrelated noise that is about sqrt(4 * 30) / 127 = 0.09 after 30 layers. Logits of
#: something else are at a distance of about sqrt(2), zeros at 1.
LIMIT = 0.25


class EndToEnd(ABC):
    """The base of participants that run a model; subclasses define how to keep, feed and read.

    A run counts if its logits equal, within LIMIT, those after the same tokens fed a few at a time.
    Successive runs with a context share the context, which is computed once.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.vocab = options.model.vocab
        self.cases = end_to_end(options)
        self._expected: dict[tuple[int, int], F32] = {}
        #: Tokens of the context that `_begin` fed and that nothing has replaced since.
        self._context = 0
        self._rapl = Rapl()
        #: Energy of the machine during the last timed run; None where it does not tell.
        self.joules: float | None = None

    @property
    def positions(self) -> int:
        """The positions that the longest case needs, as a multiple of 256."""
        return -(-max(case.depth + case.n for case in self.cases) // 256) * 256

    @abstractmethod
    def keep(self, length: int) -> int:
        """Forget all tokens but the first `length`; returns how many are left.

        Those are fewer where a state of recurrent layers cannot be taken back.
        """

    @abstractmethod
    def feed(self, tokens: Sequence[int]) -> None:
        """Compute these tokens and the logits after the last; calls of this are timed."""

    @abstractmethod
    def logits(self) -> F32:
        """Return a copy of the logits after the last token fed, float32 [vocab]."""

    @abstractmethod
    def weight_bytes(self, case: Case) -> float | None:
        """Return the bytes of weights that one step reads; None if unknown."""

    def check(self, case: Case) -> tuple[bool, str]:
        """Compare the logits with those of a few tokens at a time, and of another prompt.

        The other prompt runs in between, so that a run that computes nothing finds the other
        prompt's results in its buffers, not its own.
        """
        expected = self._stepwise(case)
        other = self._whole(self._prompt(min(case.n, FIRST), 104729), case.depth)
        whole = self._whole(self._prompt(case.n), case.depth)
        if not (np.isfinite(whole).all() and whole.min() < whole.max()):
            return False, "logits are not finite or all equal"
        error, change = distance(whole, expected), distance(whole, other)
        how = (
            f"logits after {case.n} tokens at once differ from those of {self._pieces(case.n)} by "
            f"{error:.1e} of their norm (limit {LIMIT}), from another prompt's by {change:.2f}"
        )
        return error <= LIMIT < change, how

    def time(self, case: Case) -> tuple[float, bool]:
        """Feed tokens at once (pp) or one by one (tg), and time only that.

        A few other tokens come first. They wake the threads, and leave wrong logits in the buffers.
        """
        expected, tokens = self._stepwise(case), self._prompt(case.n)
        self._whole(self._prompt(4, 104729), case.depth)
        self._begin(case.depth)
        spent = self._rapl.sample()
        begin = time.perf_counter()
        if case.what.startswith("pp"):
            self.feed(tokens)
        else:
            for token in tokens:
                self.feed([token])
        took = time.perf_counter() - begin
        self.joules = self._rapl.joules(spent, self._rapl.sample())
        return took, distance(self.logits(), expected) <= LIMIT

    def _prompt(self, n: int, stride: int = 7919) -> list[int]:
        return [(i * stride + 1) % self.vocab for i in range(n)]

    def _begin(self, depth: int) -> None:
        """Forget all tokens but a context of `depth`, which is always the same."""
        if depth != self._context or self.keep(depth) != depth:
            self._context = 0
            self.keep(0)
            context = self._prompt(depth, 15485863)
            for i in range(0, depth, CONTEXT_PIECE):
                self.feed(context[i : i + CONTEXT_PIECE])
            self._context = depth

    def _whole(self, tokens: Sequence[int], depth: int) -> F32:
        self._begin(depth)
        self.feed(tokens)
        return self.logits()

    @staticmethod
    def _pieces(n: int) -> str:
        return (
            "one at a time" if n <= FIRST + 1 else f"one at a time, after {FIRST} {PIECE} at a time"
        )

    def _stepwise(self, case: Case) -> F32:
        """Return logits after tokens fed a few at a time; a pass serves all lengths of a depth."""
        at_depth = self._expected.get((case.depth, case.n))
        if at_depth is not None:
            return at_depth
        wanted = sorted({other.n for other in self.cases if other.depth == case.depth})
        tokens = self._prompt(wanted[-1])
        self._begin(case.depth)
        at = 0
        while at < len(tokens):
            # Stop before, and then after, the last token of a wanted length.
            stop = next(m for m in wanted if m > at)
            size = 1 if at < FIRST or stop - at == 1 else min(PIECE, stop - 1 - at)
            self.feed(tokens[at : at + size])
            at += size
            if at in wanted:
                self._expected[case.depth, at] = self.logits()
        return self._expected[case.depth, case.n]
