"""A step takes no memory once one as large, as far into a context, was seen.

Counted is what the native core takes between the call of the program and its logits: operator new
and the buffers, on all threads. Not counted is what Python gets: the array of logits, and the
arguments' way through the border.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sterna import loading
from sterna.engine import Engine, Sequence

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="operator new is counted on Linux only"
)
LARGEST = 96


def feed(engine: Engine, *counts: int, wanted: int | None = None, states: object = None) -> int:
    """Allocations of one step with so many tokens of each sequence."""
    sequences = states if isinstance(states, list) else [Sequence() for _ in counts]
    batch = [
        (s, [(7 * i) % 250 for i in range(n)], n if wanted is None else wanted)
        for s, n in zip(sequences, counts, strict=True)
    ]
    engine.step(batch)
    if states is None:
        for s in sequences:
            engine.release(s)
    return engine._program.allocations


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("recipe", "head"), [("bitnet-multiply", None), ("bitnet-untied", "int8"), ("llama-f32", None)]
)
def test_no_allocation_after_warm_up(
    recipe: str, head: str | None, threads: int, checkpoint: Callable[[str], Path]
) -> None:
    """Prompts, decoding and batches of any shape that fits in what was seen."""
    engine = Engine(loading.load(checkpoint(recipe), head=head), threads=threads)
    assert feed(engine, LARGEST // 2) > 0  # the count counts
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
