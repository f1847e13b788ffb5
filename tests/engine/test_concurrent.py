"""Several threads of Python compute at once, and each gets what it would get alone.

They share what applications share: pools of native threads, a program, the pages of an engine, the
weights of a model. .ci/sanitize runs this under the thread sanitizer, where importing torch would
take longer than all of it; so these are the built-in model and those of digests.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import digests
import numpy as np
import pytest
from helpers import ISAS
from waits import HANGS_S

from sterna import LLM, Conversation, _testing, loading, ops
from sterna.checkpoints.resolve import BUILT_IN
from sterna.engine import PAGE, Draw, Engine, StepInput
from sterna.engine import Sequence as EngineSequence
from sterna.errors import NonFiniteError, SternaError
from sterna.graph import compilation
from sterna.sampling_params import SamplingParams

T = TypeVar("T")
TEXTS = ("def read(path):", "import os\n", "class Tree:\n    def", "for i in range(")


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of calls that begin at the same time, a thread each."""
    start = threading.Barrier(len(calls))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(i: int) -> None:
        start.wait(HANGS_S)
        try:
            results[i] = calls[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(calls))]


@pytest.mark.parametrize("key", ["format i2", "format q4_k", "head exact", "format bf16"])
def test_engines_of_one_model(key: str) -> None:
    """In pools of their own and in one for several, on all units: the committed digests."""
    case = next(case for case in digests.cases() if str(case) == key)
    model, expected = case.model(), digests.committed()[key]
    runs = [(isa, kv, n) for isa in ISAS[1:] for kv in expected for n in (1, 2, 2, 3)]
    runs += [(ISAS[0], kv, 2) for kv in expected]  # the plain unit takes thirty times as long
    calls = [lambda run=run: digests.digest(model, *run) for run in runs]
    for (isa, kv, n), got in zip(runs, together(calls), strict=True):
        assert got == expected[kv], f"{isa}, {kv}, {n} threads"


def test_a_graph_is_compiled_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines of one model may begin at once: a program does not depend on another's."""
    graph = next(case for case in digests.cases() if str(case) == "head exact").model().graph
    programs: list[list[tuple[Any, ...]]] = []
    at_first: list[Callable[[], object]] = []

    class Recorded:
        """Takes down what is asked of it, and calls what is due before the first buffer."""

        def __init__(self, *arguments: Any) -> None:
            self.calls: list[tuple[Any, ...]] = [arguments]
            programs.append(self.calls)

        def __getattr__(self, name: str) -> Callable[..., int]:
            def call(*arguments: Any) -> int:
                if name == "buffer" and at_first:
                    at_first.pop()()
                plain = [a for a in arguments if isinstance(a, (bool, int, float, str))]
                self.calls.append((name, *plain))
                return len(self.calls)

            return call

    monkeypatch.setattr(compilation._native, "Program", Recorded)
    graph.compile()
    at_first.append(graph.compile)
    graph.compile()
    alone, outer, inner = programs
    assert len(alone) > len(graph.ops)
    assert outer == inner == alone


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=2, context=4 * PAGE)


def options(i: int) -> dict[str, Any]:
    """Greedy and sampled, with log-probabilities or without."""
    return {"max_tokens": 8 + i, "ignore_eos": True, "seed": i, "temperature": i % 2, "logprobs": i}


def test_requests_of_one_llm(llm: LLM) -> None:
    """Answers, log-probabilities and scores do not depend on who else asks."""

    def ask(i: int) -> tuple[Any, ...]:
        done = llm.generate(TEXTS[i], **options(i))
        scores = llm.logprobs(llm.tokenizer.encode(TEXTS[i] * (i + 1)))
        return done.text, done.tokens, done.logprobs, scores.tobytes()

    alone = [ask(i) for i in range(4)]
    assert together([lambda i=i: ask(i) for i in range(4)] * 2) == alone * 2


def test_figures_are_those_between_steps(llm: LLM) -> None:
    """Of a program that other threads run meanwhile: they never go back."""
    engine = llm.engine

    def watch() -> list[float]:
        found = []
        for _ in range(30):
            found.append(sum(engine.seconds.values()))
            assert engine.skipped_bytes == 0  # which a model that a cache holds never does
        return found

    def ask() -> list[float]:
        llm.generate(TEXTS[0], max_tokens=20, ignore_eos=True)
        return [0.0]

    for found in together([watch, ask, watch, ask]):
        assert found == sorted(found)


