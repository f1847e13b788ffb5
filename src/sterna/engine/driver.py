"""`Driver`: threads that wait for requests step their scheduler, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice

from sterna.engine.request import Request
from sterna.engine.scheduler import Event, Scheduler
from sterna.errors import RequestError
from sterna.one_at_a_time import OneAtATime
from sterna.outputs import Piece
from sterna.runtime import is_inside

__all__ = ["Driver"]

#: Seconds after which who waits looks by itself: an interrupt may have kept others from telling.
LOOK_S = 0.1


class Driver:
    """Lets whoever waits for tokens compute them, for all at once.

    A thread that waits steps the scheduler, unless another one does; then it waits until that step
    has ended, and finds what it brought. So one thread alone needs no other, and of several each
    gets its tokens as soon as they are there. It keeps no lock: an interrupt anywhere leaves others
    free to go on.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        #: Called with what came of each step, and with nothing where requests come or go.
        self.listeners: list[Callable[[list[Event]], None]] = []
        self._steps = OneAtATime("scheduler: must be stepped by one thread at a time")
        self._waiting: list[threading.Lock] = []

    def pieces(self, request: Request) -> Generator[Piece, None, None]:
        """A request's pieces, each as soon as it is there. Where nobody asks any more, it ends."""
        try:
            self.add(request)
            while True:
                yield from self.read(request)
                if request.finished:
                    break
                self._wait(request)
        finally:
            self.cancel(request)

    def read(self, request: Request) -> Iterator[Piece]:
        """The pieces that are there already; who was left out of steps for them is no more."""
        paused = request.paused
        for piece in request.pieces():
            if paused and not request.paused:
                paused = False
                self._tell([])
            yield piece
        if request.finished:
            self.cancel(request)

    def finished(self, requests: Iterable[Request]) -> Iterator[Request]:
        """Runs requests, and gives each when it is finished; `error` says what ended it, if any.

        They are asked for as there is room for them.
        """
        source, live = iter(requests), dict[int, Request]()
        try:
            while True:
                for request in islice(source, 2 * self.scheduler.max_running - len(live)):
                    live[request.id] = request
                    request.read_along = False
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
        """Queues it, as `Scheduler.add`."""
        self.scheduler.add(request)
        self._tell([])

    def cancel(self, request: Request) -> None:
        """Ends it, as `Scheduler.cancel`."""
        self.scheduler.cancel(request)
        self._tell([])

    def step(self) -> list[Event] | None:
        """A step, and what came of it; None after another thread's.

        RequestError in the middle of a step of this thread, where a signal handler may ask.
        """
        if self._steps.busy and is_inside(self, Driver.step.__code__):
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
                self._tell(events)
            return events
        finally:
            visit.end()
            waiting, self._waiting = self._waiting, []
            for lock in waiting:
                lock.release()

    def _finish(self, request: Request) -> None:
        """Makes the text of what it has; its error stays with it."""
        try:
            for _ in self.read(request):
                pass
        except Exception as error:
            if error is not request.error:
                raise

    def _wait(self, request: Request) -> None:
        while not request.has_news:
            self.step()

    def _wait_for_step(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        if self._steps.busy:
            lock.acquire(timeout=LOOK_S)

    def _tell(self, events: list[Event]) -> None:
        for listener in self.listeners:
            listener(events)
