"""An exception at any point, as Ctrl-C's, neither loses a page of the KV cache nor gives it twice,
and leaves nothing locked.

Signal handlers run between two instructions of Python. So the first tests raise at each of them in
turn, of the modules that hold pages; the last sends real signals.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sterna import LLM, Conversation, one_at_a_time
from sterna.engine import PAGE, Engine
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError

KV_CACHE = (
    "manager page_plans page_pool prefix_cache prefix_trie sequence sliding_windows"
).split()
POOL = ("engine/engine.py", *(f"engine/kv_cache/{name}.py" for name in KV_CACHE))
SCHEDULING = tuple(
    f"engine/scheduling/{name}.py" for name in ("scheduler", "step_planner", "engine_loop")
)
DECODING = ("engine/decoding/answer_text.py", "engine/decoding/token_rules.py")
REQUESTS = ("engine/request.py", *SCHEDULING, *DECODING)
LLM_PARTS = ("llm/llm.py", "llm/request_factory.py", "llm/chat_renderer.py", "outputs.py")
MODULES = (*POOL, *REQUESTS, "llm/conversation.py", *LLM_PARTS)


class Interrupt(BaseException):
    """Raised by a signal handler in place of KeyboardInterrupt."""


def interrupt() -> None:
    """Most handlers do this."""
    raise Interrupt


def interrupted(
    call: Callable[[], object],
    at: int,
    modules: Sequence[str],
    handler: Callable[[], None] = interrupt,
) -> bool:
    """Runs `call`, with a signal at the `at`-th instruction of these modules; False if it has
    fewer."""
    left = at

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        # Without a line is what the interpreter adds to enter a handler. It takes no signal there,
        # and an exception would leave the handled one alive, with all that its frames hold.
        if event == "opcode" and frame.f_lineno is not None:
            left -= 1
            if left < 0:
                sys.settrace(None)
                frame.f_trace = None
                handler()
        return local

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(tuple(modules)):
            return None
        frame.f_trace_opcodes = True
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return left < 0


@pytest.fixture
def unlocked(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the locks of pool and engine loop: a trace function raises also where the interpreter
    takes no signal, between the end of a `with` block and its `__exit__`.
    """
    monkeypatch.setattr(llm.engine.kv_cache.pool, "lock", contextlib.nullcontext())
    monkeypatch.setattr(llm.engine_loop._steps, "_lock", contextlib.nullcontext())


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    folder = checkpoint("bitnet-multiply")
    kv_cache = LLM(folder, threads=1, context=4 * PAGE).engine.kv_cache
    return LLM(folder, threads=1, context=4 * PAGE, kv_bytes=32 * kv_cache.page_bytes)


def forget(llm: LLM) -> None:
    """The contents of the cache."""
    cache = llm.engine_loop.scheduler.cache
    assert cache is not None
    cache.clear()


def fill(engine: Engine) -> list[EngineSequence]:
    """Sequences that have all free pages, one each: there are as many as pages are free."""
    return [_of_a_page(engine) for _ in range(engine.kv_cache.pool.free)]


def _of_a_page(engine: Engine) -> EngineSequence:
    sequence = EngineSequence()
    engine.step([(sequence, [1], 0)])
    return sequence


def assert_sound(engine: Engine, *alive: EngineSequence) -> None:
    """Each page is free, or held by those that have it, and free pages can be had."""
    pool = engine.kv_cache.pool
    if pool.free != pool.count - len({int(p) for s in alive for p in s.pages}):
        gc.collect()  # an interrupt's frames may be a cycle, which has sequences until then
    held = np.bincount([int(p) for s in alive for p in s.pages], minlength=pool.count)
    assert pool.ref_counts().tolist() == held.tolist()
    others = fill(engine)
    taken = [int(page) for s in others for page in s.pages]
    assert sorted(taken) == np.flatnonzero(held == 0).tolist()


