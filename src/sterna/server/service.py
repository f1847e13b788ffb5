"""`Service`: the state that the endpoints of an app share; begins and ends requests."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.types import ASGIApp

from sterna.server.active_request import ActiveRequest
from sterna.server.adapter_scales import AdapterScales
from sterna.server.api_keys import ApiKeys
from sterna.server.batch.runner import BatchRunner
from sterna.server.errors import ApiError
from sterna.server.metrics import Metrics
from sterna.server.model_manager import ModelManager
from sterna.server.request_limits import RequestLimits
from sterna.server.response_store import ResponseStore
from sterna.server.sampling_fields import SamplingFields
from sterna.server.settings import Settings
from sterna.server.slots import Slots

__all__ = ["Service"]

#: Bytes of a request's body, unless a setting says otherwise: a photo in base64 has 8 to 12 MB.
BODY_OF_TEXT = 1 << 20
BODY_WITH_IMAGES = 32 << 20
#: Bytes of JSON for each token of a context; prose has 4, code with long indentation more.
BYTES_PER_TOKEN = 16


class Service:
    """The state of a server.

    Attributes:
        batches: None if the server keeps no files.
        active: requests in progress, by id.
        load_error: the error of loading the first model.
    """

    def __init__(self, settings: Settings, models: ModelManager) -> None:
        self.settings = settings
        self.models = models
        self.keys: ApiKeys = ApiKeys(settings.api_keys, settings.api_key_file)
        self.metrics: Metrics = Metrics(models)
        self.responses: ResponseStore = ResponseStore()
        self.conversations: ResponseStore = ResponseStore("conversation")
        self.limits: RequestLimits = RequestLimits(settings)
        self.lora: AdapterScales = AdapterScales(models)
        self.slots: Slots = Slots(settings.max_running)
        self.batches: BatchRunner | None = None
        if settings.files is not None:
            self.batches = BatchRunner(self.limits, models, settings.files, settings.files_max)
        self.active: dict[str, ActiveRequest] = {}
        self.load_error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def max_body(self) -> int:
        """Most bytes of a request's body."""
        if self.settings.max_body is not None:
            return self.settings.max_body
        text = max(BODY_OF_TEXT, BYTES_PER_TOKEN * self.models.longest_context)
        return max(text, BODY_WITH_IMAGES) if self.models.sees else text

    @property
    def loading(self) -> bool:
        """Whether the first model, which the start loads, has not been loaded yet."""
        return not self.models.is_ready

    async def open(self, app: ASGIApp) -> None:
        """Start loading the first model, and resume batches, whose lines `app` answers."""
        if self.batches is not None:
            self.batches.open(app)
        self._tasks = [
            asyncio.ensure_future(self._load()),
            asyncio.ensure_future(self.models.unload_unused()),
        ]

    async def _load(self) -> None:
        if not self.models.loads_first:
            return
        try:
            self.models.release(await self.models.acquire(None))
        except Exception as error:
            self.load_error = error.__cause__ if isinstance(error.__cause__, Exception) else error

    async def close(self) -> None:
        """Cancel all requests and unload all models."""
        if self.batches is not None:
            await self.batches.close()
        for task in self._tasks:
            task.cancel()
        for active in list(self.active.values()):
            active.cancel()
        await self.models.close()

    async def begin(
        self, request: Request, model: str | None, prefix: str, fields: SamplingFields | None = None
    ) -> ActiveRequest:
        """Admit a request and load its model; the middleware calls `end`.

        prefix: the prefix of the request's id. fields: sampling fields of the request; those that
        choose a slot and the scales of adapters are read here. A request of a batch has an
        `idle_event` in its state (see `ActiveRequest`). ApiError 404 for an unknown model, 429 or
        503 by `RequestLimits`.
        """
        self.limits.require_open()
        key: str = request.state.key
        idle_event: asyncio.Event | None = getattr(request.state, "idle_event", None)
        if idle_event is None:
            self.limits.enter(key)
        began = time.perf_counter()
        try:
            loaded = await self.models.acquire(model)
        except BaseException:
            if idle_event is None:
                self.limits.leave(key)
            raise
        active = ActiveRequest(
            self.limits,
            loaded,
            key,
            prefix,
            share_cache=self.settings.share_cache,
            idle_event=idle_event,
            adapter=self.models.adapter_of(model),
        )
        active.loading_s = time.perf_counter() - began
        self.slots.begin(active, self.active.values())
        request.state.active = active
        active.warnings = request.state.warnings
        self.active[active.id] = active
        loaded.clients += idle_event is None
        if fields is not None:
            self.slots.choose(active, fields.id_slot)
        await self.lora.choose(active, fields.lora if fields else None)
        return active

    def end(self, active: ActiveRequest) -> None:
        """Count and forget a request; harmless when repeated."""
        if self.active.pop(active.id, None) is None:
            return
        self.slots.leave(active)
        self.metrics.record(active.name, active.completions)
        if active.idle_event is None:
            self.limits.leave(active.key)
            active.model.clients -= 1
        active.model.leaving |= active.unloads
        self.models.release(active.model)

    def require_batches(self) -> BatchRunner:
        """Return the runner of batches. ApiError 404 if the server keeps no files."""
        if self.batches is None:
            raise ApiError(
                404, "This server keeps no files; see sterna serve --files.", code="no_files"
            )
        return self.batches
