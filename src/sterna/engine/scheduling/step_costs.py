"""`StepCosts`: predicts how long a step takes, learnt from the steps before."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna.engine.engine import PREFILL_CHUNK, StepInput

__all__ = ["StepCosts", "StepWork"]

#: Numbers of tokens whose time is learnt; between them it is interpolated.
KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: Steps with prompt chunks have a multiple of this many tokens: blocks of all units divide it.
CHUNK_MULTIPLE = 16
#: Tokens of the first prompt chunk, while nothing is learnt.
FIRST_CHUNK = 64
#: Usual deviation of a step's time, as a share of it.
NOISE = 0.1
#: Drift of a knot's time from step to step, as a share of it: machines get busy and warm.
DRIFT = 0.01
#: Standard deviations beyond which a step counts as disturbed, and its error is clipped.
OUTLIER = 3.0

#: Least prediction, in case the clock stood still.
LEAST_MS = 1e-3

# Units of the features, so that all of them are of the order of 1.
_READ, _ROWS = 1 << 12, 1 << 18


@dataclass(slots=True)
class StepWork:
    """The work of a step.

    tokens: new tokens; read: positions whose keys and values are read; rows: pairs of a new token
    and a position that it sees.
    """

    tokens: int = 0
    read: int = 0
    rows: int = 0

    @classmethod
    def of(cls, inputs: SequenceOf[StepInput]) -> StepWork:
        """Return the work of a step with these inputs, before it runs."""
        tokens = read = rows = 0
        for one in inputs:
            count, depth = len(one.tokens), one.sequence.length
            tokens, read = tokens + count, read + depth + count
            rows += count * (2 * depth + count) // 2
        return cls(tokens, read, rows)

    def plus(self, tokens: int, depth: int) -> StepWork:
        """Return this work plus new tokens of a sequence that has `depth` positions."""
        rows = self.rows + tokens * (2 * depth + tokens) // 2
        return StepWork(self.tokens + tokens, self.read + depth + tokens, rows)


class StepCosts:
    """Predicts the milliseconds of a step from its `StepWork`.

    The model is a piecewise linear function of the tokens, plus a constant for each position read
    and each pair. Each step corrects the numbers that it depends on: a Kalman filter, whose state
    drifts slowly. More tokens never take less time.
    """

    def __init__(self) -> None:
        self._knots = np.zeros(0, np.int64)  # learnt knots, ascending
        # Milliseconds of knots, then of _READ positions and _ROWS pairs; their covariance.
        self._ms = np.zeros(2)
        self._covariance = np.zeros((2, 2))
        self._table: list[float] = []  # of `_of_tokens`, made when it is first needed

    @property
    def known(self) -> bool:
        """Whether any step was learnt."""
        return len(self._knots) > 0

    def knows(self, tokens: int) -> bool:
        """Whether steps of at most and of at least `tokens` tokens were learnt."""
        knots = self._knots
        return len(knots) > 0 and bool(knots[0] <= tokens <= knots[-1])

    def ms(self, work: StepWork) -> float:
        """Predict the milliseconds of work; 0 while nothing is learnt."""
        tokens = work.tokens
        if not len(self._knots) or not tokens:
            return 0.0
        table = self._table
        ms = table[tokens] if tokens < len(table) else self._of_tokens(tokens)
        return max(LEAST_MS, ms + self._seen(work))

    def times(self, work: StepWork, count: int) -> list[float]:
        """Predict the milliseconds of work with 0 to `count` - 1 more tokens that read nothing."""
        seen, tokens = self._seen(work), work.tokens
        _ = self._of_tokens(tokens)  # fills the table
        return [max(LEAST_MS, ms + seen) for ms in self._table[tokens : tokens + count]]

    def rate(self, tokens: int) -> float:
        """Predict the milliseconds per token in a step of `tokens`; 1 while nothing is learnt."""
        return max(LEAST_MS, self._of_tokens(tokens)) / tokens if self.known else 1.0

    def learn(self, work: StepWork, ms: float) -> None:
        """Learn from a step that took `ms`."""
        if work.tokens == 0 or not 0 < ms < 1e9:
            return
        weights = _weights(work.tokens)
        new = max(ms - self._seen(work), NOISE * ms)  # only the time of its tokens
        for knot in weights:
            self._add(knot, new, ms)
        features = np.array([weights.get(k, 0.0) for k in self._knots.tolist()])
        features = np.append(features, [work.read / _READ, work.rows / _ROWS])
        spread = self._covariance @ features
        variance = float(features @ spread) + (NOISE * ms) ** 2
        most = OUTLIER * math.sqrt(variance)
        off = max(-most, min(most, ms - float(features @ self._ms)))
        self._ms += spread * (off / variance)
        self._covariance -= np.outer(spread, spread) / variance
        drift = DRIFT * np.where(features > 0, np.maximum(self._ms, 1e-3 * ms), 0.0)
        self._covariance += np.diag(drift * drift)
        # Nothing takes negative time: set such numbers to 0, and condition the others on that.
        for i in np.flatnonzero(self._ms < 0).tolist():
            if self._covariance[i, i] > 0:
                self._ms -= self._covariance[:, i] * (self._ms[i] / self._covariance[i, i])
        np.maximum(self._ms, 0.0, out=self._ms)
        self._fit_around(work.tokens, features[:-2])
        self._table = []

    def _fit_around(self, tokens: int, shares: npt.NDArray[np.float64]) -> None:
        """Clip the knots to the bounds that the step just learnt sets.

        tokens: number of tokens of that step; shares: shares of the knots in it. More tokens take
        no less time, and n times as many take at most n times as long, since they could come in n
        steps. So old knowledge, of a busy machine for example, does not keep steps from sizes that
        would correct it. The bounds are widened by the step's own uncertainty: otherwise each step
        that was fast by chance would pull all others down, and attention would be blamed for the
        rest.
        """
        ms, ratio = float(shares @ self._ms[:-2]), self._knots / tokens
        off = math.sqrt(max(0.0, float(shares @ self._covariance[:-2, :-2] @ shares)))
        low = np.minimum(ratio, 1.0) * max(0.0, ms - off)
        self._ms[:-2] = np.clip(self._ms[:-2], low, np.maximum(ratio, 1.0) * (ms + off))

    def _seen(self, work: StepWork) -> float:
        """Return the milliseconds of reading positions and attending to them."""
        seen = work.read / _READ * self._ms[-2] + work.rows / _ROWS * self._ms[-1]
        return max(0.0, float(seen))

    def _add(self, knot: int, ms: float, off: float) -> None:
        """Add a knot of `ms` with standard deviation `off`, unless it is there."""
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

    def chunk(self, work: StepWork, depth: int, left: int, budget_ms: float) -> int:
        """Return how many tokens of a prompt fit a step with other work.

        depth: positions of the sequence before them; left: tokens of the prompt to compute. If not
        all fit, the step's tokens are made a multiple of 16, unless fewer than 16 fit.
        """
        most = PREFILL_CHUNK - work.tokens
        if budget_ms != float("inf"):
            most = min(most, self._fitting(work, depth, most, budget_ms))
        if left <= most or most < CHUNK_MULTIPLE:
            return max(0, min(left, most))
        return (work.tokens + most) // CHUNK_MULTIPLE * CHUNK_MULTIPLE - work.tokens

    def outweighs_a_step(self, tokens: int) -> bool:
        """Whether computing `tokens` prompt tokens takes longer than reading the weights."""
        if not self.knows(tokens):
            return tokens >= CHUNK_MULTIPLE
        return self.ms(StepWork(1 + tokens)) >= 2 * self.ms(StepWork(1))

    def _fitting(self, work: StepWork, depth: int, most: int, budget_ms: float) -> int:
        if not self.known:
            return FIRST_CHUNK - work.tokens
        low, high = 0, max(0, most)
        while low < high:
            middle = (low + high + 1) // 2
            if self.ms(work.plus(middle, depth)) <= budget_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _of_tokens(self, tokens: int) -> float:
        """Interpolate the knots; beyond the last one, in proportion to the tokens."""
        table = self._table or self._tabled(np.arange(KNOTS[-1] + 1))
        self._table = table
        return table[tokens] if tokens < len(table) else self._tabled(np.array([tokens]))[0]

    def _tabled(self, tokens: npt.NDArray[np.int64]) -> list[float]:
        ms, most = np.maximum.accumulate(self._ms[:-2]), self._knots[-1]
        made = np.interp(tokens, self._knots, ms)
        table: list[float] = np.where(tokens > most, ms[-1] * tokens / most, made).tolist()
        return table


def _weights(tokens: int) -> dict[int, float]:
    """Return the knots next to this number of tokens, and their weights in the interpolation."""
    at = bisect_right(KNOTS, tokens)
    if at == len(KNOTS):
        return {KNOTS[-1]: tokens / KNOTS[-1]}
    low, high = KNOTS[at - 1], KNOTS[at]
    share = (tokens - low) / (high - low)
    return {low: 1 - share, high: share} if share else {low: 1.0}
