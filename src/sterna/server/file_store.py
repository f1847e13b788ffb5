"""`FileStore`: the files that clients upload and that batches write, in one bounded folder."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from sterna.errors import RequestError, shown
from sterna.files.system import lock
from sterna.files.writing import replacing, unwritable
from sterna.server.errors import ApiError, field_error

__all__ = ["FileObject", "FileStore", "read_records"]

_log = logging.getLogger("sterna.server")
LOCK = ".lock"
#: File permissions: prompts and answers are private.
MODE = 0o600


class FileObject(msgspec.Struct):
    """A file's metadata. key: the owner's; times are in seconds since 1970."""

    id: str
    key: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None

    def body(self) -> dict[str, Any]:
        """Return the file as a client gets it."""
        fields = msgspec.structs.asdict(self)
        del fields["key"]
        return {"object": "file", "status": "processed", **fields}


class FileStore:
    """The files of all keys, at most `max_bytes` together, in a folder that one server locks.

    `ID` has the bytes of a file, and `ID.json`, written last, its metadata.
    RequestError if the folder cannot be created or is in use.

    Attributes:
        pending_bytes: results of batches that will become files.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._reserved = 0
        self.pending_bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._claim = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, MODE)
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            lock(self._claim, wait=False)
        except OSError:
            os.close(self._claim)
            raise RequestError(
                f"files: must be a folder of its own, but another server uses {folder}"
            ) from None
        files: list[FileObject] = read_records(folder, "file-*.json", FileObject)
        self._files = {
            file_object.id: file_object for file_object in sorted(files, key=lambda f: f.created_at)
        }
        for path in folder.glob("file-*"):  # left by writers that were killed
            if path.suffix != ".json" and path.name not in self._files:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Release the folder for another server."""
        os.close(self._claim)

    def path(self, id: str) -> Path:
        """Return the path of a file's bytes."""
        return self.folder / id

    @property
    def used(self) -> int:
        """Bytes of all files, including those being written."""
        stored = sum(file_object.bytes for file_object in self._files.values())
        return stored + self._reserved + self.pending_bytes

    def require_room(self, nbytes: int) -> None:
        """Raise ApiError 413 if `nbytes` more do not fit."""
        self._delete_expired()
        if self.used + nbytes > self.max_bytes:
            raise ApiError(
                413,
                f"files: must have at most {self.max_bytes} bytes together, but {self.used} are "
                f"used and {nbytes} would be added; delete some, or see sterna serve --files-max",
                code="files_full",
            )

    def add(
        self,
        key: str,
        filename: str,
        purpose: str,
        nbytes: int,
        write: Callable[[BinaryIO], None],
        expires_s: int | None = None,
    ) -> FileObject:
        """Create a file whose bytes `write` writes. Thread-safe. ApiError 413, RequestError."""
        with self._lock:
            self.require_room(nbytes)
            self._reserved += nbytes
        try:
            id, now = f"file-{secrets.token_hex(12)}", int(time.time())
            expires = None if expires_s is None else now + expires_s
            file_object = FileObject(id, key, filename, purpose, nbytes, now, expires)
            with replacing(self.path(id), nbytes, MODE) as file:
                write(file)
            self.save_record(file_object)
            self._files[id] = file_object
            return file_object
        finally:
            self._reserved -= nbytes

    def save_record(self, value: Any) -> None:
        """Write a struct that has an `id` to `ID.json`, whole or not at all. Thread-safe."""
        with self._lock:  # so that the last writer has the latest state
            data = msgspec.json.encode(value)
            with replacing(self.folder / f"{value.id}.json", len(data), MODE) as file:
                file.write(data)

    def get(self, id: str, key: str, param: str = "id") -> FileObject:
        """Return a file of this key. ApiError 404."""
        self._delete_expired()
        file_object = self._files.get(id)
        if file_object is None or file_object.key != key:
            raise field_error(
                param, f"you have no file {shown(id)}", status=404, code="file_not_found"
            )
        return file_object

    def owned_by(self, key: str) -> list[FileObject]:
        """List the files of a key, newest first."""
        self._delete_expired()
        return [
            file_object for file_object in reversed(self._files.values()) if file_object.key == key
        ]

    def delete(self, id: str) -> None:
        """Delete a file; harmless if there is none."""
        if self._files.pop(id, None) is not None:
            # Metadata first: bytes without metadata are deleted at the next start.
            (self.folder / f"{id}.json").unlink(missing_ok=True)
            self.path(id).unlink(missing_ok=True)

    def _delete_expired(self) -> None:
        now = time.time()
        for file_object in list(self._files.values()):
            if file_object.expires_at is not None and file_object.expires_at <= now:
                self.delete(file_object.id)


def read_records(folder: Path, pattern: str, kind: type[Any]) -> list[Any]:
    """Read the JSON files of a folder as structs; damaged ones are skipped with a warning."""
    records = []
    for path in sorted(folder.glob(pattern)):
        try:
            value = msgspec.json.decode(path.read_bytes(), type=kind)
            if f"{value.id}.json" != path.name:
                raise ValueError("the id is of another file")
            records.append(value)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            _log.warning("%s: is damaged, so it is ignored: %s", path, error)
    return records
