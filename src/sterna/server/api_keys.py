"""API keys, from the command line and from a file that is read again when it changes."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Sequence
from pathlib import Path

from sterna.errors import RequestError
from sterna.files.reading import read_file

__all__ = ["ApiKeys"]

LOOK_S = 1.0  #: how often the file is checked for changes
MAX_FILE_BYTES = 1 << 20


class ApiKeys:
    """The owner of each key.

    file: one `key` or `name key` per line, where the name is used for logs and limits; `#` begins
    a comment. RequestError if it cannot be read at the start; later the last good keys stay.
    """

    def __init__(self, keys: Sequence[str] = (), file: Path | None = None) -> None:
        self._file = file
        self._given = [(_digest(key), f"key-{i}") for i, key in enumerate(keys, 1)]
        self._read: list[tuple[bytes, str]] = []
        self._stamp: tuple[int, int] | None = None
        self._looked = 0.0
        if file is not None:
            self._reload()

    def owner(self, key: str) -> str | None:
        """Return the name of a key's owner; None for a wrong key.

        Compares all keys in constant time, so that timing reveals nothing about them.
        """
        self._look()
        digest, owner = _digest(key), None
        for known, name in (*self._given, *self._read):
            if hmac.compare_digest(known, digest):
                owner = name
        return owner

    def _look(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            if self._stamp != self._stamp_now():
                self._reload()
        except (OSError, RequestError):
            return

    def _stamp_now(self) -> tuple[int, int]:
        assert self._file is not None
        stat = os.stat(self._file)
        return stat.st_mtime_ns, stat.st_size

    def _reload(self) -> None:
        assert self._file is not None
        stamp = self._stamp_now()
        try:
            text = bytes(read_file(self._file, MAX_FILE_BYTES)).decode()
        except UnicodeDecodeError:
            raise RequestError(
                f"api-key-file: must be UTF-8 text, but {self._file} is not"
            ) from None
        keys = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if len(words) > 2:
                raise RequestError(
                    f"api-key-file: must have one `key` or `name key` per line, but line {number} "
                    f"of {self._file} has {len(words)} words"
                )
            if words:
                keys.append((_digest(words[-1]), words[0] if words[1:] else f"line-{number}"))
        if not keys and not self._given:
            raise RequestError(f"api-key-file: must have a key, but {self._file} has none")
        self._read, self._stamp = keys, stamp


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
