"""`ModelManager`: loads models when they are requested, and unloads unused ones."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sterna import _native
from sterna.engine import PAGE
from sterna.errors import SternaError, shown
from sterna.llm import LLM, receipt
from sterna.llm.adapters import AdapterChoice
from sterna.llm.async_llm import AsyncLLM
from sterna.runtime import available_bytes
from sterna.server.errors import ApiError, field_error

__all__ = ["LoadedModel", "ModelManager", "ModelSource"]

_log = logging.getLogger("sterna.server")
#: Bytes read to measure memory bandwidth: more than any cache, and read in 0.1 s.
BANDWIDTH_BYTES = 256 << 20
POLL_S = 5.0  #: how often to look for unused models
#: Memory that a model needs on top of its weights, as a share of their files' bytes.
MARGIN = 0.25


class ModelSource(NamedTuple):
    """How to load a model: a function, the bytes of its weight files, the names of its adapters.

    on_demand: load it when it is requested, even if it is the first.
    """

    open: Callable[[], LLM]
    nbytes: int = 0
    adapters: tuple[str, ...] = ()
    on_demand: bool = False


class LoadedModel:
    """A model in memory with its engine.

    Attributes:
        busy: the number of requests that use it now.
        clients: the number of these requests that belong to clients, not to batches.
        used: when it was last used, as `time.monotonic`.
        leaving: whether to unload it when no request uses it any more.
        bandwidth_gb_s: the machine's memory bandwidth, once measured.
    """

    def __init__(self, name: str, llm: LLM, engine_options: Mapping[str, Any]) -> None:
        self.name = name
        self.llm = llm
        self.created: int = int(time.time())
        llm.name = name  # for errors: clients must not see paths
        self.engine: AsyncLLM = AsyncLLM(llm, **engine_options)
        self.busy: int = 0
        self.clients: int = 0
        self.used: float = time.monotonic()
        self.leaving: bool = False
        self.bandwidth_gb_s: float | None = None
        self._fingerprint = asyncio.ensure_future(asyncio.to_thread(receipt.fingerprint, llm))
        self._measured: asyncio.Future[None] | None = None

    @property
    def kv_bytes(self) -> int:
        """Bytes that keys and values of running requests and cached prefixes may take at most."""
        kv_cache = self.llm.engine.kv_cache
        return kv_cache.pool.count * kv_cache.page_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights of layers and head."""
        return sum(op.streamed.nbytes for op in self.llm.model.graph.linears)

    @property
    def memory(self) -> str:
        """A line for operators about the memory that the model takes."""
        tokens = self.llm.engine.kv_cache.pool.count * PAGE
        return (
            f"weights {_bytes(self.weight_bytes)}; keys and values of running requests and cached "
            f"prefixes grow to at most {_bytes(self.kv_bytes)}, {tokens:,} tokens (--cache-ram)"
        )

    def measure(self) -> None:
        """Start measuring `bandwidth_gb_s`, once, and only while the model is idle."""
        if self._measured is None and self.busy == 0:
            self._measured = asyncio.ensure_future(asyncio.to_thread(self._measure))

    def _measure(self) -> None:
        nbytes = min(BANDWIDTH_BYTES, available_bytes() // 8)
        self.bandwidth_gb_s = _native.bandwidth_gb_s(self.llm.engine.threads, nbytes)

    async def fingerprint(self, adapter: AdapterChoice = None) -> str:
        """Return the fingerprint of the model and an adapter; computed after loading."""
        own = await asyncio.shield(self._fingerprint)
        return own if adapter is None else receipt.fingerprint(self.llm, adapter)

    async def close(self) -> None:
        """End all requests and threads."""
        threads: list[asyncio.Future[Any]] = [self._fingerprint]  # these threads read the weights
        if self._measured is not None:
            threads.append(self._measured)
        await asyncio.gather(*threads, return_exceptions=True)
        await self.engine.close()


class ModelManager:
    """The models of a server, by name.

    Makes room for a model by unloading idle ones, the least recently used first.

    sources: models by name, the default first. keep_alive: seconds after which an unused model is
    unloaded; None is never. max_loaded: how many may be loaded at a time; None is as many as fit
    into memory.

    Attributes:
        loads_first: whether the first model is to be loaded at the start.
        is_ready: whether it has been, or need not be.
        longest_context: the longest context of all models that were loaded once.
    """

    def __init__(
        self,
        sources: Mapping[str, ModelSource],
        engine_options: Mapping[str, Any],
        keep_alive: float | None = None,
        max_loaded: int | None = None,
    ) -> None:
        self._sources, self._engine_options = dict(sources), engine_options
        self._adapted = {a: name for name, source in sources.items() for a in source.adapters}
        self._keep_alive, self._max_loaded = keep_alive, max_loaded
        self.loaded: dict[str, LoadedModel] = {}
        self.loads_first: bool = not next(iter(sources.values())).on_demand
        self.is_ready: bool = not self.loads_first
        self._states: dict[str, dict[str, object]] = {}  # of models that are not in memory
        self._sees: dict[str, bool] = {}  # of each model that was loaded once
        self.longest_context: int = 0
        self._loading = asyncio.Lock()
        self._unloading: set[asyncio.Future[None]] = set()
        self._left = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """The names of all models, the default first, then those of adapters."""
        return [*self._sources, *self._adapted]

    @property
    def sees(self) -> bool:
        """Whether any model sees images, or may: one that was never loaded."""
        return any(self._sees.get(name, True) for name in self._sources)

    def file_bytes(self, name: str) -> int:
        """Return the bytes of a model's weight files; 0 for an adapter."""
        source = self._sources.get(name)
        return source.nbytes if source else 0

    def state(self, name: str) -> dict[str, object]:
        """Return the state of a model, or of an adapter's, in llama.cpp's form."""
        model = self.model_of(name)
        if model in self.loaded:
            return {"value": "loaded"}
        return self._states.get(model, {"value": "unloaded"})

    def model_of(self, name: str) -> str:
        """Return the name of an adapter's base model; for a model, the name itself."""
        return self._adapted.get(name, name)

    def adapter_of(self, name: str | None) -> str | None:
        """Return the name if it is an adapter's, else None."""
        return name if name in self._adapted else None

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> Any:
        """Use a model in a `with` block; None is the default. ApiError 404 for an unknown name."""
        loaded = await self._get(name)
        loaded.busy += 1
        try:
            yield loaded
        finally:
            self.release(loaded)

    async def acquire(self, name: str | None) -> LoadedModel:
        """Like `use`, until `release`."""
        loaded = await self._get(name)
        loaded.busy += 1
        return loaded

    def release(self, loaded: LoadedModel) -> None:
        """Undo one `acquire`."""
        loaded.busy -= 1
        loaded.used = time.monotonic()
        self._left.set()
        if loaded.leaving:
            task = asyncio.ensure_future(self.unload_idle(loaded.name))
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def unload_idle(self, name: str) -> None:
        """Unload a model, if it is in memory, once no request uses it; a new one keeps it.

        ApiError 404 for an unknown name.
        """
        if self.model_of(name) not in self._sources:
            raise self._unknown(name)
        async with self._loading:
            loaded = self.loaded.get(self.model_of(name))
            if loaded is not None:
                loaded.leaving = loaded.busy > 0
                if not loaded.leaving:
                    await self._unload(loaded)

    async def unload(self, name: str) -> None:
        """Unload a model. ApiError 404 for an unknown name, 400 if it is not in memory, 409 if
        requests use it."""
        model = self.model_of(name)
        if model not in self._sources:
            raise self._unknown(name)
        async with self._loading:
            loaded = self.loaded.get(model)
            if loaded is None:
                raise field_error("model", f"{shown(name)} is not loaded")
            if loaded.busy:
                raise field_error("model", f"{shown(name)} answers requests now", status=409)
            await self._unload(loaded)

    def _unknown(self, name: str) -> ApiError:
        return field_error(
            "model",
            f"must be one of {', '.join(self.names)}, but got {shown(name)}",
            status=404,
            code="model_not_found",
        )

    async def _get(self, name: str | None) -> LoadedModel:
        name = self.names[0] if name is None else self.model_of(name)
        if name not in self._sources:
            raise self._unknown(name)
        if name not in self.loaded:
            async with self._loading:  # one at a time, and none twice
                if name not in self.loaded:
                    await self._make_room(self._sources[name].nbytes)
                    llm = await self._load(name)
                    self.loaded[name] = LoadedModel(name, llm, self._engine_options)
                    _log.info("loaded %s: %s", name, self.loaded[name].memory)
                    self.is_ready, self._sees[name] = True, llm.model.tower is not None
                    self.longest_context = max(self.longest_context, llm.context)
        self.loaded[name].leaving = False
        return self.loaded[name]

    async def _load(self, name: str) -> LLM:
        """Load a model. ApiError 500 without details; its cause, which may name files, has them."""
        self._states[name] = {"value": "loading"}
        try:
            llm = await _in_daemon_thread(self._sources[name].open)
            self._states.pop(name)
            return llm
        except BaseException as error:
            self._states[name] = {"value": "unloaded", "failed": True}
            if not isinstance(error, SternaError):
                raise
            _log.error("%s: cannot be loaded: %s", name, error)
            raise field_error(
                "model", f"{name} cannot be loaded; the server's log has the reason", status=500
            ) from error

    async def _make_room(self, nbytes: int) -> None:
        """Unload models until another of `nbytes` fits, or none is left."""
        while self.loaded and not self._has_room(nbytes):
            idle = [loaded for loaded in self.loaded.values() if not loaded.busy]
            if idle:
                await self._unload(min(idle, key=lambda loaded: loaded.used))
            else:
                self._left.clear()
                await self._left.wait()

    def _has_room(self, nbytes: int) -> bool:
        if self._max_loaded is not None and len(self.loaded) >= self._max_loaded:
            return False
        return available_bytes() >= nbytes * (1 + MARGIN)

    async def _unload(self, loaded: LoadedModel) -> None:
        del self.loaded[loaded.name]
        await loaded.close()
        del loaded
        gc.collect()  # frees reference cycles, which hold the memory

    async def unload_unused(self) -> None:
        """Unload models that were unused for `keep_alive`; runs until it is cancelled."""
        while self._keep_alive is not None:
            await asyncio.sleep(min(POLL_S, self._keep_alive))
            async with self._loading:
                for loaded in list(self.loaded.values()):
                    unused = time.monotonic() - loaded.used
                    if not loaded.busy and unused > self._keep_alive:
                        await self._unload(loaded)

    async def close(self) -> None:
        """Unload all models."""
        for loaded in list(self.loaded.values()):
            await self._unload(loaded)


def _bytes(count: int) -> str:
    """Write bytes as 1.9 GB or 310 MB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


async def _in_daemon_thread(load: Callable[[], LLM]) -> LLM:
    """Run `load` in a daemon thread, which a shutdown does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[LLM] = loop.create_future()

    def finish(llm: LLM | None, error: Exception | None) -> None:
        if future.done():  # cancelled meanwhile
            return
        if llm is None:
            future.set_exception(error or RuntimeError("no model"))
        else:
            future.set_result(llm)

    def run() -> None:
        llm, failed = None, None
        try:
            llm = load()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # if the loop is closed
            loop.call_soon_threadsafe(finish, llm, failed)

    threading.Thread(target=run, name="sterna-loading", daemon=True).start()
    return await future
