"""`AsyncLLM`: many requests at once for asyncio, computed by one thread of their own."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sterna.checks import checked_real, checked_whole
from sterna.engine import EngineLoop, Event, Request, SchedulerLoad
from sterna.errors import RequestError, shown
from sterna.llm import LLM
from sterna.outputs import Completion, Piece, TokenLogprob
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sterna.llm.options import GenerateOptions

__all__ = ["AsyncLLM", "Ticket"]

#: Seconds after which the engine's thread looks at requests that cannot go on, for their deadlines.
LOOK_S = 0.5
MOST_PRIORITY = 1000


class AsyncLLM:
    """An LLM whose requests share its steps, in front of an event loop.

    A thread computes the steps of all requests, and sleeps while there is none; the loop's thread
    makes their text beside it. Answers are those of `LLM.generate`, whoever else asks. The `LLM`
    can be used by other threads meanwhile.

    step_ms: how long a step should take, in milliseconds, while somebody waits for what a request
    decodes, streamed or whole, unless short prompts wait that will soon decode with it;
    prompt_step_ms: while nobody does (`Ticket.read_at_end`), and at most for those. max_running:
    requests that are computed at the same time.

    `async with AsyncLLM(llm) as engine:` closes it at the end.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        step_ms: float = 100.0,
        prompt_step_ms: float = 500.0,
        max_running: int = 64,
    ) -> None:
        if not isinstance(llm, LLM):
            raise RequestError(f"llm: must be an LLM, but got {shown(llm)}; pass sterna.LLM(model)")
        self.llm = llm
        checked_real("step_ms", step_ms, 1.0, 1e6)
        checked_real("prompt_step_ms", prompt_step_ms, 1.0, float("inf"))
        checked_whole("max_running", max_running, 1, 1 << 16)
        self._engine_loop: EngineLoop = llm.engine_loop
        scheduler = self._engine_loop.scheduler
        scheduler.step_ms, scheduler.prompt_step_ms = step_ms, prompt_step_ms
        scheduler.max_running = max_running
        self._tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
        self._ready: deque[Ticket] = deque()
        self._told = False  # whether the loop will look at what is ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed: str | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        key: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        salt: str = "",
        chat: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Ticket:
        """Queues a request, from a coroutine or callback of the loop that will read it.

        prompt: text or token ids. n: how many answers; the i-th is that of choice=i. key: whose
        request it is; keys share the time for prompts equally. priority: a higher one comes
        earlier, by 10 seconds of waiting a level. deadline_s: seconds after which it ends, in the
        queue as well, with the reason "deadline". salt: requests share what was computed for them
        only where theirs are equal. chat: whether the end of a turn ends the answer, too. Others:
        those of `LLM.generate`.

        RequestError where `LLM.generate` raises it, for a prompt that can never fit the memory for
        keys and values, and once this is draining or closed.
        """
        self._check_open()
        place = _checked_place(key, priority, deadline_s, salt)
        make = self.llm.requests.make_several
        return self._queued(make(prompt, n, options, params, chat=chat, **place))

    async def score(
        self,
        prompt: str | Sequence[int],
        top: int = 0,
        *,
        key: str = "",
        priority: int = 0,
        adapter: str | None = None,
    ) -> list[TokenLogprob | None]:
        """As `LLM.prompt_logprobs`, scheduled with the others; key, priority: as in `submit`."""
        self._check_open()
        place = _checked_place(key, priority, None, "")
        request = self.llm.requests.make_scoring(prompt, top, adapter, **place)
        ticket = self._queued([request])
        ticket.read_at_end()  # it decodes nothing
        await ticket.result()
        return request.scores

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(f"submit: the engine must be open, but it is {self._closed}")

    def _queued(self, requests: Sequence[Request]) -> Ticket:
        """A ticket for requests that are added."""
        self._attach()
        ticket = Ticket(requests, self._engine_loop, self._ring)
        for request in requests:
            self._tickets[request.id] = ticket
        try:
            for request in requests:
                self._engine_loop.add(request)
        except RequestError:
            ticket.cancel()
            raise
        return ticket

    def load(self) -> SchedulerLoad:
        """How busy it is, from any thread."""
        return self._engine_loop.scheduler.load

    async def drain(self) -> None:
        """Takes no more requests, and returns when all that are here have been computed."""
        self._closed = self._closed or "draining"
        while any(not request.ended for t in self._all() for request in t.requests):
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Cancels what is left, and ends the thread; harmless twice."""
        self._closed = "closed"
        for ticket in self._all():
            ticket.cancel()
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        if self._heard in self._engine_loop.listeners:
            self._engine_loop.listeners.remove(self._heard)

    def _all(self) -> list[Ticket]:
        return list({id(t): t for t in list(self._tickets.values())}.values())

    def _attach(self) -> None:
        """The running loop is told of what comes; the thread runs."""
        self._loop = asyncio.get_running_loop()
        if self._thread is None:
            self._engine_loop.listeners.append(self._heard)
            self._thread = threading.Thread(target=self._work, name="sterna-engine", daemon=True)
            self._thread.start()

    # ----------------------------------------------------------------------- the engine's thread

    def _work(self) -> None:
        while self._closed != "closed":
            self._wake.clear()
            try:
                idle = self._engine_loop.step() == []
            except Exception as error:  # nobody would tell those that wait
                for ticket in self._all():
                    for request in ticket.requests:
                        request.end("error", error)
                    self._ring(ticket)
                idle = True
            if idle:
                self._wake.wait(LOOK_S if self._engine_loop.scheduler.busy else None)

    def _heard(self, events: list[Event]) -> None:
        """Of a step, from any thread; or that requests come and go."""
        if not events:
            self._wake.set()
        for event in events:
            ticket = self._tickets.get(event.request.id)
            if ticket is not None and (event.tokens or event.request.ended):
                self._ready.append(ticket)
        self._tell_loop()

    def _ring(self, ticket: Ticket) -> None:
        """There is news for its reader."""
        self._ready.append(ticket)
        self._tell_loop()

    def _tell_loop(self) -> None:
        """Once a step: the loop looks at all that is ready."""
        if self._ready and not self._told and self._loop is not None:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed, and nobody reads any more
                self._told = False
                while self._ready:
                    _cancel(self._engine_loop, self._ready.popleft().requests)

    def _deliver(self) -> None:
        self._told = False
        while self._ready:
            self._ready.popleft().news.set()


class Ticket(AsyncIterator[Piece]):
    """A request of an `AsyncLLM`: its pieces as they come, for one reader.

    completions: one for each of its n answers, filled as pieces are read. A ticket that is
    forgotten is cancelled. A request that nobody reads is computed no further than 16 tokens ahead.
    """

    def __init__(
        self, requests: Sequence[Request], engine_loop: EngineLoop, ring: Callable[[Ticket], None]
    ) -> None:
        self.id = requests[0].id
        self.requests = requests
        self.completions = [request.completion for request in requests]
        self.news = asyncio.Event()
        self._engine_loop, self._ring = engine_loop, ring
        self._current: Iterator[Piece] = iter(())
        weakref.finalize(self, _cancel, engine_loop, requests).atexit = False

    def cancel(self) -> None:
        """Ends it as it is, from any thread; harmless where it has ended.

        At most one piece follows: text that was held back.
        """
        _cancel(self._engine_loop, self.requests)
        self._ring(self)

    def read_at_end(self) -> None:
        """Nobody waits for it: steps may be longer for prompts of others, and its tokens slower."""
        for request in self.requests:
            request.is_streamed = False

    async def result(self) -> list[Completion]:
        """The answers, once they have ended; raises what ended one before its time."""
        async for _ in self:
            pass
        return self.completions

    async def __anext__(self) -> Piece:
        """The next piece of any of its answers (`Piece.index`)."""
        while True:
            self.news.clear()
            try:
                piece = self._next()
            except Exception:
                self.cancel()
                raise
            if piece is not None:
                return piece
            if all(request.finished for request in self.requests):
                raise StopAsyncIteration
            await self.news.wait()

    def _next(self) -> Piece | None:
        """A piece that is there; None where there is none yet."""
        while True:
            piece = next(self._current, None)
            if piece is not None:
                return piece
            request = next((r for r in self.requests if r.has_news), None)
            if request is None:
                return None
            self._current = self._engine_loop.read(request)


def _checked_place(key: str, priority: int, deadline_s: float | None, salt: str) -> dict[str, Any]:
    """These arguments of `Request`."""
    for name, text in (("key", key), ("salt", salt)):
        if not isinstance(text, str):
            raise RequestError(f"{name}: must be a string, but got {shown(text)}")
    whole = checked_whole("priority", priority, -MOST_PRIORITY, MOST_PRIORITY)
    if deadline_s is not None:
        deadline_s = checked_real("deadline_s", deadline_s, 0.0, 1e9)
    return {"key": key, "priority": whole, "deadline_s": deadline_s, "salt": salt}


def _cancel(engine_loop: EngineLoop, requests: Sequence[Request]) -> None:
    for request in requests:
        engine_loop.cancel(request)
