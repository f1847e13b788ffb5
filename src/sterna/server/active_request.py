"""`ActiveRequest`: a request that is being answered, from its admission to its end."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from sterna.engine import Adapter
from sterna.engine import Request as EngineRequest
from sterna.engine.decoding.constraints import Constraint
from sterna.llm import Decision, receipt
from sterna.llm.adapters import AdapterChoice
from sterna.llm.async_llm import MOST_PRIORITY, AsyncStream, checked_scheduling
from sterna.outputs import Completion, Piece
from sterna.server.errors import ApiError
from sterna.server.model_manager import LoadedModel
from sterna.server.request_limits import RequestLimits

__all__ = ["ActiveRequest"]

#: Seconds between two checks, by a paused request of a batch, whether clients still wait.
BATCH_PAUSE_S = 0.02

T = TypeVar("T")


class ActiveRequest:
    """One client's request: submits its prompts, yields pieces of their choices, ends early.

    Each prompt has `n` choices. Choices are numbered prompt by prompt.

    Attributes:
        adapter: the model's adapter, by name, or several with scales.
        scaled: the adapter that these make.
        name: the model or adapter, as the client names it.
        idle_event: None for a request of a client. A request of a batch sets it once it is
            submitted or refused; it takes idle time only.
        loading_s: how long the request waited for its model.
        stream_error: the error that ended the stream of this answer.
        unloads: whether the model is to leave memory after it.
        slot: its number among its owner's requests of this model, for clients of llama.cpp.
        names: the fields of the request that arguments of the library came from, for errors.
        warnings: the ignored parts of the request, for a header and for the log.
    """

    def __init__(
        self,
        limits: RequestLimits,
        model: LoadedModel,
        key: str,
        prefix: str,
        *,
        share_cache: bool = False,
        idle_event: asyncio.Event | None = None,
        adapter: str | None = None,
    ) -> None:
        self.adapter: AdapterChoice = adapter
        self.scaled: Adapter | None = None
        self.name: str = adapter or model.name
        self.model = model
        self.key = key
        self.idle_event = idle_event
        self.id: str = f"{prefix}-{secrets.token_hex(12)}"
        self.created: int = int(time.time())
        self.began: float = time.perf_counter()
        self.loading_s: float = 0.0
        self.cancelled: bool = False
        self.stream_error: ApiError | None = None
        self.warnings: list[str] = []
        self.names: dict[str, str] = {}
        self.slot: int = 0
        self.unloads: bool = False
        self._limits = limits
        self._salt = "" if share_cache else key
        self._error: ApiError | None = None
        self._streams: list[AsyncStream] = []  # one for each prompt
        self._tasks: set[asyncio.Future[Any]] = set()

    def options(self, constraint: Constraint | None = None) -> dict[str, Any]:
        """Return options of `LLM.generate` that the request sets: constraint and adapter."""
        options = {"constraint": constraint, "adapter": self.adapter}
        return {name: value for name, value in options.items() if value is not None}

    def request_args(
        self, *, salt: str = "", priority: int = 0, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """Return the arguments of `engine.Request` that schedule the request.

        salt: requests share cached prefixes only if their salts are equal. priority: higher goes
        first in the queue. deadline_s: seconds that the answer may take.
        """
        if self.idle_event is not None:
            priority = -MOST_PRIORITY
        return checked_scheduling(self.key, priority, deadline_s, self._salted(salt))

    def submit(self, prompts: Sequence[Sequence[EngineRequest]]) -> None:
        """Give the engine the requests of each prompt, which are as many as it has choices.

        ApiError 429 if the queue is full, 499 if the client has left; RequestError.
        """
        self._check_cancelled()
        engine = self.model.engine
        if self.idle_event is None:
            wait_s = max((engine.wait_s(choices[0]) for choices in prompts), default=0.0)
            self._limits.require_room(engine.load(), len(prompts), wait_s)
        try:
            for choices in prompts:
                self._streams.append(engine.start(choices))
        except BaseException:
            self.cancel()
            raise
        if self.idle_event is not None:
            self.idle_event.set()

    def _salted(self, salt: str) -> str:
        """Return a salt that no other key's requests have."""
        return f"{self._salt}\0{salt}"

    def cancel(self) -> None:
        """End the request at any stage; harmless when repeated."""
        self.cancelled = True
        for stream in self._streams:
            stream.cancel()
        for task in self._tasks:
            task.cancel()

    def shut_down(self) -> None:
        """End the request because the server ends, and tell its client so."""
        self._error = ApiError(503, "The server is shutting down.", code="shutting_down")
        self.cancel()

    def _check_cancelled(self) -> None:
        self._check_error()
        if self.cancelled:
            raise ApiError(499, "The request was cancelled.", code="cancelled")

    def _check_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def run(self, work: Awaitable[T]) -> T:
        """Await other work for this request, such that `cancel` cancels it as well."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if self.cancelled:
            task.cancel()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # of the caller, which must not become an error response
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._tasks.discard(task)
        if task.cancelled():
            self._check_cancelled()
        return task.result()

    async def decide(
        self, context: Any, questions: list[str], *, priority: int, salt: str, **options: Any
    ) -> list[Decision]:
        """Decide as `AsyncLLM.decide`. ApiError 429 if the queue is full; RequestError."""
        self._check_cancelled()
        if self.idle_event is None:
            self._limits.require_room(self.model.engine.load(), 1)
        else:
            priority = -MOST_PRIORITY
            self.idle_event.set()
        work = self.model.engine.decide(
            context,
            questions,
            key=self.key,
            priority=priority,
            salt=self._salted(salt),
            adapter=self.adapter,
            ready=self._until_idle,
            **options,
        )
        return await self.run(work)

    async def head(self, kind: str) -> dict[str, Any]:
        """Return the fields with which OpenAI's protocols begin an object of a kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.name,
            "system_fingerprint": await self.fingerprint(),
        }

    async def fingerprint(self) -> str:
        """Return the fingerprint of the model, with the request's adapter."""
        return await self.run(self.model.fingerprint(self.adapter))

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Yield (choice, piece) as the engine produces them."""
        if len(self._streams) == 1:
            async for piece in self._streams[0]:
                yield piece.index, piece
            self._check_error()
            return
        queue: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue()

        async def forward(stream: AsyncStream, first: int) -> None:
            try:
                async for piece in stream:
                    queue.put_nowait((first + piece.index, piece))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [
            asyncio.ensure_future(forward(*pair))
            for pair in zip(self._streams, self._first_choices(), strict=True)
        ]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
            self._check_error()
        finally:
            for task in tasks:
                task.cancel()

    def _first_choices(self) -> list[int]:
        counts = [len(stream.requests) for stream in self._streams]
        return list(accumulate(counts[:-1], initial=0))

    async def result(self) -> list[Completion]:
        """Wait until all choices have ended. Raises the error that ended them early."""
        # Read all at the same time: the engine pauses streams that are not read.
        await asyncio.gather(*(self._read(stream) for stream in self._streams))
        self._check_error()
        return self.completions

    async def _read(self, stream: AsyncStream) -> None:
        """Read a stream to its end; for a batch, pause while clients use the model.

        A client that waits for a whole answer gets it as early as a stream would end. Only for a
        batch may the engine take longer steps.
        """
        if self.idle_event is not None:
            stream.read_at_end()
        async for _ in stream:
            await self._until_idle()

    async def _until_idle(self) -> None:
        """Wait, for a batch, while clients use the model."""
        while self.idle_event is not None and self.model.clients:
            await asyncio.sleep(BATCH_PAUSE_S)

    @property
    def prompts(self) -> list[list[int]]:
        """The token ids of each prompt."""
        firsts = (stream.requests[0] for stream in self._streams)
        return [one.tokens[: one.n_prompt].tolist() for one in firsts]

    @property
    def completions(self) -> list[Completion]:
        """All choices in their present state."""
        return [done for stream in self._streams for done in stream.completions]

    @property
    def last_request(self) -> EngineRequest | None:
        """The engine's request of its last prompt; None before it is submitted."""
        return self._streams[-1].requests[0] if self._streams else None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters of its first prompt."""
        if not self._streams:
            return {}
        params = self._streams[0].requests[0].params
        return {"max_tokens": params.max_tokens, "seed": params.seed, **params.sampling}

    def log_fields(self, log_prompts: bool) -> dict[str, Any]:
        """Return the fields about the answer for the log line of an ended request."""
        completions = self.completions
        line: dict[str, Any] = {"answer": self.id, "model": self.name}
        if self.stream_error is not None:
            line["error"] = self.stream_error.rule
        if completions:
            usage = self.usage()
            line |= {
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "tokens": usage["completion_tokens"],
                "queue_s": round(completions[0].stats.queue_s, 3),
                "ttft_s": round(completions[0].stats.ttft_s, 3),
                "finish": ",".join(sorted({done.finish_reason for done in completions})),
            }
        if log_prompts:
            decode = self.model.llm.tokenizer.decode
            line["prompts"] = [decode(ids, skip_special=False) for ids in self.prompts]
            line["answers"] = [done.text for done in completions]
        return line

    def receipt(self) -> dict[str, Any]:
        """Return what another machine needs, in addition to the request, to check the answer.

        `rendered_at` is present if the template asked for the time, since the prompt then depends
        on it. `images_sha256` is present if the prompt has images: digests of the pixels that the
        model sees. `sampling` has the values in effect, including the model's own defaults.
        """
        first = self._streams[0].requests[0]
        moment = first.completion.rendered_at
        placed = [stream.requests[0].images for stream in self._streams]
        images = [
            image.digest.hex() for images_of in placed if images_of for image in images_of.images
        ]
        return {
            **({} if moment is None else {"rendered_at": moment}),
            "seed": first.params.seed,
            "sampling": first.params.sampling,
            "prompt_sha256": receipt.digest(self.prompts),
            **({"images_sha256": images} if images else {}),
            "tokens_sha256": receipt.digest(done.tokens for done in self.completions),
        }

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's `usage`; a prompt that several choices share counts once."""
        firsts = [stream.completions[0].stats for stream in self._streams]
        every = [done.stats for done in self.completions]
        prompt, generated = sum(s.n_prompt for s in firsts), sum(s.n_generated for s in every)
        accepted = sum(s.n_accepted for s in every)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(s.n_cached for s in firsts)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(s.n_reasoning for s in every),
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": sum(s.n_drafted for s in every) - accepted,
            },
        }
