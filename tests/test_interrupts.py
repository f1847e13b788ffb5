"""An exception at any point, as Ctrl-C's, neither loses a page of the KV cache nor gives it twice.

Signal handlers run between two instructions of Python. So the first tests raise at each of them in
turn, of the modules that hold pages; the last sends real signals.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from sterna import LLM, Conversation
from sterna.engine import Engine, Kept
from sterna.engine.pages import PAGE
from sterna.engine.pages import Sequence as EngineSequence
from sterna.errors import RequestError

MODULES = ("engine/engine.py", "engine/pages.py", "sterna/conversation.py", "sterna/llm.py")
POOL = MODULES[:2]


class Interrupt(BaseException):
    """What a signal handler raises, in the place of KeyboardInterrupt."""


def interrupted(call: Callable[[], object], at: int, modules: Sequence[str]) -> bool:
    """Runs `call`, raising at the `at`-th instruction of these modules; False if it has fewer."""
    left = at

    def local(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "opcode":
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise Interrupt
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
    return False


@pytest.fixture
def unlocked(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the pool's lock: a trace function raises also where the interpreter takes no signal,
    between the end of a `with` block and its `__exit__`.
    """
    monkeypatch.setattr(llm.engine.pool, "_lock", contextlib.nullcontext())


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1, context=4 * PAGE)


def fill(engine: Engine) -> list[EngineSequence]:
    """Sequences that have all free pages, one each: there are as many as pages are free."""
    return [_of_a_page(engine) for _ in range(engine.pool.free)]


def _of_a_page(engine: Engine) -> EngineSequence:
    sequence = EngineSequence()
    engine.step([(sequence, [1], 0)])
    return sequence


def assert_sound(engine: Engine, *alive: EngineSequence) -> None:
    """Each page is free, or one sequence's."""
    others = fill(engine)
    pages = [int(page) for s in (*alive, *others) for page in s.pages]
    assert sorted(pages) == list(range(engine.pool.count))


@pytest.mark.usefixtures("unlocked")
def test_each_instruction_of_growing_and_cutting(llm: LLM) -> None:
    """Of sequences that live on, and of those that the interrupt takes along."""
    engine = llm.engine

    def run(kept: Kept) -> None:
        short = EngineSequence()
        try:
            engine.step([(short, [1] * 5, 1), (kept.sequence, [2] * (PAGE + 1), 0)])
            kept.tokens = [2] * (PAGE + 1)
            engine.resume(kept, [2] * 5 + [3])
            engine.rewind(kept.sequence, 3)
            engine.step([(kept.sequence, [3] * (2 * PAGE), 0)])
            engine.repeated(_prefix(engine), 2 * PAGE)
        finally:
            engine.release(short)

    at = 0
    while True:
        kept = Kept()
        more = interrupted(lambda kept=kept: run(kept), at, POOL)
        assert -(-kept.sequence.length // PAGE) <= len(kept.sequence.pages)
        assert_sound(engine, kept.sequence)
        if not more:
            break
        at += 7 if at > 400 else 1  # the middle of a step is many instructions, all alike
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
        assert talk.ask(first, **options).tokens == expected[0]
        before = talk.messages
        done = not interrupted(lambda talk=talk: talk.ask(second, **options), at, MODULES)
        talk.messages = before
        assert talk.ask(second, **options).tokens == expected[1], at
        assert_sound(llm.engine, talk._kept.sequence)
        del talk  # not closed: what is forgotten is free
        at += 61
    assert at > 1000
    assert llm.engine.pool.free == llm.engine.pool.count


def test_pages_of_the_forgotten_are_free(llm: LLM) -> None:
    """And there are no more than there are."""
    engine = llm.engine
    held = fill(engine)
    assert engine.pool.free == 0
    with pytest.raises(RequestError, match="1 are missing"):
        _of_a_page(engine)
    del held
    assert engine.pool.free == engine.pool.count


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX's timers")
def test_real_signals(llm: LLM) -> None:
    """A second of interrupts: wherever they come, the pages are sound. It passes at any speed."""

    def handler(*_: object) -> None:
        raise Interrupt

    options: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True, "temperature": 0}
    before = signal.signal(signal.SIGALRM, handler)
    talk, end, turn, count = Conversation(llm), time.monotonic() + 1.0, 0, 0
    try:
        while time.monotonic() < end:
            turn += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + turn * 37 % 101))
                for text in ("a", "b" * 70, "c"):
                    talk.ask(text, **options)
                talk.reset()
            except Interrupt:
                count += 1
            except RequestError:  # an interrupted answer leaves no room for the next
                talk.reset()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert_sound(llm.engine, talk._kept.sequence)
    del talk
    assert llm.engine.pool.free == llm.engine.pool.count
