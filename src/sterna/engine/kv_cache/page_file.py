"""`PageFiles`: the file of a page of the prefix cache: how it is written, read and checked."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.images.image_numbers import on_disk
from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.sequence import BARE, PAGE
from sterna.files.system import OPEN_FLAGS

__all__ = ["NAME_BYTES", "SUFFIX", "UNFINISHED", "PageFiles", "StoredPage"]

#: To be raised when the layout of pages or states in memory, or of files, changes.
LAYOUT = 1
#: Names end so: of a page's file, and of one that is being written.
SUFFIX, UNFINISHED = ".page", ".part"
#: Bytes of a page's name, a SHA-256.
NAME_BYTES = hashlib.sha256().digest_size

U8 = npt.NDArray[np.uint8]
_MAGIC = b"sterna prefix\0\0\1"
_HAS_STATE, _IS_BARE = 1, 2  # flags in the byte after a name
_SUM = hashlib.sha256().digest_size


@dataclass(frozen=True)
class StoredPage:
    """The bytes of a page, and of the recurrent state at its end if it has one.

    bare: without the part of sliding-window layers; nbytes: size of the file.
    """

    page: U8
    state: U8 | None
    bare: bool
    nbytes: int


class PageFiles:
    """Files of pages of a KV cache.

    A file has a magic word, the page's name, flags, its tokens (int32), its bytes, those of a
    state if it has one, and a SHA-256 of all that.
    """

    def __init__(self, kv_cache: KVCacheManager, identity: tuple[object, ...]) -> None:
        """identity: `Engine.identity`, on which the bits of a page depend."""
        self._kv_cache = kv_cache
        #: The name of all that the bits of a page depend on, except its tokens.
        self.root: bytes = _name(*_fields(kv_cache, identity))

    def root_of(self, salt: str) -> bytes:
        """Return the name of the parent of a salt's first pages."""
        return _name(self.root, salt.encode("utf-8", "surrogatepass"))

    def name(self, parent: bytes, tokens: bytes) -> bytes:
        """Return the name of a page of these tokens, int32, after another page.

        Tokens may include numbers of images (`image_numbers`), here and in `read` and `write`.
        """
        tokens, images = on_disk(tokens)
        return _name(parent, tokens, images) if images else _name(parent, tokens)

    def stored(self, page: int, state: _native.State | None) -> StoredPage:
        """Copy a page of the engine, as in a sequence's table, BARE or whole, and its state."""
        bare, data = page >= BARE, None
        if state is not None:
            data = np.empty(state.nbytes, np.uint8)
            state.read(data)
        size = self.size(bare, state is not None)
        return StoredPage(self._kv_cache.read_page(page & ~BARE, not bare), data, bare, size)

    def restore(self, stored: StoredPage, page: int, position: int) -> _native.State | None:
        """Write a stored page to a page of the engine; returns its state, of `position`, if any."""
        self._kv_cache.write_page(page, stored.page)
        if stored.state is None:
            return None
        state = _native.State(self._kv_cache.state_bytes)
        state.write(stored.state, position)
        return state

    def size(self, bare: bool, with_state: bool) -> int:
        """Return the bytes of a file; a file that holds more is larger."""
        body = self._kv_cache.held_bytes(not bare)
        body += self._kv_cache.state_bytes if with_state else 0
        return len(_MAGIC) + NAME_BYTES + 1 + 4 * PAGE + body + _SUM

    @property
    def _sizes(self) -> set[int]:
        return {self.size(bare, state) for bare in (False, True) for state in (False, True)}

    def read(self, path: Path, name: bytes, tokens: bytes) -> StoredPage | None:
        """Return the page of this name and these tokens; None if the file is not sound.

        Raises OSError, also for a link.
        """
        data = self._bytes_of(path)
        return None if data is None else self.checked(data, name, tokens)

    def _bytes_of(self, path: Path) -> U8 | None:
        """Return the bytes of a regular file; None if its size is none of those possible."""
        number = os.open(path, OPEN_FLAGS | getattr(os, "O_NOFOLLOW", 0))
        with open(number, "rb", buffering=0) as file:
            size = os.fstat(number).st_size
            if size not in self._sizes:
                return None
            data = np.empty(size, np.uint8)
            at = 0
            while at < size:
                count = file.readinto(data[at:].data)
                if not count:
                    return None
                at += count
            return data

    def checked(self, data: U8, name: bytes, tokens: bytes) -> StoredPage | None:
        """Return the page that the bytes of a file hold; None if they are not sound."""
        if len(data) not in self._sizes:
            return None
        kind = int(data[len(_MAGIC) + len(name)])
        bare, with_state = bool(kind & _IS_BARE), bool(kind & _HAS_STATE)
        head = self._head(name, tokens, bare, with_state)
        if data[: len(head)].tobytes() != head or len(data) != self.size(bare, with_state):
            return None
        if hashlib.sha256(data[:-_SUM].data).digest() != data[-_SUM:].tobytes():
            return None
        body = data[len(head) : -_SUM]
        count = self._kv_cache.held_bytes(not bare)
        return StoredPage(body[:count], body[count:] if with_state else None, bare, len(data))

    def write(self, path: Path, name: bytes, tokens: bytes, stored: StoredPage) -> None:
        """Write a page to a file, whole or not at all. Raises OSError."""
        path.parent.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f".{os.getpid()}-{secrets.token_hex(8)}{UNFINISHED}")
        number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            total = hashlib.sha256()
            with open(number, "wb", buffering=0) as file:
                for piece in self._pieces(name, tokens, stored):
                    total.update(piece)
                    _write_whole(file.fileno(), piece)
                _write_whole(file.fileno(), memoryview(total.digest()))
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    def _pieces(self, name: bytes, tokens: bytes, stored: StoredPage) -> Iterator[memoryview]:
        yield memoryview(self._head(name, tokens, stored.bare, stored.state is not None))
        yield stored.page.data
        if stored.state is not None:
            yield stored.state.data

    def _head(self, name: bytes, tokens: bytes, bare: bool, with_state: bool) -> bytes:
        kind = bytes([with_state * _HAS_STATE + bare * _IS_BARE])
        return _MAGIC + name + kind + on_disk(tokens)[0]


def _write_whole(number: int, data: memoryview) -> None:
    data = data.cast("B")
    while data:
        data = data[os.write(number, data) :]


def _fields(kv_cache: KVCacheManager, identity: tuple[object, ...]) -> Sequence[bytes]:
    """Return all that the bits of a page depend on, except its tokens."""
    fields = {
        "layout": LAYOUT,
        "page": PAGE,
        "bits": identity,
        "shape": kv_cache.kv_heads,
        "state": kv_cache.state_bytes,
    }
    return [repr(field).encode() for pair in fields.items() for field in pair]


def _name(*fields: bytes) -> bytes:
    """Return the SHA-256 of fields, each preceded by its length."""
    sha256 = hashlib.sha256()
    for field in fields:
        sha256.update(len(field).to_bytes(8, "little") + field)
    return sha256.digest()
