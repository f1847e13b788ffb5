"""`AsyncStream`: the pieces of an `AsyncLLM` request, read by a coroutine."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from sterna.engine import EngineLoop, Request
from sterna.outputs import AnswerReader, Completion, Piece

__all__ = ["AsyncStream", "cancel_all"]


class AsyncStream(AsyncIterator[Piece]):
    """An asynchronous iterator over the pieces of an `AsyncLLM` request, for one reader.

    A stream that is garbage-collected is cancelled. If its reader stops reading, the request runs
    at most 16 tokens ahead.

    Attributes:
        completions: One for each answer, filled as pieces are read.
        requests: The engine's requests.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        engine_loop: EngineLoop,
        wake_reader: Callable[[AsyncStream], None],
        chat: bool = False,
    ) -> None:
        self.id: int = requests[0].id
        self.requests = requests
        self.completions: list[Completion] = [request.completion for request in requests]
        self.news: asyncio.Event = asyncio.Event()
        self._engine_loop, self._wake_reader = engine_loop, wake_reader
        self._current: Iterator[Piece] = iter(())
        readers = [AnswerReader(request.completion) for request in requests] if chat else []
        self._readers = dict(zip(requests, readers, strict=False))  # empty outside of chats
        self._read_last: Request = requests[0]
        # A request's error has a traceback whose frames hold this stream, so the finalizer must not
        # hold requests. The scheduler holds those that run or wait.
        weakref.finalize(self, cancel_all, engine_loop, weakref.WeakSet(requests)).atexit = False

    def cancel(self) -> None:
        """End the answers as they are, from any thread; harmless after their end.

        At most one piece follows, with text that was held back.
        """
        cancel_all(self._engine_loop, self.requests)
        self._wake_reader(self)

    def read_at_end(self) -> None:
        """Declare that no reader waits for pieces, so that steps may favour prompts of others."""
        for request in self.requests:
            request.is_streamed = False

    async def result(self) -> list[Completion]:
        """Return the answers when all have ended. Raises the error of a failed one."""
        while await self._piece() is not None:
            pass
        return self.completions

    async def __anext__(self) -> Piece:
        """Return the next piece of any answer (`Piece.index`)."""
        piece = await self._piece()
        if piece is not None:
            reader = self._readers.get(self._read_last)
            return reader.read(piece) if reader else piece
        for request, reader in self._readers.items():
            if (last := reader.end(request.params.choice)) is not None:
                return last
        raise StopAsyncIteration

    async def _piece(self) -> Piece | None:
        """Wait for the next piece; None at the end of all answers."""
        while True:
            self.news.clear()
            try:
                piece = self._next()
            except Exception:
                self.cancel()
                raise
            if piece is not None or all(request.finished for request in self.requests):
                return piece
            await self.news.wait()

    def _next(self) -> Piece | None:
        """Return a piece that is available now; None if there is none."""
        while True:
            piece = next(self._current, None)
            if piece is not None:
                return piece
            request = next((r for r in self.requests if r.has_news), None)
            if request is None:
                return None
            self._current, self._read_last = self._engine_loop.read(request), request


def cancel_all(engine_loop: EngineLoop, requests: Iterable[Request]) -> None:
    """End requests as they are."""
    for request in requests:
        engine_loop.cancel(request)