def test_streams_side_by_side(llm: LLM) -> None:
    """Read to the end, or closed in the middle; all pages are free afterwards."""

    def read(i: int) -> list[int]:
        stream, found = llm.stream(TEXTS[i], **{**options(i), "logprobs": 0}), list[int]()
        for piece in stream:
            found.append(piece.token)
            if len(found) == 5 + i:
                stream.close()
        return found

    alone = [read(i) for i in range(4)]
    assert all(len(tokens) == 5 + i for i, tokens in enumerate(alone))
    assert together([lambda i=i: read(i) for i in range(4)] * 2) == alone * 2
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_conversations_side_by_side(llm: LLM) -> None:
    """Each keeps its own turns."""

    def talk(i: int) -> list[list[int]]:
        with Conversation(llm) as turns:
            return [turns.ask(text, **options(i)).tokens for text in (TEXTS[i], TEXTS[-i])]

    alone = [talk(i) for i in range(3)]
    assert together([lambda i=i: talk(i) for i in range(3)] * 2) == alone * 2


def test_batches_and_shared_pages(llm: LLM) -> None:
    """Forks of sequences in batches, cut and grown again, of one engine by several threads."""
    engine = llm.engine

    def work(i: int) -> list[bytes]:
        found, tokens = [], [(7 * k + i) % 4096 for k in range(PAGE + 20)]
        base = EngineSequence()
        engine.step([(base, tokens, 0)])
        fork = engine.kv_cache.pool.fork(
            base, PAGE + 3
        )  # in the middle of a page, which both write
        for step in range(4):
            rows = engine.step([(base, [i, step], 1), (fork, [step], 1)])
            found += [row.tobytes() for row in rows]
        engine.kv_cache.rewind(base, PAGE - 1)
        params, history = SamplingParams(seed=i, temperature=1.0), np.array(tokens[:PAGE], np.int32)
        (given,) = engine.run([StepInput(base, history[-1:], 1, draw=Draw(params.native, history))])
        return [*found, bytes(str(given.drawn[0].token), "ascii")]

    alone = [work(i) for i in range(3)]
    assert together([lambda i=i: work(i) for i in range(3)] * 2) == alone * 2
    assert engine.kv_cache.pool.free == engine.kv_cache.pool.count


def test_errors_end_one_run_alone() -> None:
    """A thread of a pool that fails frees those that wait for it; the next run is sound."""
    case = digests.Case("format", "f32")
    good, bad = case.model(), case.model()
    layer = bad.graph.linears[0]
    layer.weight.codes.view(np.float32)[:] = np.inf
    expected = digests.committed()[str(case)]["i16"]

    def fail() -> str:
        with pytest.raises(NonFiniteError) as caught:
            Engine(bad, threads=2).logits([[1, 2, 3]])
        return str(caught.value)

    calls: list[Callable[[], str]] = [fail, lambda: digests.digest(good, ISAS[-1], "i16", 2)] * 4
    assert together(calls)[1::2] == [expected] * 4


@pytest.mark.parametrize("mmap", [False, True])
def test_loading_side_by_side(mmap: bool) -> None:
    """Files read and packed, or mapped, by several threads of several callers."""
    path = BUILT_IN["nano"]

    def load(threads: int) -> str:
        model = loading.load(path, cached=False, threads=threads, mmap=mmap)
        return digests.digest(model, ISAS[-1], "i16", threads)

    expected = digests.committed()["built-in nano"]["i16"]
    assert set(together([lambda n=n: load(n) for n in (1, 2, 3, 2)])) == {expected}


def test_operations_side_by_side() -> None:
    """Rounding, packing and products of `sterna.ops`."""
    rng = np.random.default_rng(3)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((200, 256), (20, 256)))

    def work(name: str, threads: int) -> bytes:
        packed = ops.quantize(w, name, threads=threads)
        return ops.linear(x, packed, threads=threads).tobytes()

    names = ("i2", "t5", "q4_0", "i8", "f16")
    alone = [work(name, 1) for name in names]
    assert together([lambda n=n: work(n, 2) for n in names] * 2) == alone * 2


def test_barriers_side_by_side() -> None:
    """Nobody enters a round before all have left the one before, in several teams at once."""
    assert all(together([lambda n=n: _testing.barrier_holds(n, 300) for n in (2, 2, 3, 5)]))


def test_a_failure_is_told() -> None:
    """`together` hides none."""

    def fail() -> None:
        raise SternaError("x")

    with pytest.raises(SternaError, match="x"):
        together([fail, lambda: None])
