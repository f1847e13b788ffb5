"""`AsyncLLM`: many requests of an event loop, computed by one background thread."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from sterna.checks import checked_real, checked_whole
from sterna.engine import EngineLoop, Event, Request, SchedulerLoad, StepLimits
from sterna.errors import RequestError, shown
from sterna.llm import LLM
from sterna.llm.adapters import AdapterChoice
from sterna.llm.async_stream import AsyncStream, cancel_all
from sterna.outputs import TokenLogprob
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sterna.llm.decider import Inquiry
    from sterna.llm.decisions import Decision
    from sterna.llm.options import ChatOptions, DecideOptions, GenerateOptions

__all__ = ["MOST_PRIORITY", "AsyncLLM", "AsyncStream", "checked_scheduling"]

#: Seconds between checks of deadlines while no request can go on.
LOOK_S = 0.5
MOST_PRIORITY = 1000


class AsyncLLM:
    """An LLM for asyncio, whose requests share steps.

    A background thread computes the steps of all requests, and sleeps while there is none. The
    event loop's thread detokenises. Answers equal those of `LLM.generate`, whatever else runs.
    Other threads can use the `LLM` at the same time.

    Args:
        llm: The model.
        step_ms: Intended milliseconds of a step while a reader waits for the next token of a
            request. Steps with short prompts, which will soon decode with the others, may take
            longer. Default 100.
        prompt_step_ms: Milliseconds of a step while no reader waits for a token (`read_at_end`).
            Steps with short prompts are never longer. Default 500.
        max_running: Requests that are computed at the same time. Default 64.

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
        self._engine_loop.scheduler.limits = StepLimits(step_ms, prompt_step_ms, max_running)
        self._streams: weakref.WeakValueDictionary[int, AsyncStream] = weakref.WeakValueDictionary()
        self._ready: deque[AsyncStream] = deque()
        self._scheduled = False  # whether a delivery is scheduled
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
        **options: Unpack[GenerateOptions],
    ) -> AsyncStream:
        """Queue a request, from a coroutine or callback of the loop that will read it.

        Args:
            prompt: Text or token ids.
            params: Sampling parameters. Options replace its fields.
            n: Answers to the prompt; the i-th is the one of choice=i.
            key: The owner of the request. Keys share the time for prompts equally.
            priority: Each level counts like 10 seconds of waiting.
            deadline_s: Seconds after which the request ends, even in the queue, with the finish
                reason "deadline".
            salt: Requests of the same salt share cached prefixes.
            **options: As in `LLM.generate`.

        RequestError as in `LLM.generate`, for a prompt that can never fit into the memory for keys
        and values, and after `drain` or `close`.
        """
        self._check_open()
        scheduling = checked_scheduling(key, priority, deadline_s, salt)
        return self.start(self.llm.requests.make_several(prompt, n, options, params, **scheduling))

    def submit_chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        key: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        salt: str = "",
        **options: Unpack[ChatOptions],
    ) -> AsyncStream:
        """Queue a conversation as `submit` does a prompt; options as in `LLM.chat`, which renders.

        Its pieces have `content`, `reasoning` and `tool_calls`. RequestError as in `LLM.chat` and
        `submit`.
        """
        from sterna.llm.chat_request import ChatRequest

        self._check_open()
        scheduling = checked_scheduling(key, priority, deadline_s, salt)
        chat = ChatRequest.of_options(messages, options, params)
        return self.start(self.llm.requests.make_chat(chat, **scheduling), chat=True)

    def start(self, requests: Sequence[Request], *, chat: bool = False) -> AsyncStream:
        """Queue requests that `LLM.requests` made, all of one prompt, as `submit` does.

        chat: give the pieces the parts that the family's parser finds in them.
        """
        self._check_open()
        return self._queued(requests, chat)

    async def score(
        self,
        prompt: str | Sequence[int],
        top: int = 0,
        *,
        key: str = "",
        priority: int = 0,
        adapter: AdapterChoice = None,
    ) -> list[TokenLogprob | None]:
        """Score as `LLM.prompt_logprobs`, in shared steps; key and priority as in `submit`."""
        self._check_open()
        scheduling = checked_scheduling(key, priority, None, "")
        request = self.llm.requests.make_scoring(prompt, top, adapter, **scheduling)
        stream = self._queued([request])
        stream.read_at_end()  # it decodes nothing
        await stream.result()
        return request.scores

    async def decide(
        self,
        context: Any,
        question: str | Sequence[str],
        *,
        key: str = "",
        priority: int = 0,
        salt: str = "",
        ready: Callable[[], Awaitable[None]] | None = None,
        **options: Unpack[DecideOptions],
    ) -> list[Decision]:
        """Decide as `LLM.decide`, in shared steps; key, priority and salt as in `submit`.

        ready: waits before each question until it may be queued. Returns a list, even for one
        question about one context.
        """
        self._check_open()
        scheduling = checked_scheduling(key, priority, None, salt)
        inquiries = self.llm.decider.inquiries(context, question, options, **scheduling)
        decisions: list[asyncio.Future[Decision]] = []
        running: set[asyncio.Future[Decision]] = set()
        try:
            while (inquiry := await asyncio.to_thread(next, inquiries, None)) is not None:
                if ready is not None:
                    await ready()
                decisions.append(asyncio.ensure_future(self._decision(inquiry)))
                running.add(decisions[-1])
                if len(running) >= 2 * self._engine_loop.scheduler.limits.max_running:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            return await asyncio.gather(*decisions)
        finally:
            for one in running:
                one.cancel()

    async def _decision(self, inquiry: Inquiry) -> Decision:
        stream = self._queued(inquiry.requests)
        stream.read_at_end()  # it decodes nothing
        try:
            await stream.result()
        finally:
            stream.cancel()
        return inquiry.decision()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(f"submit: the engine must be open, but it is {self._closed}")

    def _queued(self, requests: Sequence[Request], chat: bool = False) -> AsyncStream:
        """Queue requests and return the stream of their answers."""
        self._attach()
        stream = AsyncStream(requests, self._engine_loop, self._wake_reader, chat)
        for request in requests:
            self._streams[request.id] = stream
        try:
            for request in requests:
                self._engine_loop.add(request)
        except RequestError:
            stream.cancel()
            raise
        return stream

    def load(self) -> SchedulerLoad:
        """Return how busy the scheduler is; from any thread."""
        return self._engine_loop.scheduler.load

    def wait_s(self, request: Request) -> float:
        """Predict the seconds until steps come to a request that is not queued; from any thread.

        Prompts that are shorter, or have waited for long, go before it; a cached prefix counts as
        computed.
        """
        return self._engine_loop.scheduler.wait_s(request.prefix_keys, request.salt)

    async def drain(self) -> None:
        """Refuse new requests and return when the running ones have ended."""
        self._closed = self._closed or "draining"
        while any(not request.ended for t in self._open_streams() for request in t.requests):
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Cancel all requests and end the thread; harmless twice."""
        self._closed = "closed"
        for stream in self._open_streams():
            stream.cancel()
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        if self._on_events in self._engine_loop.listeners:
            self._engine_loop.listeners.remove(self._on_events)

    def _open_streams(self) -> list[AsyncStream]:
        return list({id(t): t for t in list(self._streams.values())}.values())

    def _attach(self) -> None:
        """Deliver to the running loop from now on and start the thread."""
        self._loop = asyncio.get_running_loop()
        if self._thread is None:
            self._engine_loop.listeners.append(self._on_events)
            self._thread = threading.Thread(target=self._work, name="sterna-engine", daemon=True)
            self._thread.start()

    # ----------------------------------------------------------------------- the engine's thread

    def _work(self) -> None:
        while True:
            self._wake.clear()
            if self._closed == "closed":  # read after `clear`, or its wake-up could be lost
                return
            try:
                idle = self._engine_loop.step() == []
            except Exception as error:
                self._fail(error)
                idle = True
            if idle:
                self._wake.wait(LOOK_S if self._engine_loop.scheduler.busy else None)

    def _fail(self, error: Exception) -> None:
        """End all requests with an error, so that no reader waits forever."""
        for stream in self._open_streams():
            for request in stream.requests:
                request.end("error", error)
            self._wake_reader(stream)

    def _on_events(self, events: list[Event]) -> None:
        """Handle the events of a step, from any thread; none: requests were queued or cancelled."""
        if not events:
            self._wake.set()
        for event in events:
            stream = self._streams.get(event.request.id)
            if stream is not None and (event.tokens or event.request.ended):
                self._ready.append(stream)
        self._schedule_delivery()

    def _wake_reader(self, stream: AsyncStream) -> None:
        """Wake the reader of a stream."""
        self._ready.append(stream)
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        """Schedule one delivery to the loop, unless one is scheduled."""
        if self._ready and not self._scheduled and self._loop is not None:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody reads any more
                self._scheduled = False
                while self._ready:
                    cancel_all(self._engine_loop, self._ready.popleft().requests)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._ready:
            self._ready.popleft().news.set()


def checked_scheduling(
    key: str, priority: int, deadline_s: float | None, salt: str
) -> dict[str, Any]:
    """Scheduling arguments of `Request`, checked."""
    for name, text in (("key", key), ("salt", salt)):
        if not isinstance(text, str):
            raise RequestError(f"{name}: must be a string, but got {shown(text)}")
    whole = checked_whole("priority", priority, -MOST_PRIORITY, MOST_PRIORITY)
    if deadline_s is not None:
        deadline_s = checked_real("deadline_s", deadline_s, 0.0, 1e9)
    return {"key": key, "priority": whole, "deadline_s": deadline_s, "salt": salt}
