"""An `Ask` on its way: whether there is room for it, what it gives, and what is noted of it."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from sterna.llm import receipt
from sterna.llm.async_llm import MOST_PRIORITY
from sterna.outputs import Completion, Piece
from sterna.server.api_keys import ApiKeys
from sterna.server.batches import Batches
from sterna.server.errors import ApiError
from sterna.server.metrics import Metrics
from sterna.server.model_manager import LoadedModel, ModelManager
from sterna.server.response_store import ResponseStore
from sterna.server.sampling_fields import GenerationRequest
from sterna.server.settings import Settings

__all__ = ["ActiveRequest", "Service"]

#: Between two looks whether clients still want what a batch rests for.
REST_S = 0.02


class Service:
    """What the endpoints of an app share. draining: nothing new is begun."""

    def __init__(self, settings: Settings, models: ModelManager) -> None:
        self.settings, self.models = settings, models
        self.keys = ApiKeys(settings.api_keys, settings.api_key_file)
        self.metrics = Metrics(models)
        self.responses = ResponseStore()
        self.batches: Batches | None = None
        if settings.files is not None:
            self.batches = Batches(self, settings.files, settings.files_max)
        self.clients = 0  #: requests that are not of batches
        self.active: dict[str, ActiveRequest] = {}
        self.failed: Exception | None = None
        self.draining = False
        self._by_key: Counter[str] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def loading(self) -> bool:
        """Whether no model has been loaded yet."""
        return not self.models.ever_loaded

    async def open(self, app: ASGIApp) -> None:
        """Begins to load the first model; `failed` says why that did not work.

        app: which answers the lines of batches.
        """
        if self.batches is not None:
            self.batches.open(app)
        self._tasks = [
            asyncio.ensure_future(self._load()),
            asyncio.ensure_future(self.models.watch()),
        ]

    async def _load(self) -> None:
        try:
            self.models.release(await self.models.take(None))
        except Exception as error:
            self.failed = error.__cause__ if isinstance(error.__cause__, Exception) else error

    async def close(self) -> None:
        """Gives up everything."""
        if self.batches is not None:
            await self.batches.close()
        for task in self._tasks:
            task.cancel()
        for active in list(self.active.values()):
            active.cancel()
        await self.models.close()

    async def begin(self, request: Request, model: str | None, prefix: str) -> ActiveRequest:
        """A place for a request: of a model, and among those of its key.

        prefix: of its id. A request whose state has `idle` is of a batch: it takes time that no
        client wants, and `idle` is set once it is submitted. ApiError 404, 429 or 503.
        """
        self.require_open()
        key: str = request.state.key
        idle: asyncio.Event | None = getattr(request.state, "idle", None)
        if idle is None:
            self._require_place(key)
            self._by_key[key] += 1
            self.clients += 1
        try:
            loaded = await self.models.take(model)
        except BaseException:
            self._leave(key, idle)
            raise
        active = ActiveRequest(self, loaded, key, prefix, idle, self.models.adapter_of(model))
        request.state.active = active
        active.warnings = request.state.warnings
        self.active[active.id] = active
        loaded.clients += idle is None
        return active

    def _require_place(self, key: str) -> None:
        most = self.settings.max_per_key
        if most is not None and self._by_key[key] >= most:
            raise ApiError(
                429,
                f"key: must have at most {most} requests at a time",
                code="key_limit",
                retry_after=1,
            )

    def _leave(self, key: str, idle: asyncio.Event | None) -> None:
        if idle is None:
            self.clients -= 1
            self._by_key[key] -= 1
            self._by_key += Counter()  # keeps what is above 0

    def end(self, active: ActiveRequest) -> None:
        """Forgets a request; harmless the second time."""
        if self.active.pop(active.id, None) is not None:
            self._leave(active.key, active.idle)
            active.model.clients -= active.idle is None
            self.models.release(active.model)

    def require_open(self) -> None:
        """ApiError 503 where nothing new is begun."""
        if self.draining:
            raise ApiError(503, "server: is shutting down", code="shutting_down", retry_after=5)

    def require_room(self, loaded: LoadedModel, more: int) -> None:
        """ApiError 429 where so many more would wait too long.

        Who has a place in the next step does not queue, and where nobody is, many at once may come.
        """
        load, settings = loaded.engine.load(), self.settings
        wait = max(1, math.ceil(load.predicted_s))
        if not load.idle and load.queue(more) > settings.max_queue:
            raise ApiError(
                429,
                f"queue: must be at most {settings.max_queue} requests, but is full",
                code="queue_full",
                retry_after=wait,
            )
        if load.predicted_s > settings.max_wait:
            raise ApiError(
                429,
                f"queue: must be at most {settings.max_wait:g} s long, but is {wait} s",
                code="queue_full",
                retry_after=wait,
            )


class ActiveRequest:
    """A request from its place to its end: what a client waits for, under one id.

    A prompt has `n` choices, and several prompts one after another theirs. idle: as in
    `Service.begin`. adapter: the model's, by name; name: what the client calls both.
    """

    def __init__(
        self,
        service: Service,
        loaded: LoadedModel,
        key: str,
        prefix: str,
        idle: asyncio.Event | None = None,
        adapter: str | None = None,
    ) -> None:
        self.adapter, self.name = adapter, adapter or loaded.name
        self.service, self.model, self.key, self.idle = service, loaded, key, idle
        self.id, self.created = f"{prefix}-{secrets.token_hex(12)}", int(time.time())
        self.began = time.perf_counter()
        self.cancelled = False
        self.error: ApiError | None = None
        self.failure: ApiError | None = None  #: that ended its stream
        #: What of the request was left out: for a header, and the log.
        self.warnings: list[str] = []
        self._generations: list[GenerationRequest] = []
        self._tickets: list[Any] = []
        self._tasks: set[asyncio.Future[Any]] = set()

    def submit(self, generations: Sequence[GenerationRequest]) -> None:
        """Gives prompts to the engine. ApiError 429, 499 where its client has left already,
        RequestError."""
        self._check_cancelled()
        if self.idle is None:
            self.service.require_room(self.model, len(generations))
        shared = "" if self.service.settings.share_cache else self.key
        try:
            for generation in generations:
                self._tickets.append(
                    self.model.engine.submit(
                        generation.prompt,
                        n=generation.n,
                        key=self.key,
                        priority=generation.priority if self.idle is None else -MOST_PRIORITY,
                        deadline_s=generation.deadline_s,
                        salt=f"{shared}\0{generation.salt}",
                        chat=generation.chat,
                        **{
                            **_given(
                                constraint=generation.constraint,
                                prediction=generation.prediction,
                                adapter=self.adapter,
                            ),
                            **generation.options,
                        },
                    )
                )
        except BaseException:
            self.cancel()
            raise
        self._generations = list(generations)
        if self.idle is not None:
            self.idle.set()

    def cancel(self) -> None:
        """Ends it where it is; harmless twice."""
        self.cancelled = True
        for ticket in self._tickets:
            ticket.cancel()
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """Ends it because the server does: its client is told."""
        self.error = ApiError(503, "server: is shutting down", code="shutting_down")
        self.cancel()

    def _check_cancelled(self) -> None:
        self._check_cut()
        if self.cancelled:
            raise ApiError(499, "request: was cancelled", code="cancelled")

    def _check_cut(self) -> None:
        if self.error is not None:
            raise self.error

    async def beside(self, work: Any) -> Any:
        """The result of other work for this request, which `cancel` cancels as well."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        if self.cancelled:
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self._check_cancelled()
            raise
        finally:
            self._tasks.discard(task)

    async def fingerprint(self) -> str:
        """The model's."""
        found: str = await self.beside(self.model.fingerprint(self.adapter))
        return found

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces with the number of their choice, in the order in which they come."""
        starts = self._first_choices()
        if len(self._tickets) == 1:
            async for piece in self._tickets[0]:
                yield piece.index, piece
            self._check_cut()
            return
        queue: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue()

        async def forward(ticket: Any, first: int) -> None:
            try:
                async for piece in ticket:
                    queue.put_nowait((first + piece.index, piece))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [
            asyncio.ensure_future(forward(*pair))
            for pair in zip(self._tickets, starts, strict=True)
        ]
        try:
            left = len(tasks)
            while left:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
            self._check_cut()
        finally:
            for task in tasks:
                task.cancel()

    def _first_choices(self) -> list[int]:
        firsts, count = [], 0
        for generation in self._generations:
            firsts.append(count)
            count += generation.n
        return firsts

    async def result(self) -> list[Completion]:
        """All choices at their end. Raises what ended them."""
        # Side by side: what nobody reads is not computed far ahead.
        await asyncio.gather(*(self._read(ticket) for ticket in self._tickets))
        self._check_cut()
        return self.completions

    async def _read(self, ticket: Any) -> None:
        """To its end; one of a batch rests, unread, while clients want the model.

        A client that waits for a whole answer has it as soon as its stream would end: only for a
        batch may steps be longer.
        """
        if self.idle is not None:
            ticket.read_at_end()
        async for _ in ticket:
            while self.idle is not None and self.model.clients:
                await asyncio.sleep(REST_S)

    @property
    def completions(self) -> list[Completion]:
        """All choices as they are."""
        return [done for ticket in self._tickets for done in ticket.completions]

    def note(self) -> dict[str, Any]:
        """Tells the metrics of a request that ended; what its line of log has."""
        completions = self.completions
        self.service.metrics.note(self.name, completions)
        line: dict[str, Any] = {"answer": self.id, "model": self.name}
        if self.failure is not None:
            line["error"] = self.failure.rule
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
        if self.service.settings.log_prompts:
            decode = self.model.llm.tokenizer.decode
            line["prompts"] = [
                decode(generation.prompt, skip_special=False) for generation in self._generations
            ]
            line["answers"] = [done.text for done in completions]
        return line

    def receipt(self) -> dict[str, Any]:
        """What another machine needs, with the request, to check the answer.

        rendered_at is there where the template asked for the time: the prompt depends on it.
        sampling: what was used, the model's own values being there where the request had none.
        """
        moment = self._generations[0].rendered_at
        return {
            **({} if moment is None else {"rendered_at": moment}),
            "seed": self._generations[0].options.get("seed"),
            "sampling": self._tickets[0].requests[0].params.sampling,
            "prompt_sha256": receipt.digest(generation.prompt for generation in self._generations),
            "tokens_sha256": receipt.digest(done.tokens for done in self.completions),
        }

    def usage(self) -> dict[str, Any]:
        """Tokens, in OpenAI's words; those of a prompt that several choices share count once."""
        firsts = [ticket.completions[0].stats for ticket in self._tickets]
        every = [done.stats for done in self.completions]
        prompt, generated = sum(s.n_prompt for s in firsts), sum(s.n_generated for s in every)
        accepted = sum(s.n_accepted for s in every)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(s.n_cached for s in firsts)},
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": sum(s.n_drafted for s in every) - accepted,
            },
        }


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
