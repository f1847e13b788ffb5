"""`EngineLoop`: threads that wait for requests step their scheduler, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice

from sterna.engine.request import Request
from sterna.engine.scheduling.events import Event
from sterna.engine.scheduling.scheduler import Scheduler
from sterna.errors import RequestError
from sterna.one_at_a_time import OneAtATime
from sterna.outputs import AnswerReader, Completion, Piece, Stream
from sterna.runtime import is_inside

__all__ = ["EngineLoop"]

#: Poll interval for waiters, in case an interrupt swallowed a wake-up.
POLL_S = 0.1


class EngineLoop:
    """Steps a scheduler on the threads that wait for its requests.

    A waiting thread runs the next step, for all requests, unless another thread is running one:
    then it waits for that step's end and looks for new tokens of its own. So a single thread needs
    no background thread, and several threads each get their tokens at once. No lock is held: an
    interrupt anywhere leaves the others free to go on.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        #: Called with the events of each step, and with [] when a request is added or cancelled.
        self.listeners: list[Callable[[list[Event]], None]] = []
        self._steps = OneAtATime("scheduler: must be stepped by one thread at a time")
        self._waiting: list[threading.Lock] = []

    def pieces(self, request: Request) -> Generator[Piece, None, None]:
        """Run a request, and yield its pieces as they come. Closing the generator cancels it."""
        try:
            self.add(request)
            while True:
                yield from self.read(request)
                if request.finished:
                    break
                while not request.has_news:
                    self.step()
        finally:
            self.cancel(request)

    def stream(self, request: Request, chat: bool) -> Stream:
        """Return the stream of a request. chat: its pieces have their parts (`Piece.content` …)."""
        pieces = self.pieces(request)
        if chat:
            pieces = AnswerReader(request.completion).parsed(pieces)
        return Stream(pieces, request.completion)

    def completions(self, requests: Iterable[Request]) -> list[Completion]:
        """Run requests at the same time and return their answers. Raises the first error."""
        requests = list(requests)
        for request in self.finished(requests):
            if request.error is not None:
                raise request.error
        return [request.completion for request in requests]

    def read(self, request: Request) -> Iterator[Piece]:
        """Yield the pieces that are there already, without waiting; this un-pauses the request."""
        paused = request.paused
        for piece in request.pieces():
            if paused and not request.paused:
                paused = False
                self._notify([])
            yield piece
        if request.finished:
            self.cancel(request)

    def finished(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Run requests, and yield each when it is finished; `error` says why it failed, if it did.

        `requests` is consumed lazily, as the scheduler has room.
        """
        source, live = iter(requests), dict[int, Request]()
        try:
            while True:
                for request in islice(source, 2 * self.scheduler.limits.max_running - len(live)):
                    live[request.id] = request
                    request.is_streamed = False
                    self.add(request)
                if not live:
                    return
                for request in [r for r in live.values() if r.has_news]:
                    self._finish(request)
                    if request.finished:
                        del live[request.id]
                        yield request
                if not any(r.has_news for r in live.values()):
                    self.step()
        finally:
            for request in live.values():
                self.cancel(request)

    def add(self, request: Request) -> None:
        """Queue a request, as `Scheduler.add`."""
        self.scheduler.add(request)
        self._notify([])

    def cancel(self, request: Request) -> None:
        """End a request, as `Scheduler.cancel`."""
        self.scheduler.cancel(request)
        self._notify([])

    def step(self) -> list[Event] | None:
        """Run a step and return its events, or wait for another thread's step and return None.

        Raises RequestError inside a step of this thread, that is, from a signal handler.
        """
        if self._steps.busy and is_inside(self, EngineLoop.step.__code__):
            raise RequestError(
                "generate: must be called between steps, but a signal handler calls it in the "
                "middle of one; let it set a flag, and call it later"
            )
        visit = self._steps.try_enter()
        if visit is None:
            self._wait_for_step()
            return None
        try:
            events = self.scheduler.step()
            if events:
                self._notify(events)
            return events
        finally:
            visit.end()
            waiting, self._waiting = self._waiting, []
            for lock in waiting:
                lock.release()

    def _finish(self, request: Request) -> None:
        """Make text of the tokens so far; an error of the request stays in `error`."""
        try:
            for _ in self.read(request):
                pass
        except Exception as error:
            if error is not request.error:
                raise

    def _wait_for_step(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        if self._steps.busy:
            lock.acquire(timeout=POLL_S)

    def _notify(self, events: list[Event]) -> None:
        for listener in self.listeners:
            listener(events)
