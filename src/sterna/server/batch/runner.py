"""`BatchRunner`: answers batches while no client waits for an answer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import Any

import anyio
from starlette.types import ASGIApp

from sterna.errors import shown
from sterna.server import errors, inprocess
from sterna.server.batch.input import BatchInput, InvalidInputError, read_input
from sterna.server.batch.job import Batch
from sterna.server.batch.journal import Journal, error_line, output_line
from sterna.server.errors import ApiError, field_error
from sterna.server.file_store import FileStore, read_records
from sterna.server.model_manager import ModelManager
from sterna.server.request_limits import RequestLimits

__all__ = ["BatchRunner"]

_log = logging.getLogger("sterna.server")
#: Requests at a time: larger steps would make none of them faster.
MAX_CONCURRENT = 32
#: Prompt tokens that batches may have waiting: the most that a client's request waits for.
MAX_WAITING_TOKENS = 512
POLL_S = 0.02
#: Statuses that mean "later", so they are no results; and how long to wait.
RETRY_STATUSES, RETRY_S = (429, 503), 1.0
EXPIRED = "This request could not be executed before the completion window expired."


class BatchRunner:
    """Runs the batches of all keys, and resumes those that an earlier server left.

    Each line is a request to the app, made with the key of the batch's owner. It begins while no
    client waits for an answer; while one does, it pauses after 16 tokens at most.
    """

    def __init__(
        self, limits: RequestLimits, models: ModelManager, folder: Path, max_bytes: int
    ) -> None:
        self.files: FileStore = FileStore(folder, max_bytes)
        self._limits, self._models = limits, models
        batches: list[Batch] = read_records(folder, "batch_*.json", Batch)
        self._batches = {batch.id: batch for batch in sorted(batches, key=lambda b: b.created_at)}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._app: ASGIApp | None = None

    def open(self, app: ASGIApp) -> None:
        """Resume the batches that have not ended."""
        self._app = app
        for batch in self._batches.values():
            if not batch.ended:
                self._start(batch)

    async def stop(self) -> None:
        """Interrupt running batches, for the next server to resume; harmless when repeated."""
        tasks = dict(self._tasks)
        for id, task in tasks.items():
            if self._batches[id].running:
                task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Stop, and release the folder for another server."""
        await self.stop()
        self.files.close()

    async def create(self, batch: Batch) -> None:
        """Start a batch whose input file exists."""
        await self._save(batch)
        self._batches[batch.id] = batch
        self._start(batch)

    async def _save(self, batch: Batch) -> None:
        await asyncio.to_thread(self.files.save_record, batch)

    def get(self, id: str, key: str) -> Batch:
        """Return a batch of this key. ApiError 404."""
        batch = self._batches.get(id)
        if batch is None or batch.key != key:
            raise field_error("id", f"you have no batch {shown(id)}", status=404)
        return batch

    def owned_by(self, key: str) -> list[Batch]:
        """List the batches of a key, newest first."""
        return [batch for batch in reversed(self._batches.values()) if batch.key == key]

    def uses(self, file_id: str) -> bool:
        """Whether a batch that has not ended reads this file."""
        return any(b.input_file_id == file_id and not b.ended for b in self._batches.values())

    async def cancel(self, batch: Batch) -> None:
        """End a batch with the results it has. ApiError 400 if it is not running."""
        if batch.status == "cancelling":
            return
        if not batch.running:
            raise ApiError(400, f"batch: must be running, but is {batch.status}", param="id")
        batch.set_status("cancelling")
        self._tasks[batch.id].cancel()
        await self._save(batch)

    # ---------------------------------------------------------------------------- a single batch

    def _start(self, batch: Batch) -> None:
        task = asyncio.ensure_future(self._run(batch))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, batch: Batch) -> None:
        """Run a batch until it ends or the server stops."""
        journal = Journal(self.files.folder / f"{batch.id}.part")
        self.files.pending_bytes += journal.nbytes
        status = "completed"
        try:
            if batch.status == "cancelling":  # when the last server stopped
                raise asyncio.CancelledError
            await self._compute(batch, journal)
        except asyncio.CancelledError:
            if batch.status != "cancelling":
                self.files.pending_bytes -= journal.nbytes
                journal.close()
                raise
            status = "cancelled"
        except TimeoutError:
            status = "expired"
        except InvalidInputError as error:
            status, batch.errors = "failed", {"object": "list", "data": error.errors}
        except Exception as error:
            status = "failed"
            self._report(batch, error)
        try:
            await self._finish(batch, journal, status)
        except Exception as error:  # such as a full disk; the journal stays
            self._report(batch, error)
            batch.set_status("failed")

    def _report(self, batch: Batch, error: Exception) -> None:
        """Note in the batch and in the log why it failed."""
        _log.error("%s: failed", batch.id, exc_info=error)
        said = errors.to_api_error(error)
        data = [{"code": said.code, "line": None, "message": said.message, "param": None}]
        batch.errors = {"object": "list", "data": data}

    async def _compute(self, batch: Batch, journal: Journal) -> None:
        """Answer all requests that have no result yet.

        InvalidInputError; TimeoutError at the end of the completion window.
        """
        path = self.files.path(batch.input_file_id)
        requests = await asyncio.to_thread(read_input, path, batch.endpoint)
        batch.total, batch.model = len(requests), requests.model
        batch.completed, batch.failed = journal.count(True), journal.count(False)
        if batch.status == "validating":
            batch.set_status("in_progress")
            await self._save(batch)
        try:
            seconds = max(0.0, batch.expires_at - time.time())
            with anyio.fail_after(seconds):
                await self._answer_all(batch, requests, journal)
        except TimeoutError:
            for index in range(len(requests)):
                if index not in journal:
                    custom_id, _ = await asyncio.to_thread(requests.read, index)
                    self._append(
                        journal, index, False, error_line(custom_id, "batch_expired", EXPIRED)
                    )
                    batch.failed += 1
            raise

    async def _answer_all(self, batch: Batch, requests: BatchInput, journal: Journal) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            for index in range(len(requests)):
                if index in journal:
                    continue
                await self._acquire_slot()
                submitted = asyncio.Event()
                task = asyncio.ensure_future(
                    self._answer(batch, requests, journal, index, submitted)
                )
                tasks.add(task)
                task.add_done_callback(lambda _: self._slots.release())
                # The engine's load must include this request before the next one looks at it.
                await _first_of(task, submitted)
                for ended in [task for task in tasks if task.done()]:
                    tasks.remove(ended)
                    ended.result()
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _acquire_slot(self) -> None:
        """Wait until a request may begin. Batches get slots in turn."""
        await self._slots.acquire()
        try:
            while self._limits.clients or self._waiting_tokens() > MAX_WAITING_TOKENS:
                await asyncio.sleep(POLL_S)
        except BaseException:
            self._slots.release()
            raise

    def _waiting_tokens(self) -> int:
        loaded = list(self._models.loaded.values())
        return sum(model.engine.load().waiting_tokens for model in loaded)

    async def _answer(
        self,
        batch: Batch,
        requests: BatchInput,
        journal: Journal,
        index: int,
        submitted: asyncio.Event,
    ) -> None:
        assert self._app is not None
        custom_id, body = await asyncio.to_thread(requests.read, index)
        id = f"batch_req_{secrets.token_hex(12)}"
        while True:
            state: dict[str, Any] = {"id": id, "key": batch.key, "idle_event": submitted}
            status, answer = await inprocess.post(self._app, batch.endpoint, body, state)
            if status not in RETRY_STATUSES:
                break
            if self._limits.draining or not batch.running:  # "later" is for the next server
                raise asyncio.CancelledError
            submitted.set()
            await asyncio.sleep(RETRY_S)
        data, ok = output_line(custom_id, status, id, answer), status == 200
        self.files.require_room(len(data))
        self._append(journal, index, ok, data)
        batch.completed, batch.failed = batch.completed + ok, batch.failed + (not ok)

    def _append(self, journal: Journal, index: int, ok: bool, data: bytes) -> None:
        before = journal.nbytes
        journal.append(index, ok, data)
        self.files.pending_bytes += journal.nbytes - before

    async def _finish(self, batch: Batch, journal: Journal, status: str) -> None:
        """Turn the journal into an output file and an error file, in the order of the input."""
        if batch.status != "cancelling":
            batch.set_status("finalizing")
        self.files.pending_bytes -= journal.nbytes
        for ok, name in ((True, "output"), (False, "error")):
            nbytes, write = journal.collect(ok)
            if nbytes and getattr(batch, f"{name}_file_id") is None:
                file_object = await asyncio.to_thread(
                    self.files.add,
                    batch.key,
                    f"{batch.id}_{name}.jsonl",
                    "batch_output",
                    nbytes,
                    write,
                    batch.output_expires_s,
                )
                setattr(batch, f"{name}_file_id", file_object.id)
                await self._save(batch)
        batch.set_status(status)
        await self._save(batch)
        journal.delete()
        _log.info(
            "batch=%s status=%s completed=%d failed=%d of %d",
            batch.id,
            status,
            batch.completed,
            batch.failed,
            batch.total,
        )


async def _first_of(task: asyncio.Task[None], event: asyncio.Event) -> None:
    """Wait for the task or the event, and return at the first of them."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
