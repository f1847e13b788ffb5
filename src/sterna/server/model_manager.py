"""The models of a server: loaded when they are asked for, and given up when nobody asks."""

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
from sterna.errors import SternaError, shown
from sterna.llm import LLM, receipt
from sterna.llm.async_llm import AsyncLLM
from sterna.runtime import available_bytes
from sterna.server.errors import ApiError

__all__ = ["LoadedModel", "ModelManager", "ModelSource"]

log = logging.getLogger("sterna.server")
#: Read to measure memory's speed: more than caches hold, in a tenth of a second.
BANDWIDTH_BYTES = 256 << 20
LOOK_S = 5.0  #: between two looks for models that nobody asks


#: What a model needs in memory beside its weights, as a share of their files' bytes.
MARGIN = 0.25


class ModelSource(NamedTuple):
    """Where a model comes from: what loads it, the bytes of its weights' files, and the names of
    adapters that it then has."""

    open: Callable[[], LLM]
    nbytes: int = 0
    adapters: tuple[str, ...] = ()


class LoadedModel:
    """A model in memory, and what runs it. busy: requests that need it now; clients: those of them
    that are not of batches."""

    def __init__(self, name: str, llm: LLM, engine_options: Mapping[str, Any]) -> None:
        self.name, self.llm, self.created = name, llm, int(time.time())
        llm.name = name  # what errors call it: clients are told no path
        self.engine = AsyncLLM(llm, **engine_options)
        self.busy, self.clients, self.used = 0, 0, time.monotonic()
        #: GB/s that this machine reads memory at, once that is measured.
        self.bandwidth_gb_s: float | None = None
        self._fingerprint = asyncio.ensure_future(asyncio.to_thread(receipt.fingerprint, llm))
        self._measured: asyncio.Future[None] | None = None

    def measure(self) -> None:
        """Begins to measure `bandwidth_gb_s`, once, while nobody waits for an answer."""
        if self._measured is None and self.busy == 0:
            self._measured = asyncio.ensure_future(asyncio.to_thread(self._measure))

    def _measure(self) -> None:
        nbytes = min(BANDWIDTH_BYTES, available_bytes() // 8)
        self.bandwidth_gb_s = _native.bandwidth_gb_s(self.llm.engine.threads, nbytes)

    async def fingerprint(self, adapter: str | None = None) -> str:
        """Under which answers have the same bits; computed behind the first requests."""
        own = await asyncio.shield(self._fingerprint)
        return own if adapter is None else receipt.fingerprint(self.llm, adapter)

    async def close(self) -> None:
        """Ends what runs, and the engine's thread."""
        threads: list[asyncio.Future[Any]] = [self._fingerprint]  # that read the weights
        if self._measured is not None:
            threads.append(self._measured)
        await asyncio.gather(*threads, return_exceptions=True)
        await self.engine.close()


class ModelManager:
    """The models that a server knows by name.

    sources: where each comes from, the default first. keep_alive: seconds without a request after
    which one is given up, None: never. most: how many are in memory at a time, None: as many as
    have room. Where one more is asked for than fits, that which was used longest ago goes first,
    once nobody uses it.
    """

    def __init__(
        self,
        sources: Mapping[str, ModelSource],
        engine_options: Mapping[str, Any],
        keep_alive: float | None = None,
        most: int | None = None,
    ) -> None:
        self._sources, self._engine_options = dict(sources), engine_options
        self._adapted = {a: name for name, source in sources.items() for a in source.adapters}
        self._keep_alive, self._most = keep_alive, most
        self.loaded: dict[str, LoadedModel] = {}
        self.ever_loaded = False
        self._loading = asyncio.Lock()
        self._left = asyncio.Event()

    @property
    def names(self) -> list[str]:
        """The default's first; those of adapters last."""
        return [*self._sources, *self._adapted]

    def model_of(self, name: str) -> str:
        """The model that a name means: itself, or the one that an adapter is of."""
        return self._adapted.get(name, name)

    def adapter_of(self, name: str | None) -> str | None:
        """The adapter that a name means; None: none."""
        return name if name in self._adapted else None

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> Any:
        """A model for the time of a block; the default for None. ApiError 404 for another name."""
        loaded = await self._get(name)
        loaded.busy += 1
        try:
            yield loaded
        finally:
            self.release(loaded)

    async def acquire(self, name: str | None) -> LoadedModel:
        """A model to `release` later; as `use`."""
        loaded = await self._get(name)
        loaded.busy += 1
        return loaded

    def release(self, loaded: LoadedModel) -> None:
        """Ends what `acquire` began."""
        loaded.busy -= 1
        loaded.used = time.monotonic()
        self._left.set()

    async def _get(self, name: str | None) -> LoadedModel:
        name = self.names[0] if name is None else self.model_of(name)
        if name not in self._sources:
            raise ApiError(
                404,
                f"model: must be one of {', '.join(self.names)}, but got {shown(name)}",
                param="model",
                code="model_not_found",
            )
        if name not in self.loaded:
            async with self._loading:  # one at a time, and never one twice
                if name not in self.loaded:
                    await self._make_room(self._sources[name].nbytes)
                    llm = await self._load(name)
                    self.loaded[name] = LoadedModel(name, llm, self._engine_options)
                    self.ever_loaded = True
        return self.loaded[name]

    async def _load(self, name: str) -> LLM:
        """A model; ApiError 500, which has what went wrong as its cause: that names files."""
        try:
            return await _loaded(self._sources[name].open)
        except SternaError as error:
            log.error("%s: cannot be loaded: %s", name, error)
            raise ApiError(
                500, f"model: {name} cannot be loaded; the server's log says why", param="model"
            ) from error

    async def _make_room(self, nbytes: int) -> None:
        """Gives up models until another of so many bytes fits; one alone is always tried."""
        while self.loaded and not self._has_room(nbytes):
            idle = [loaded for loaded in self.loaded.values() if not loaded.busy]
            if idle:
                await self._unload(min(idle, key=lambda loaded: loaded.used))
            else:
                self._left.clear()
                await self._left.wait()

    def _has_room(self, nbytes: int) -> bool:
        if self._most is not None and len(self.loaded) >= self._most:
            return False
        return available_bytes() >= nbytes * (1 + MARGIN)

    async def _unload(self, loaded: LoadedModel) -> None:
        del self.loaded[loaded.name]
        await loaded.close()
        del loaded
        gc.collect()  # a model's objects know each other, and hold its memory until then

    async def unload_unused(self) -> None:
        """Gives up models that nobody has asked for long enough; runs until it is cancelled."""
        while self._keep_alive is not None:
            await asyncio.sleep(min(LOOK_S, self._keep_alive))
            async with self._loading:
                for loaded in list(self.loaded.values()):
                    unused = time.monotonic() - loaded.used
                    if not loaded.busy and unused > self._keep_alive:
                        await self._unload(loaded)

    async def drain(self) -> None:
        """Waits until everything that was asked is answered."""
        await asyncio.gather(*(loaded.engine.drain() for loaded in self.loaded.values()))

    async def close(self) -> None:
        """Gives up all of them."""
        for loaded in list(self.loaded.values()):
            await self._unload(loaded)


async def _loaded(opener: Callable[[], LLM]) -> LLM:
    """What an opener gives, in a thread that a process which is told to end does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[LLM] = loop.create_future()

    def tell(llm: LLM | None, error: Exception | None) -> None:
        if future.done():  # nobody waits any more
            return
        if llm is None:
            future.set_exception(error or RuntimeError("no model"))
        else:
            future.set_result(llm)

    def run() -> None:
        llm, failed = None, None
        try:
            llm = opener()
        except Exception as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, llm, failed)

    threading.Thread(target=run, name="sterna-loading", daemon=True).start()
    return await future
