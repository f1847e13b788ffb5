"""`WaitTimes`: predicts how long prompts wait, by what steps really took at the present load."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.engine.scheduling.fair_queue import Entry, FairQueue
from sterna.engine.scheduling.step_costs import StepCosts, StepWork
from sterna.engine.scheduling.step_time import DECODE_ONLY_EVERY, SHORT_FIRST, StepTime

__all__ = ["WaitTimes", "tokens_of"]

#: Weight of earlier steps after one more. `StepCosts` learns slowly, so that one step does not
#: change chunks; but a machine gets busy, and idle again, within a few steps.
MEMORY = 0.9


class WaitTimes:
    """Predicts seconds until prompts are computed.

    costs: the predicted times of steps. They are compared with the time from one step to the
    next, so that a prediction is right by the load of the latest ten steps. queue: the order of
    prompts.
    """

    def __init__(self, costs: StepCosts, queue: FairQueue) -> None:
        self._costs, self._queue = costs, queue
        self._predicted_ms = self._took_ms = 0.0
        self._began = self._ms = 0.0  # the step that is not over yet; 0 ms: none

    # ------------------------------------------------------------------------- from step to step

    def step_began(self, now: float, work: StepWork) -> None:
        """Note a step that began at `now`, in seconds, before its own time is learnt."""
        self.step_ended(now)
        self._began, self._ms = now, self._costs.ms(work)

    def step_ended(self, now: float) -> None:
        """Note that the latest step, and what came after it, is over."""
        if self._ms > 0 and now > self._began:
            self._predicted_ms = MEMORY * self._predicted_ms + self._ms
            self._took_ms = MEMORY * self._took_ms + 1e3 * (now - self._began)
        self._ms = 0.0

    @property
    def _factor(self) -> float:
        """How many times as long as predicted steps take, 1 while nothing is known."""
        return self._took_ms / self._predicted_ms if self._predicted_ms else 1.0

    # ------------------------------------------------------------------------------- predictions

    def computed_s(self, step: StepTime, tokens: int, decoding: int) -> float:
        """Predict the seconds until so many tokens of prompts are computed, next to decoding.

        step: a step of only the decoding requests.
        """
        if not tokens or not self._costs.known:
            return 0.0
        chunk = max(1, self._costs.chunk(StepWork(decoding), 0, tokens, step.usual))
        ms = tokens / chunk * self._costs.ms(StepWork(decoding + chunk))
        if step.stretched:
            ms *= DECODE_ONLY_EVERY / (DECODE_ONLY_EVERY - 1)
        return ms / 1e3 * self._factor

    def before_s(
        self, left: int, prompts: Sequence[Entry], step: StepTime, decoding: int, now: float
    ) -> float:
        """Predict the seconds until steps come to a new prompt with so many tokens to compute.

        Other prompts go before it as `FairQueue` has it. If it is short, only those that are
        shorter do, and long ones take a part of the time.
        """
        if step.fits(left):
            before = [e for e in prompts if e.left <= left]
            share = SHORT_FIRST if len(before) < len(prompts) else 1.0
        else:
            rank = self._queue.seconds(left)
            before, share = [e for e in prompts if self._queue.rank(e, now) <= rank], 1.0
        encoding = sum(e.request.encoding_s for e in before)
        return (self.computed_s(step, tokens_of(before), decoding) + encoding) / share


def tokens_of(prompts: Sequence[Entry]) -> int:
    """Return how many tokens of these prompts are to be computed, shared prefixes counted once."""
    return sum(e.request.left if e.running else max(1, e.request.left - e.begun) for e in prompts)
