"""`PrefixDiskCache`: pages of a prefix cache on disk, for the next start and for other processes.

A file holds a page of 64 tokens. Its name is a SHA-256 over all that its bits depend on: numerics,
weights, type and layout of keys and values, the page before, and its tokens. The file repeats them,
with a checksum, so that a damaged, truncated or foreign file is a miss.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.engine.kv_cache.manager import KVCacheManager
from sterna.engine.kv_cache.page_file import (
    NAME_BYTES,
    SUFFIX,
    UNFINISHED,
    PageFiles,
    StoredPage,
)
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["CopiesPage", "PrefixDiskCache"]

#: Copies a page for its file; None if it is gone.
CopiesPage = Callable[[], "StoredPage | None"]

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
        self.files: PageFiles = PageFiles(kv_cache, identity)
        # By name, in order: tokens, and what copies the page. The first may be under way.
        self._waiting: dict[bytes, tuple[bytes, CopiesPage]] = {}
        self._lock = threading.Lock()
        self._known: dict[bytes, int] = {}  # bytes of files, existing or pending, by name
        self._written = most  # since files were counted; the first write counts them
        self._thread: threading.Thread | None = None
        #: Pages that could not be written.
        self.errors: int = 0
        self._failing = False

    def has(self, name: bytes) -> int:
        """Return the bytes of a page's file that exists or is about to be written, else 0."""
        if name not in self._known:
            with contextlib.suppress(OSError):
                self._known[name] = self._path(name).stat(follow_symlinks=False).st_size
        return self._known.get(name, 0)

    def look_again(self, name: bytes) -> None:
        """Look at the folder when this page is next asked for: others may have removed its file."""
        if name not in self._waiting:
            self._known.pop(name, None)

    def is_waiting(self, name: bytes) -> bool:
        """Whether a page is about to be written."""
        return name in self._waiting

    def put(self, name: bytes, tokens: bytes, size: int, copies_page: CopiesPage) -> bool:
        """Write a page of `size` bytes soon; returns False if it is larger than the budget.

        The page is copied when its turn comes, on another thread, so however many wait, they take
        no memory; one that is gone by then is left out.
        """
        if size > self.most:
            return False
        self._known[name] = size
        with self._lock:
            self._waiting[name] = tokens, copies_page
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, daemon=True)
                self._thread.start()
        _alive.add(self)
        return True

    def get(self, name: bytes, tokens: bytes) -> StoredPage | None:
        """Return the page of these tokens; None if there is none that is sound."""
        return self._taken(name, *self._found(name, tokens))

    def bytes_of(self, name: bytes) -> bytes:
        """Return the bytes of a page's file. Raises OSError if it is not there."""
        return self._path(name).read_bytes()

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
            return self.files.read(self._path(name), name, tokens), True
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

    def flush(self, patience_s: float = 60.0, timeout_s: float = math.inf) -> None:
        """Return once all waiting pages are written, or none was for `patience_s`."""
        begin = moved = time.monotonic()
        left = len(self._waiting)
        while self._waiting and time.monotonic() < min(moved + patience_s, begin + timeout_s):
            time.sleep(0.005)
            if len(self._waiting) < left:
                moved = time.monotonic()
            left = len(self._waiting)

    # ------------------------------------------------------------------------------------- files

    def _path(self, name: bytes) -> Path:
        text = name.hex()
        return self.folder / text[:2] / (text + SUFFIX)

    # -------------------------------------------------------------------- the thread that writes

    def _write_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None  # it would keep the engine alive
                    return
                name, waiting = next(iter(self._waiting.items()))
            tokens, copies_page = waiting
            try:
                stored = copies_page()
                if stored is None:
                    self._known.pop(name, None)
                    continue
                self.files.write(self._path(name), name, tokens, stored)
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
                    if self._waiting[name] is waiting:  # a larger file may be wanted by now
                        del self._waiting[name]

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
        store.flush(timeout_s=10.0)
