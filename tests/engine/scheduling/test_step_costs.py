"""The time of steps, learnt from earlier steps."""

from __future__ import annotations

import pytest

from sterna.engine.scheduling.step_costs import StepCosts, StepWork


def test_costs_are_learnt() -> None:
    """A line, and what depths add, to a tenth, through noise and outliers; never falling."""
    costs = StepCosts()
    assert costs.ms(StepWork(7)) == 0.0

    def truth(work: StepWork) -> float:
        return 30 + 5 * work.tokens + work.read * 0.01 + work.rows * 1e-4

    for i in range(600):
        tokens = (1, 3, 16, 48, 128, 300, 512)[i % 7]
        work = StepWork().plus(tokens, i * 37 % 4000)
        noise = 4.0 if i % 50 == 49 else (0.97, 1.0, 1.03)[i % 3]
        costs.learn(work, truth(work) * noise)
    for tokens in (1, 3, 16, 48, 128, 256, 512):
        for depth in (0, 1000, 3000):
            work = StepWork().plus(tokens, depth)
            assert costs.ms(work) == pytest.approx(truth(work), rel=0.1)
    times = [costs.ms(StepWork(n)) for n in range(1, 700)]
    assert times == sorted(times)
    still = StepCosts()
    for _ in range(9):
        still.learn(StepWork(4), 1e-9)
    assert still.ms(StepWork(1)) > 0
    costs.learn(StepWork(0), 5.0)
    costs.learn(StepWork(1), float("nan"))
    assert [costs.ms(StepWork(n)) for n in range(1, 700)] == times


def test_what_was_slow_once_is_not_slow_for_ever() -> None:
    """A machine that was busy before a prompt comes in, and is idle since; few tokens and many."""
    costs = StepCosts()
    for _ in range(30):
        costs.learn(StepWork(4), 500.0)
    costs.learn(StepWork(64), 9000.0)
    for _ in range(30):
        costs.learn(StepWork(10), 80.0)
    assert costs.ms(StepWork(4)) <= costs.ms(StepWork(10)) == pytest.approx(80, rel=0.2)
    assert costs.ms(StepWork(20)) < 200


@pytest.mark.parametrize("tokens", [11, 3])
def test_one_step_that_was_fast_by_chance(tokens: int) -> None:
    """Of a size that is new, at a depth where attention takes as long as the rest: it does not
    bring down what all sizes take, after which a chunk would be too large by far."""
    costs = StepCosts()

    def step(tokens: int, depth: int) -> tuple[StepWork, float]:
        work = StepWork(tokens - 4, 400, 400).plus(4, depth)
        return work, 40 + 1.8 * tokens + 2e-3 * work.rows

    costs.learn(StepWork(64), 155.0)
    for i in range(130):
        work, ms = step(16, 16 * i)
        costs.learn(work, ms * (0.9, 1.0, 1.1, 0.95, 1.05)[i % 5])
    work, ms = step(tokens, 2080)
    costs.learn(work, 0.5 * ms)
    for more in (48, 128, 512):
        work, ms = step(more, 2080)
        assert costs.ms(work) > 0.5 * ms
    assert costs.chunk(StepWork(4, 8000, 8000), 2080, 1000, 100.0) <= 48


def test_chunks_fit_what_is_left() -> None:
    """They make steps of multiples of 16, or are all that is left, or fewer than 16, as many as
    fit; steps of at most 512."""
    costs = StepCosts()
    assert costs.chunk(StepWork(), 0, 1000, 100.0) == 64  # nothing is known yet
    assert costs.chunk(StepWork(), 0, 1000, float("inf")) == 512
    for tokens in (1, 16, 64, 256, 512):
        costs.learn(StepWork(tokens), 30 + 5 * tokens)
    for budget in range(0, 3000, 7):
        for left in (1, 15, 16, 17, 500, 2000):
            chunk = costs.chunk(StepWork(4), 0, left, float(budget))
            assert chunk == left or (4 + chunk) % 16 == 0 or chunk < 16
            assert chunk + 4 <= 512
            assert chunk == 0 or costs.ms(StepWork(4 + chunk)) <= budget
            more = chunk + (1 if (4 + chunk) % 16 else 16)
            assert chunk == left or costs.ms(StepWork(4 + more)) > budget or more > 508
