"""A step takes no memory once one as large, as far into a context, was seen.

test_allocations.py runs this file, in a process where memory is counted: what threads take, from
malloc and its relations and as mappings, while they do not hold the GIL. That is the core's step
from the program's begin to the last token drawn. Not counted is what Python gets: the array of
logits, and the arguments' way through the border.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_requests import PARAMS, params_of, prompt
from test_zeros import TOKENS, Zeros, model

from sterna import LLM, _testing, loading
from sterna.engine import DecidingLogits, Draw, Engine, Sequence, StepInput

LARGEST = 96


class Counted:
    """A program, and how many blocks of memory its last run took."""

    def __init__(self, program: Any) -> None:
        self.program, self.taken = program, 0

    def run(self, *args: Any) -> Any:
        before = _testing.allocations()
        given = self.program.run(*args)
        self.taken = _testing.allocations() - before
        return given


def taken(engine: Engine, inputs: list[StepInput]) -> int:
    """Blocks of memory that the core takes in a step; numpy's conversions before it are its own."""
    program = engine._program
    engine._program = counted = Counted(program)
    engine.run(inputs)
    engine._program = program
    return counted.taken


def feed(engine: Engine, *counts: int, wanted: int | None = None, states: object = None) -> int:
    """Allocations of one step with so many tokens of each sequence."""
    sequences = states if isinstance(states, list) else [Sequence() for _ in counts]
    inputs = [
        StepInput(s, [(7 * i) % 250 for i in range(n)], n if wanted is None else wanted)
        for s, n in zip(sequences, counts, strict=True)
    ]
    count = taken(engine, inputs)
    if states is None:
        for s in sequences:
            engine.kv_cache.release(s)
    return count


def test_memory_is_counted() -> None:
    """Of this process, and of what the core takes without the GIL alone."""
    assert _testing.counts_allocations()
    before = _testing.allocations()
    kept = [bytearray(1 << 20) for _ in range(9)]
    assert _testing.allocations() == before
    _testing.barrier_holds(3, 1)  # new threads
    assert len(kept) == 9
    assert _testing.allocations() > before


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("recipe", "head"),
    [
        ("bitnet-multiply", None),
        ("bitnet-untied", "int8"),
        ("llama-f32", None),
        ("qwen3_5", None),
        ("deepseek-v3.2", None),
    ],
)
def test_no_allocation_after_warm_up(
    recipe: str, head: str | None, threads: int, checkpoint: Callable[[str], Path]
) -> None:
    """Prompts, decoding and batches of any shape that fits in what was seen."""
    engine = Engine(loading.load(checkpoint(recipe), head=head), threads=threads)
    assert feed(engine, LARGEST // 2) > 0
    assert feed(engine, LARGEST) > 0
    assert feed(engine, LARGEST) == 0
    assert feed(engine, LARGEST, wanted=1) == 0
    assert feed(engine, 31, 1, 64) == 0
    assert feed(engine, *[1] * 8) == 0
    assert feed(engine, 17, wanted=0) == 0
    decoding = [Sequence()]
    for count in (32, 1, 1, 1, 40):  # past a page
        assert feed(engine, count, wanted=1, states=decoding) == 0
    assert feed(engine, LARGEST + 1) > 0
    # Past a chunk of attention, which is then divided by chunks; the second time all is there.
    counts = (250, 1, 9, 1, 60, 1)
    first, second = [Sequence()], [Sequence()]
    assert sum(feed(engine, n, wanted=1, states=first) for n in counts) > 0
    assert sum(feed(engine, n, wanted=1, states=second) for n in counts) == 0


def test_a_screened_step_takes_no_memory(checkpoint: Callable[[str], Path]) -> None:
    """Once as many rows were screened at once."""
    engine = Engine(loading.load(checkpoint("bitnet-multiply"), head="exact"), threads=2)
    counts = [
        taken(engine, [StepInput(Sequence(), [1, 2], 1, top) for _ in range(3)])
        for top in (DecidingLogits(40), DecidingLogits(3, 1.5), DecidingLogits(1))
    ]
    assert counts[0] > 0
    assert counts[1:] == [0, 0]


def test_a_step_that_skips_zeros_takes_no_memory() -> None:
    engine = Engine(model("t5", Zeros(0.7, 0.85)), threads=2, skip_zeros=True)
    sequence = Sequence()
    counts = [taken(engine, [StepInput(sequence, [token], 1)]) for token in TOKENS]
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]


@pytest.mark.parametrize("recipe", ["bitnet-multiply", "llama-bf16"])
def test_draws_take_no_memory(recipe: str, checkpoint: Callable[[str], Path]) -> None:
    """Once as many, with such parameters, were drawn."""
    engine = LLM(checkpoint(recipe), threads=2).engine
    quiet = [i for i, p in enumerate(PARAMS) if "logprobs" not in p]
    counts = []
    for _ in range(4):
        inputs = []
        for i in quiet:
            history = np.array(prompt(i), np.int32)
            inputs.append(
                StepInput(Sequence(), history, 1, draw=Draw(params_of(i).native, history))
            )
        counts.append(taken(engine, inputs))
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]