@pytest.mark.usefixtures("unlocked")
def test_each_instruction_of_growing_and_cutting(llm: LLM) -> None:
    """No page is lost, of sequences that live on and of those that the interrupt takes along."""
    engine = llm.engine

    def run(sequence: EngineSequence) -> None:
        short = EngineSequence()
        try:
            engine.step([(short, [1] * 5, 1), (sequence, [2] * (PAGE + 1), 0)])
            engine.kv_cache.rewind(sequence, 3)
            fork = engine.kv_cache.pool.fork(sequence, 2)  # which then both write
            engine.step([(sequence, [3] * (2 * PAGE), 0), (fork, [1], 1)])
            engine.kv_cache.repeated(_prefix(engine), 2 * PAGE)
        finally:
            engine.kv_cache.release(short)

    at = 0
    while True:
        sequence = EngineSequence()
        more = interrupted(lambda sequence=sequence: run(sequence), at, POOL)
        assert -(-sequence.length // PAGE) <= len(sequence.pages)
        assert sequence.shared <= 1
        assert_sound(engine, sequence)
        if not more:
            break
        at += 13 if at > 400 else 1  # the middle of a step is many instructions, all alike
    assert at > 400


def _prefix(engine: Engine) -> EngineSequence:
    sequence = EngineSequence()
    engine.step([(sequence, [1] * PAGE, 0)])
    return sequence


@pytest.mark.usefixtures("unlocked")
def test_a_conversation_goes_on_as_if_nothing_had_been(llm: LLM) -> None:
    """Every interrupted turn gives back its pages, and the next one has the bits of a fresh one."""
    options: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "temperature": 0, "seed": 1}
    first, second = "Hello there", "x" * 40
    with Conversation(llm) as fresh:
        expected = [fresh.ask(text, **options).tokens for text in (first, second)]
    at, done = 0, False
    while not done:
        talk = Conversation(llm)
        forget(llm)
        assert talk.ask(first, **options).tokens == expected[0]
        before = talk.messages
        done = not interrupted(lambda talk=talk: talk.ask(second, **options), at, MODULES)
        talk.messages = before
        assert talk.ask(second, **options).tokens == expected[1], at
        assert_sound(llm.engine)
        del talk
        at += 97
    assert at > 1000
    assert_sound(llm.engine)


def test_pages_of_the_forgotten_are_free(llm: LLM) -> None:
    """A full pool refuses a page, and what is forgotten makes room, in a cycle as well."""
    engine = llm.engine
    held = fill(engine)
    assert engine.kv_cache.pool.free == 0
    with pytest.raises(RequestError, match="1 are missing"):
        _of_a_page(engine)
    held.append(held)  # type: ignore[arg-type]
    del held
    assert _of_a_page(engine).length == 1
    assert_sound(engine)


def test_no_instruction_keeps_a_conversation_or_a_stream_locked(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a turn was interrupted, another thread goes on with it."""
    without = SimpleNamespace(get_ident=threading.get_ident, RLock=contextlib.nullcontext)
    monkeypatch.setattr(one_at_a_time, "threading", without)  # as in `unlocked`
    monkeypatch.setattr(llm.engine_loop._steps, "_lock", contextlib.nullcontext())
    modules = ("sterna/one_at_a_time.py", "llm/conversation.py", "engine/scheduling/engine_loop.py")
    options: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True, "temperature": 0}
    talk, at, more = Conversation(llm), 0, True
    with ThreadPoolExecutor(1) as other:
        while more:
            talk.reset()
            stream = talk.stream("a", **options)
            more = interrupted(lambda stream=stream: list(stream), at, modules)
            other.submit(stream.close).result()
            assert other.submit(talk.ask, "b", **options).result().tokens
            at += 1
    assert at > 100


def test_a_handler_that_generates_mixes_no_steps(llm: LLM) -> None:
    """A handler that asks for an answer gets one or an error; so does the interrupted call.

    The error comes where the handler would compute a step in the middle of another one.
    """
    options: dict[str, Any] = {"max_tokens": 3, "ignore_eos": True, "temperature": 0}
    prompts = ("Hello there " * 6, "x" * 70)
    expected = [llm.generate(prompt, **options).tokens for prompt in prompts]
    refused = answered = 0

    def handler() -> None:
        nonlocal refused, answered
        try:
            assert llm.generate(prompts[1], **options).tokens == expected[1]
            answered += 1
            llm.logprobs(llm.tokenizer.encode(prompts[1]))
        except RequestError as error:
            refused += "in the middle of" in str(error)

    at, asked = 0, True
    while asked:
        forget(llm)
        tokens: list[list[int]] = []
        asked = interrupted(
            lambda tokens=tokens: tokens.append(llm.generate(prompts[0], **options).tokens),
            at, MODULES, handler,
        )  # fmt: skip
        assert tokens == [expected[0]], at
        at += 41
    assert refused > 20
    assert answered > 20
    assert_sound(llm.engine)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX's timers")
def test_real_signals(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of interrupts: wherever they come, the pages are sound. It passes at any speed."""
    # An interrupt inside a callback of the garbage collector goes to this hook. Pytest's keeps the
    # exception until the test has ended, and so its frames, and the sequences in them.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def handler(*_: object) -> None:
        raise Interrupt

    options: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True, "temperature": 0}
    before = signal.signal(signal.SIGALRM, handler)
    talk, end, turn = Conversation(llm), time.monotonic() + 1.0, 0
    try:
        while time.monotonic() < end:
            turn += 1
            with contextlib.suppress(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + turn * 37 % 101))
                try:
                    for text in ("a", "b" * 70, "c"):
                        talk.ask(text, **options)
                    talk.reset()
                except RequestError:  # an interrupted answer leaves no room for the next
                    talk.reset()
                time.sleep(0.02)  # a signal that has not come yet comes now, and none later
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    del talk
    assert_sound(llm.engine)
