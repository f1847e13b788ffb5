"""What a step will take, learnt from the steps before."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna.engine.engine import PREFILL_CHUNK, StepInput

__all__ = ["Costs", "Work"]

#: Numbers of tokens whose time is remembered; between two of them it is interpolated.
KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Steps with chunks of prompts have multiples of so many tokens: blocks of all units divide it.
TOKENS = 16
#: Tokens of the first chunk, while nothing is known.
FIRST = 64
#: How far a step's time usually lies from what it should be, as a share of it.
NOISE = 0.1
#: How far a knot's time may wander from step to step, as a share of it: machines get busy and warm.
DRIFT = 0.01
#: A step that is off by more than so many standard deviations counts as if by so many: it was
#: disturbed.
SURPRISE = 3.0

#: No step takes less, whatever was learnt of a clock that stood still.
LEAST_MS = 1e-3

# Positions that count as one in the features, so that all of these are of the order of 1.
_READ, _ROWS = 1 << 12, 1 << 18


class Work:
    """What a step computes: new tokens; positions whose keys and values are read; and pairs of a
    new token and a position that it sees."""

    __slots__ = ("read", "rows", "tokens")

    def __init__(self, tokens: int = 0, read: int = 0, rows: int = 0) -> None:
        self.tokens, self.read, self.rows = tokens, read, rows

    @classmethod
    def of(cls, inputs: SequenceOf[StepInput]) -> Work:
        """That of a step that takes these, before it is run."""
        work = cls()
        for step_input in inputs:
            work = work.plus(len(step_input.tokens), step_input.sequence.length)
        return work

    def plus(self, tokens: int, depth: int) -> Work:
        """This and so many tokens of a sequence that has `depth` positions."""
        end = depth + tokens
        return Work(self.tokens + tokens, self.read + end, self.rows + tokens * (depth + end) // 2)


class Costs:
    """Milliseconds of a step by its `Work`: a piecewise linear function of its tokens, and a
    constant for each position read and each pair.

    Each step corrects all that it was made of (a Kalman filter whose state, these numbers, drifts
    slowly). The time never falls where there are more tokens.
    """

    def __init__(self) -> None:
        self._knots = np.zeros(0, np.int64)  # those that were learnt, ascending
        # ms of the knots, then of _READ positions and of _ROWS pairs; and how uncertain they are.
        self._ms = np.zeros(2)
        self._covariance = np.zeros((2, 2))
        self._table: list[float] = []  # of `_of_tokens`, once somebody asks; many may in a step

    @property
    def known(self) -> bool:
        """Whether a step was learnt."""
        return len(self._knots) > 0

    def knows(self, tokens: int) -> bool:
        """Whether it was learnt of steps of as many tokens or fewer, and of as many or more."""
        return self.known and bool(self._knots[0] <= tokens <= self._knots[-1])

    def ms(self, work: Work) -> float:
        """What the work will take; 0 while nothing is known."""
        if not self.known or not work.tokens:
            return 0.0
        return max(LEAST_MS, self._of_tokens(work.tokens) + self._seen(work))

    def rate(self, tokens: int) -> float:
        """Milliseconds a token of so many that read nothing; 1 while nothing is known."""
        return max(LEAST_MS, self._of_tokens(tokens)) / tokens if self.known else 1.0

    def learn(self, work: Work, ms: float) -> None:
        """A step has taken so long."""
        if work.tokens == 0 or not 0 < ms < 1e9:
            return
        weights = _weights(work.tokens)
        new = max(ms - self._seen(work), NOISE * ms)  # what its tokens take by themselves
        for knot in weights:
            self._add(knot, new, ms)
        features = np.array([weights.get(k, 0.0) for k in self._knots.tolist()])
        features = np.append(features, [work.read / _READ, work.rows / _ROWS])
        spread = self._covariance @ features
        variance = float(features @ spread) + (NOISE * ms) ** 2
        most = SURPRISE * math.sqrt(variance)
        off = max(-most, min(most, ms - float(features @ self._ms)))
        self._ms += spread * (off / variance)
        self._covariance -= np.outer(spread, spread) / variance
        drift = DRIFT * np.where(features > 0, np.maximum(self._ms, 1e-3 * ms), 0.0)
        self._covariance += np.diag(drift * drift)
        # Nothing takes less than no time: what would is none, and the others are what they probably
        # are then.
        for i in np.flatnonzero(self._ms < 0).tolist():
            if self._covariance[i, i] > 0:
                self._ms -= self._covariance[:, i] * (self._ms[i] / self._covariance[i, i])
        np.maximum(self._ms, 0.0, out=self._ms)
        self._fit_around(work.tokens, features[:-2])
        self._table = []

    def _fit_around(self, tokens: int, shares: npt.NDArray[np.float64]) -> None:
        """Brings the knots into the bounds that a step of so many tokens sets, learnt just now;
        shares: of the knots in it.

        More tokens take no less time, and n times as many at most n times as much, since they could
        come in n steps. So what was learnt long ago, of a busy machine, say, does not keep steps
        from sizes that would show how it is now. Since a single step may be off, the bounds are
        wider by as much as this one probably is: else each step that was fast by chance would bring
        all others down, and attention would come to explain what they take.
        """
        ms, ratio = float(shares @ self._ms[:-2]), self._knots / tokens
        off = math.sqrt(max(0.0, float(shares @ self._covariance[:-2, :-2] @ shares)))
        low = np.minimum(ratio, 1.0) * max(0.0, ms - off)
        self._ms[:-2] = np.clip(self._ms[:-2], low, np.maximum(ratio, 1.0) * (ms + off))

    def _seen(self, work: Work) -> float:
        """Milliseconds of reading positions and attending to them."""
        seen = work.read / _READ * self._ms[-2] + work.rows / _ROWS * self._ms[-1]
        return max(0.0, float(seen))

    def _add(self, knot: int, ms: float, off: float) -> None:
        """Puts a knot among those that are learnt, unless it is: of so many ms, or any other; off:
        by how much that may be wrong."""
        at = int(np.searchsorted(self._knots, knot))
        if at < len(self._knots) and self._knots[at] == knot:
            return
        if not self.known:
            self._covariance = np.eye(2) * off**2
        self._knots = np.insert(self._knots, at, knot)
        self._ms = np.insert(self._ms, at, ms)
        wider = np.insert(self._covariance, at, 0.0, axis=0)
        self._covariance = np.insert(wider, at, 0.0, axis=1)
        self._covariance[at, at] = off**2

    def chunk(self, work: Work, depth: int, left: int, budget_ms: float) -> int:
        """Tokens of a prompt, at `depth` and with `left` to go, that fit a step beside `work`.

        All that are left, or as many as make the step's tokens a multiple of 16, or fewer where not
        16 fit.
        """
        most = PREFILL_CHUNK - work.tokens
        if budget_ms != float("inf"):
            most = min(most, self._fitting(work, depth, most, budget_ms))
        if left <= most or most < TOKENS:
            return max(0, min(left, most))
        return (work.tokens + most) // TOKENS * TOKENS - work.tokens

    def outweighs_a_step(self, tokens: int) -> bool:
        """Whether to compute so many tokens of a prompt takes longer than to read the weights."""
        if not self.knows(tokens):
            return tokens >= TOKENS
        return self.ms(Work(1 + tokens)) >= 2 * self.ms(Work(1))

    def _fitting(self, work: Work, depth: int, most: int, budget_ms: float) -> int:
        if not self.known:
            return FIRST - work.tokens
        low, high = 0, max(0, most)
        while low < high:
            middle = (low + high + 1) // 2
            if self.ms(work.plus(middle, depth)) <= budget_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _of_tokens(self, tokens: int) -> float:
        """That of the knots alone; beyond the last that is known, in proportion."""
        table = self._table or self._tabled(np.arange(KNOTS[-1] + 1))
        self._table = table
        return table[tokens] if tokens < len(table) else self._tabled(np.array([tokens]))[0]

    def _tabled(self, tokens: npt.NDArray[np.int64]) -> list[float]:
        ms, most = np.maximum.accumulate(self._ms[:-2]), self._knots[-1]
        made = np.interp(tokens, self._knots, ms)
        table: list[float] = np.where(tokens > most, ms[-1] * tokens / most, made).tolist()
        return table


def _weights(tokens: int) -> dict[int, float]:
    """The knots beside so many tokens, and their shares."""
    at = bisect_right(KNOTS, tokens)
    if at == len(KNOTS):
        return {KNOTS[-1]: tokens / KNOTS[-1]}
    low, high = KNOTS[at - 1], KNOTS[at]
    share = (tokens - low) / (high - low)
    return {low: 1 - share, high: share} if share else {low: 1.0}
