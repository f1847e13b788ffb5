"""`Batches`: the requests of files, answered while nobody else wants anything."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from sterna.errors import shown
from sterna.server import errors, inprocess
from sterna.server.batching import (
    Batch,
    Journal,
    Lines,
    Refused,
    read_lines,
    result,
    unanswered,
)
from sterna.server.errors import ApiError
from sterna.server.file_store import FileStore, read_records

if TYPE_CHECKING:
    from sterna.server.service import Service

__all__ = ["Batches", "batches_of"]

log = logging.getLogger("sterna.server")
#: Lines at a time: beyond about so many, more in a step make none of them faster.
AT_ONCE = 32
#: Tokens of prompts that lines may have waiting: whoever comes waits for these at most.
WAITING_TOKENS = 512
LOOK_S = 0.02
#: Of answers that mean "later": they are no results.
AGAIN, AGAIN_S = (429, 503), 1.0
TOO_LATE = "This request could not be executed before the completion window expired."


class Batches:
    """Those of all keys, kept beside their files; each begins where the last server left it.

    A line is a request to the app like any other, of the key whose batch it is. It is begun while
    no client waits for an answer, and rests, 16 tokens ahead at most, while one does.
    """

    def __init__(self, service: Service, folder: Path, most: int) -> None:
        self.files = FileStore(folder, most)
        self._service = service
        found = read_records(folder, "batch_*.json", Batch)
        self._batches: dict[str, Batch] = {b.id: b for b in sorted(found, key=_age)}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """Goes on with what had not ended."""
        self._app = app
        for batch in self._batches.values():
            if not batch.ended:
                self._begin(batch)

    async def stop(self) -> None:
        """Leaves what runs to the next start; harmless twice."""
        tasks = dict(self._tasks)
        for id, task in tasks.items():
            if self._batches[id].runs:
                task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stops, and lets another server have the folder."""
        await self.stop()
        self.files.close()

    async def create(self, batch: Batch) -> None:
        """Begins one whose file is there."""
        await self._note(batch)
        self._batches[batch.id] = batch
        self._begin(batch)

    async def _note(self, batch: Batch) -> None:
        await asyncio.to_thread(self.files.save_record, batch)

    def get(self, id: str, key: str) -> Batch:
        """One of this key's. ApiError 404."""
        found = self._batches.get(id)
        if found is None or found.key != key:
            raise ApiError(404, f"id: no batch of yours is kept as {shown(id)}", param="id")
        return found

    def of(self, key: str) -> list[Batch]:
        """This key's, the latest first."""
        return [batch for batch in reversed(self._batches.values()) if batch.key == key]

    def uses(self, file: str) -> bool:
        """Whether one that has not ended reads this file."""
        return any(b.input_file_id == file and not b.ended for b in self._batches.values())

    async def cancel(self, batch: Batch) -> None:
        """Ends one with the results that it has. ApiError 400 where it is too late."""
        if batch.status == "cancelling":
            return
        if not batch.runs:
            raise ApiError(400, f"batch: must be running, but is {batch.status}", param="id")
        batch.become("cancelling")
        self._tasks[batch.id].cancel()
        await self._note(batch)

    # ------------------------------------------------------------------------------ one of them

    def _begin(self, batch: Batch) -> None:
        task = asyncio.ensure_future(self._run(batch))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, batch: Batch) -> None:
        """A batch to its end, or to where the server stops it."""
        journal = Journal(self.files.folder / f"{batch.id}.part")
        self.files.pending_bytes += journal.nbytes
        end = "completed"
        try:
            if batch.status == "cancelling":  # when the last server stopped
                raise asyncio.CancelledError
            await self._compute(batch, journal)
        except asyncio.CancelledError:
            if batch.status != "cancelling":
                self.files.pending_bytes -= journal.nbytes
                journal.close()
                raise
            end = "cancelled"
        except asyncio.TimeoutError:
            end = "expired"
        except _Failed as failure:
            end, batch.errors = "failed", {"object": "list", "data": failure.data}
        except Exception as error:
            end = "failed"
            self._blame(batch, error)
        try:
            await self._finish(batch, journal, end)
        except Exception as error:  # the disk is full; the journal stays
            self._blame(batch, error)
            batch.become("failed")

    def _blame(self, batch: Batch, error: Exception) -> None:
        """Says in the batch and in the log why it failed."""
        log.error("%s: failed", batch.id, exc_info=error)
        said = errors.to_api_error(error)
        data = [{"code": said.code, "line": None, "message": said.message, "param": None}]
        batch.errors = {"object": "list", "data": data}

    async def _compute(self, batch: Batch, journal: Journal) -> None:
        """All lines that have no result yet. TimeoutError where its time is over."""
        path = self.files.path(batch.input_file_id)
        lines = await asyncio.to_thread(read_lines, path, batch.endpoint)
        if isinstance(lines, Refused):
            raise _Failed(lines.errors)
        batch.total, batch.model = len(lines), lines.model
        batch.completed, batch.failed = journal.count(True), journal.count(False)
        if batch.status == "validating":
            batch.become("in_progress")
            await self._note(batch)
        try:
            left = max(0.0, batch.expires_at - time.time())
            await asyncio.wait_for(self._lines(batch, lines, journal), left)
        except asyncio.TimeoutError:
            for index in range(len(lines)):
                if index not in journal:
                    custom_id, _ = await asyncio.to_thread(lines.read, index)
                    said = unanswered(custom_id, "batch_expired", TOO_LATE)
                    self._append(journal, index, False, said)
                    batch.failed += 1
            raise

    async def _lines(self, batch: Batch, lines: Lines, journal: Journal) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            for index in range(len(lines)):
                if index in journal:
                    continue
                await self._turn()
                begun = asyncio.Event()
                task = asyncio.ensure_future(self._line(batch, lines, journal, index, begun))
                tasks.add(task)
                task.add_done_callback(lambda _: self._places.release())
                await _either(task, begun)  # what it adds to the load is known
                for ended in [task for task in tasks if task.done()]:
                    tasks.remove(ended)
                    ended.result()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        """Waits until a line may begin; batches take turns."""
        await self._places.acquire()
        try:
            while self._service.clients or self._waiting > WAITING_TOKENS:
                await asyncio.sleep(LOOK_S)
        except BaseException:
            self._places.release()
            raise

    @property
    def _waiting(self) -> int:
        loaded = list(self._service.models.loaded.values())
        return sum(loaded.engine.load().waiting_tokens for loaded in loaded)

    async def _line(
        self, batch: Batch, lines: Lines, journal: Journal, index: int, begun: asyncio.Event
    ) -> None:
        assert self._app is not None
        custom_id, body = await asyncio.to_thread(lines.read, index)
        id = f"batch_req_{secrets.token_hex(12)}"
        while True:
            state: dict[str, Any] = {"id": id, "key": batch.key, "idle": begun}
            status, answer = await inprocess.post(self._app, batch.endpoint, body, state)
            if status not in AGAIN:
                break
            begun.set()
            await asyncio.sleep(AGAIN_S)
        data, good = result(custom_id, status, id, answer), status == 200
        self.files.require_room(len(data))
        self._append(journal, index, good, data)
        batch.completed, batch.failed = batch.completed + good, batch.failed + (not good)

    def _append(self, journal: Journal, index: int, good: bool, data: bytes) -> None:
        before = journal.nbytes
        journal.append(index, good, data)
        self.files.pending_bytes += journal.nbytes - before

    async def _finish(self, batch: Batch, journal: Journal, end: str) -> None:
        """Results become files, in the order of their lines."""
        if batch.status != "cancelling":
            batch.become("finalizing")
        self.files.pending_bytes -= journal.nbytes
        for good, name in ((True, "output"), (False, "error")):
            nbytes, write = journal.part(good)
            if nbytes and getattr(batch, f"{name}_file_id") is None:
                file_object = await asyncio.to_thread(
                    self.files.add, batch.key, f"{batch.id}_{name}.jsonl", "batch_output", nbytes,
                    write, batch.output_expires_s,
                )  # fmt: skip
                setattr(batch, f"{name}_file_id", file_object.id)
                await self._note(batch)
        batch.become(end)
        await self._note(batch)
        journal.remove()
        log.info(
            "batch=%s status=%s completed=%d failed=%d of %d",
            batch.id, end, batch.completed, batch.failed, batch.total,
        )  # fmt: skip


class _Failed(Exception):
    """A file that cannot be run."""

    def __init__(self, data: list[dict[str, Any]]) -> None:
        super().__init__("failed")
        self.data = data


def _age(batch: Batch) -> int:
    return batch.created_at


async def _either(task: asyncio.Task[None], begun: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(begun.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def batches_of(service: Service) -> Batches:
    """Those of a server. ApiError 404 where it keeps no files."""
    if service.batches is None:
        raise ApiError(
            404, "files: are not kept by this server; see sterna serve --files", code="no_files"
        )
    return service.batches
