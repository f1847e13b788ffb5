"""`PrefixDiskCache`: pages of a prefix cache on disk, for the next start and for other processes.

A file holds a page of 64 tokens. Its name is a SHA-256 over all that its bits depend on: numerics,
weights, type and layout of keys and values, the page before, and its tokens. The file repeats them,
with a checksum, so that a damaged, truncated or foreign file is a miss.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sterna import _native
from sterna.engine.images.image_numbers import on_disk
from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.page_file import (
    NAME_BYTES,
    SUFFIX,
    UNFINISHED,
    PageFiles,
    StoredPage,
)
from sterna.engine.kv_cache.sequence import BARE, PAGE
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["PrefixDiskCache"]

#: To be raised when the layout of pages or states in memory, or of files, changes.
LAYOUT = 1
#: Bytes that may wait to be written; beyond, further pages are not kept on disk.
MOST_WAITING = 1 << 28
#: Files read and checked at the same time: disk and SHA-256 are faster with several threads.
READERS = 3
#: After writing this fraction of the budget (1 / n), count all processes' files again.
RECOUNT = 16
#: Seconds after which an unfinished file is removed.
ABANDONED_S = 3600.0


class PrefixDiskCache:
    """A folder of pages for one engine; engines of other models may use the same folder.

    folder: made if missing, readable by its owner only, since pages reveal prompts. kv_cache: of
    the engine; identity: `Engine.identity`. most: bytes of all files in the folder; beyond, the
    longest unused are removed. A background thread writes files, each whole or not at all. Raises
    RequestError for a folder that cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        kv_cache: KVCacheManager,
        identity: tuple[object, ...],
        most: int,
    ) -> None:
        self.folder: Path = Path(folder)
        self.most = most
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            writable = os.access(self.folder, os.R_OK | os.W_OK | os.X_OK)
        except OSError as error:
            raise RequestError(
                f"cache_disk: must be a folder, but {shown(str(folder))} is not: {error.strerror}"
            ) from None
        if not writable:
            raise RequestError(f"cache_disk: must be writable, but {shown(str(folder))} is not")
        self._kv_cache, self._files = kv_cache, PageFiles(kv_cache)
        self.state_bytes: int = kv_cache.state_bytes
        self.root: bytes = _name(*_fields(kv_cache, identity))
        self._waiting: deque[tuple[bytes, bytes, StoredPage]] = deque()
        self._pending, self._lock = 0, threading.Lock()
        self._known: dict[bytes, int] = {}  # bytes of files, existing or pending, by name
        self._written = most  # since files were counted; the first write counts them
        self._thread: threading.Thread | None = None
        #: Pages that could not be written.
        self.errors: int = 0
        self._failing = False

    def root_of(self, salt: str) -> bytes:
        """Return the name of the parent of a salt's first pages."""
        return _name(self.root, salt.encode("utf-8", "surrogatepass"))

    def name(self, parent: bytes, tokens: bytes) -> bytes:
        """Return the name of a page of these tokens, int32, after another page.

        Tokens may include numbers of images (`image_numbers`), here and in `put` and `get`.
        """
        tokens, images = on_disk(tokens)
        return _name(parent, tokens, images) if images else _name(parent, tokens)

    def has(self, name: bytes) -> int:
        """Return the bytes of a page's file that exists or is about to be written, else 0."""
        if name not in self._known:
            with contextlib.suppress(OSError):
                self._known[name] = self._path(name).stat(follow_symlinks=False).st_size
        return self._known.get(name, 0)

    def look_again(self, name: bytes) -> None:
        """Look at the folder when this page is next asked for: others may have removed its file."""
        if not self._pending:
            self._known.pop(name, None)

    def put(self, name: bytes, tokens: bytes, page: int, state: _native.State | None) -> bool:
        """Write a page soon; returns False if too many wait to be written.

        page: as in a sequence's table, BARE or whole.
        """
        bare = page >= BARE
        size = self.size(bare, state is not None)
        if self._pending + size > MOST_WAITING or size > self.most:
            return False
        data, state_bytes = self._kv_cache.read_page(page & ~BARE, whole=not bare), None
        if state is not None:
            state_bytes = np.empty(state.nbytes, np.uint8)
            state.read(state_bytes)
        stored = StoredPage(data, state_bytes, bare, size)
        self._known[name] = size
        with self._lock:
            self._pending += size
            self._waiting.append((name, tokens, stored))
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, daemon=True)
                self._thread.start()
        _alive.add(self)
        return True

    def restore(self, stored: StoredPage, page: int, position: int) -> _native.State | None:
        """Write a stored page to a page of the engine; returns its state, of `position`, if any."""
        self._kv_cache.write_page(page, stored.page)
        if stored.state is None:
            return None
        state = _native.State(self.state_bytes)
        state.write(stored.state, position)
        return state

    def get(self, name: bytes, tokens: bytes) -> StoredPage | None:
        """Return the page of these tokens; None if there is none that is sound."""
        return self._taken(name, *self._found(name, tokens))

    def get_all(self, pages: Iterable[tuple[bytes, bytes]]) -> Iterator[StoredPage | None]:
        """Yield `get` of each (name, tokens) in turn, reading the next few ahead."""
        from concurrent.futures import ThreadPoolExecutor

        ahead: deque[tuple[bytes, Future[tuple[StoredPage | None, bool]]]] = deque()
        names = iter(pages)
        with ThreadPoolExecutor(READERS) as readers:
            while True:
                for name, tokens in islice(names, READERS - len(ahead)):
                    ahead.append((name, readers.submit(self._found, name, tokens)))
                if not ahead:
                    return
                name, pending = ahead.popleft()
                yield self._taken(name, *pending.result())

    def _found(self, name: bytes, tokens: bytes) -> tuple[StoredPage | None, bool]:
        """Return a sound page, and whether there is a file of its name; changes nothing."""
        try:
            return self._files.read(self._path(name), name, tokens), True
        except FileNotFoundError:
            return None, False
        except OSError:  # a link, or what cannot be read
            return None, True

    def _taken(self, name: bytes, stored: StoredPage | None, there: bool) -> StoredPage | None:
        """Return the page, and mark its file as used; remove a file that is not sound."""
        if stored is None:
            self._known.pop(name, None)
        if there:
            with contextlib.suppress(OSError):
                if stored is None:
                    self._path(name).unlink()  # so that it is written again
                else:
                    os.utime(self._path(name))
        return stored

    def flush(self, timeout_s: float = 60.0) -> None:
        """Return once all waiting pages are written."""
        end = time.monotonic() + timeout_s
        while self._pending and time.monotonic() < end:
            time.sleep(0.005)

    # ------------------------------------------------------------------------------------- files

    def _path(self, name: bytes) -> Path:
        text = name.hex()
        return self.folder / text[:2] / (text + SUFFIX)

    def size(self, bare: bool, with_state: bool) -> int:
        """Return the bytes of a page's file."""
        return self._files.size(bare, with_state)

    # -------------------------------------------------------------------- the thread that writes

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None  # it would keep the engine alive
                    return
                name, tokens, stored = self._waiting.popleft()
            try:
                self._files.write(self._path(name), name, tokens, stored)
                self._written += stored.nbytes
                if self._written >= self.most // RECOUNT:
                    self._written = 0
                    self._remove_oldest()
                self._failing = False
            except OSError as error:  # for example, a full disk: the page is not kept
                self._known.pop(name, None)
                self._tell(error)
            finally:
                with self._lock:
                    self._pending -= stored.nbytes

    def _tell(self, error: OSError) -> None:
        """Count a page that could not be written, and log the first one after others could."""
        self.errors += 1
        if not self._failing:
            import logging  # not every start needs it

            logging.getLogger("sterna.engine").warning(
                "cache_disk: pages are not kept on disk: %s", error.strerror or error
            )
        self._failing = True

    def _remove_oldest(self) -> None:
        """Remove files beyond the budget, the longest unused first, and abandoned ones."""
        files, now = list[tuple[float, int, Path]](), time.time()
        for folder in self.folder.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for path in folder.iterdir():
                with contextlib.suppress(OSError):
                    facts = path.stat(follow_symlinks=False)
                    if path.suffix == SUFFIX:
                        files.append((facts.st_mtime, facts.st_size, path))
                    elif path.suffix == UNFINISHED and now - facts.st_mtime > ABANDONED_S:
                        path.unlink()
        total = sum(size for _, size, _ in files)
        # Leave some room, so that not every write counts all files.
        for _, size, path in sorted(files):
            if total <= self.most - self.most // RECOUNT:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            self._known.pop(
                bytes.fromhex(path.stem) if len(path.stem) == 2 * NAME_BYTES else b"", None
            )
            total -= size


_alive: weakref.WeakSet[PrefixDiskCache] = weakref.WeakSet()


@atexit.register
def _flush_all() -> None:
    """Write waiting pages before the process ends."""
    for store in list(_alive):
        store.flush(10.0)


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
