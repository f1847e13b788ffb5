"""Files of clients, in a folder: what they upload, and what batches write; bounded in bytes."""

from __future__ import annotations

import fcntl
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
from sterna.files.writing import replacing, unwritable
from sterna.server.errors import ApiError

__all__ = ["FileObject", "FileStore", "read_records"]

log = logging.getLogger("sterna.server")
LOCK = ".lock"
#: Rights of what is written: prompts and answers are nobody else's business.
MODE = 0o600


class FileObject(msgspec.Struct):
    """What is known of a file. key: whose; times in seconds since 1970."""

    id: str
    key: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None = None

    def body(self) -> dict[str, Any]:
        """In OpenAI's words."""
        fields = msgspec.structs.asdict(self)
        del fields["key"]
        return {"object": "file", "status": "processed", **fields}


class FileStore:
    """Those of all keys, in one folder of one server; `most` bytes in all.

    A file is `ID` with its bytes and `ID.json` with what is known of it, written last.
    RequestError where the folder cannot be had.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most
        self._lock = threading.Lock()
        self._reserved = 0
        #: Bytes of results that are to become files.
        self.pending_bytes = 0
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._claim = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, MODE)
        except OSError as error:
            raise unwritable(folder, error) from None
        try:
            fcntl.flock(self._claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._claim)
            raise RequestError(
                f"files: must be a folder of one server, but {folder} is another's"
            ) from None
        found: list[FileObject] = read_records(folder, "file-*.json", FileObject)
        self._files = {
            file_object.id: file_object for file_object in sorted(found, key=lambda f: f.created_at)
        }
        for path in folder.glob("file-*"):  # of writers that were killed before the end
            if path.suffix != ".json" and path.name not in self._files:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets another server have the folder."""
        os.close(self._claim)

    def path(self, id: str) -> Path:
        """Where a file's bytes are."""
        return self.folder / id

    @property
    def used(self) -> int:
        """Bytes of all files, and of what is being written."""
        kept = sum(file_object.bytes for file_object in self._files.values())
        return kept + self._reserved + self.pending_bytes

    def require_room(self, nbytes: int) -> None:
        """ApiError 413 where so many bytes more are too many."""
        self._delete_expired()
        if self.used + nbytes > self.most:
            raise ApiError(
                413,
                f"files: must have at most {self.most} bytes together, but {self.used} are used "
                f"and {nbytes} are to come; delete some, or see sterna serve --files-max",
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
        """A new file, whose bytes `write` writes. ApiError 413, RequestError; for any thread."""
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
        """Writes what is known of something that has an id, whole or not at all; for any thread."""
        with self._lock:  # the last to write has the latest of it
            data = msgspec.json.encode(value)
            with replacing(self.folder / f"{value.id}.json", len(data), MODE) as file:
                file.write(data)

    def get(self, id: str, key: str, param: str = "id") -> FileObject:
        """One of this key's. ApiError 404."""
        self._delete_expired()
        found = self._files.get(id)
        if found is None or found.key != key:
            raise ApiError(
                404, f"{param}: no file of yours is kept as {shown(id)}", param=param,
                code="file_not_found",
            )  # fmt: skip
        return found

    def owned_by(self, key: str) -> list[FileObject]:
        """This key's, the latest first."""
        self._delete_expired()
        return [
            file_object for file_object in reversed(self._files.values()) if file_object.key == key
        ]

    def delete(self, id: str) -> None:
        """Deletes one; harmless where there is none."""
        if self._files.pop(id, None) is not None:
            # The note goes first: bytes without one are swept away at the next start.
            (self.folder / f"{id}.json").unlink(missing_ok=True)
            self.path(id).unlink(missing_ok=True)

    def _delete_expired(self) -> None:
        now = time.time()
        for file_object in list(self._files.values()):
            if file_object.expires_at is not None and file_object.expires_at <= now:
                self.delete(file_object.id)


def read_records(folder: Path, pattern: str, kind: type[Any]) -> list[Any]:
    """What the notes of a folder say; those that cannot be read are left alone, with a warning."""
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            value = msgspec.json.decode(path.read_bytes(), type=kind)
            if f"{value.id}.json" != path.name:
                raise ValueError("another file's")
            found.append(value)
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            log.warning("%s: is damaged, and left alone: %s", path, error)
    return found
