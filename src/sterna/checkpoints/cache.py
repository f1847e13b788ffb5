"""The cache of packed models: written in the background, found by the source files' sizes and
times.

One entry per source path, format and head; a newer state of the source replaces the older entry.
Nothing here is fatal: without a usable cache a model is packed again at each start.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sterna.checkpoints.directory import CONFIG, WEIGHTS
from sterna.checkpoints.packed_config import LAYOUT_VERSION
from sterna.errors import SternaError, reason, shown, warn
from sterna.files.bundle_file import cache_dir as cache_dir
from sterna.files.reading import unreadable
from sterna.files.system import lock, lower_priority, opened
from sterna.files.writing import sync_directory

CACHE_VERSION = 7  # raise it when conversion gives other bytes for the same source
EXIT_WAIT_S = 60.0  # a short run must be able to finish its first entry; a signal ends the wait
_SILENT_S = 1.0  # of this wait
_STALE_S = 3600.0  # a temporary folder this old belongs to a process that was killed
_CLAIMED_S = 60.0  # and one this old that is not locked, where the file system has locks
_BACKGROUND_NICENESS = 10
_SOURCE = "source.path"  # next to the packed model: the path of its source, for lists
_MAX_PATH_BYTES = 1 << 14
_SOURCE_SUFFIXES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".gguf")
_MODULE = re.compile(r"\d{1,3}_[A-Za-z]+")  # 2_Dense, whose weights are packed with the model's
_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}-[0-9a-f]{20}-[0-9a-f]{20}")


class BackgroundWrite:
    """A write to the cache under way in the background."""

    def __init__(
        self, key: str, thread: threading.Thread | None, temporary: Path | None = None
    ) -> None:
        """`thread`: the writer, None if the cache is off; `temporary`: where it writes. Made by
        `store_behind`.
        """
        self._key = key
        self._thread = thread
        self._temporary = temporary
        self.given_up: bool = False

    @property
    def done(self) -> bool:
        """Whether the write has ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> Path | None:
        """Wait for the end of the write; return the entry's path, None if there is none (yet)."""
        self.join(timeout_s)
        return lookup(self._key) if self.done else None

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the write."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def give_up(self) -> None:
        """Remove half-written files; for a process that ends at once.

        A write in progress continues into a file without a name; the next one fails silently.
        """
        self.given_up = True
        for _ in range(10):  # a file that is made while others are removed keeps the folder
            if self._temporary is None or not self._temporary.exists():
                return
            shutil.rmtree(self._temporary, ignore_errors=True)


_pending: list[BackgroundWrite] = []


def cache_key(
    path: str | os.PathLike[str], format: str | None, head: str | None, parts: Sequence[Path] = ()
) -> str:
    """Return the key of a source (a folder or a file) packed in `format` with `head`.

    It covers the path, the layout's version, and names, sizes and modification times of the files
    that matter. `parts`: the files of a source that is split. Raises RequestError if the source
    cannot be read.
    """
    source = Path(os.path.realpath(path))
    try:
        source.stat()  # raises where there is nothing
        files = list(parts) or (_files_of(source) if source.is_dir() else [source])
        states = [
            (file.name, status.st_size, status.st_mtime_ns)
            for file in files
            if file.name.endswith(_SOURCE_SUFFIXES)
            for status in [file.stat()]
        ]
    except OSError as error:
        raise unreadable(source, error) from error
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{source.name}-{format}-{head}")[-64:].lstrip(".")
    # Its first half depends only on the source, so that all entries of a source can be found
    identity = _source_digest(source) + _digest([str(source), format, head])[:10]
    return f"{label or 'model'}-{identity}-{_digest([CACHE_VERSION, LAYOUT_VERSION, states])}"


def _files_of(folder: Path) -> list[Path]:
    """List a model's files, and those of the folders of sentence-transformers' modules."""
    files = sorted(folder.iterdir())
    modules = [file for file in files if _MODULE.fullmatch(file.name) and file.is_dir()]
    return [*files, *(file for module in modules for file in sorted(module.iterdir()))]


def lookup(key: str) -> Path | None:
    """Return the packed directory of this key; None if there is none."""
    root = cache_dir()
    if root is None:
        return None
    entry = root / _checked(key)
    _sweep(root)
    if not _is_whole(entry):
        return None
    with contextlib.suppress(OSError):
        os.utime(entry)  # its last use
    return entry


def store_behind(
    key: str, writer: Callable[[Path], None], source: str | os.PathLike[str] | None = None
) -> BackgroundWrite:
    """Call `writer(empty folder)` in a background thread and move the folder into the cache.

    source: the packed file or folder, for `source_of`. A failure (a full or read-only disk, an
    exception of `writer`) is a RuntimeWarning. At its exit the process waits for a write under way,
    at most EXIT_WAIT_S seconds.
    """
    root = cache_dir()
    _checked(key)
    if root is None:
        return BackgroundWrite(key, None)
    path = None if source is None else os.fsencode(os.path.abspath(source))
    temporary = root / f".{key}.{secrets.token_hex(8)}.tmp"

    def write(folder: Path) -> None:
        writer(folder)
        if path is not None:
            (folder / _SOURCE).write_bytes(path)

    def run() -> None:
        _yield_to_foreground()
        try:
            _store(root, key, write, temporary)
        except Exception as error:
            if store.given_up:
                return
            # Suppressed: with -W error the warning itself would be raised, here where no one is
            known = isinstance(error, SternaError)
            why = str(error) if known else f"{root}: {reason(error)}"
            with contextlib.suppress(RuntimeWarning):
                warn(f"cache not written: {why}")

    # A daemon, joined by _finish: Ctrl-C in the interpreter's own join would print a traceback
    thread = threading.Thread(target=run, name="sterna-cache", daemon=True)
    store = BackgroundWrite(key, thread, temporary)
    _pending[:] = [s for s in _pending if not s.done] + [store]
    thread.start()
    return store


def discard(key: str) -> None:
    """Remove an entry, such as a damaged one; harmless if there is none."""
    root = cache_dir()
    if root is not None:
        _remove(root, root / _checked(key))


def entries() -> list[tuple[Path, int]]:
    """List the cache's entries and their sizes in bytes, by name."""
    root = cache_dir()
    sizes: list[tuple[Path, int]] = []
    with contextlib.suppress(OSError):
        for entry in sorted(root.iterdir()) if root is not None else ():
            if _KEY.fullmatch(entry.name):
                sizes.append((entry, sum(file.stat().st_size for file in entry.iterdir())))
    return sizes


def entries_of(path: str | os.PathLike[str]) -> list[tuple[Path, int]]:
    """List entries made from this source (a folder or a file, even a deleted one), with sizes."""
    source = _source_digest(Path(os.path.realpath(path)))
    return [entry for entry in entries() if entry[0].name[-41:].startswith(source)]


def source_of(entry: Path) -> str | None:
    """Return the path of an entry's source; None if an earlier version wrote the entry."""
    try:
        with (entry / _SOURCE).open("rb") as file:
            return os.fsdecode(file.read(_MAX_PATH_BYTES)) or None
    except OSError:
        return None


def _source_digest(source: Path) -> str:
    return _digest(str(source))[:10]


def _digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))  # ASCII: any file name can be hashed
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:20]


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key) or key.startswith("."):
        raise ValueError(f"cache key: must come from cache_key(), but got {shown(key)}")
    return key


def _yield_to_foreground() -> None:
    lower_priority(_BACKGROUND_NICENESS)


def _store(root: Path, key: str, writer: Callable[[Path], None], temporary: Path) -> None:
    """Write an entry in `temporary`, and rename it once it is whole."""
    entry, folder = root / key, temporary / key
    if _is_whole(entry):
        return
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    try:
        temporary.mkdir()
        with _claimed(temporary):
            folder.mkdir()
            writer(folder)
            sync_directory(folder)
            if entry.exists() and not _is_whole(entry):
                _remove(root, entry)
            try:
                folder.rename(entry)
            except OSError:
                if not _is_whole(entry):  # else another process stored the same meanwhile
                    raise
            sync_directory(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    source_prefix = key.rpartition("-")[0] + "-"
    for other in list(root.iterdir()):
        if other.name.startswith(source_prefix) and other.name != key:
            _remove(root, other)


def _is_whole(entry: Path) -> bool:
    try:
        return (entry / CONFIG).is_file() and (entry / WEIGHTS).is_file()
    except OSError:
        return False


def _remove(root: Path, entry: Path) -> None:
    # Renamed first, so that a lookup finds all of it or nothing.
    with contextlib.suppress(OSError):
        doomed = root / f".{entry.name}.{secrets.token_hex(8)}.tmp"
        entry.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Lock a temporary folder if the file system can. The lock ends with its process."""
    with opened(folder) as descriptor:
        with contextlib.suppress(OSError):  # a file system without locks
            lock(descriptor)
        yield


def _sweep(root: Path) -> None:
    """Remove folders that killed processes have left."""
    with contextlib.suppress(OSError):
        for entry in list(root.iterdir()):
            if entry.name.startswith(".") and entry.name.endswith(".tmp") and _is_left(entry):
                shutil.rmtree(entry, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether no process writes here any more. A folder is locked an instant after it is made."""
    with contextlib.suppress(OSError):
        age = time.time() - folder.stat().st_mtime
        if age < _CLAIMED_S:
            return False
        with opened(folder) as descriptor:
            try:
                lock(descriptor, wait=False)
                return True
            except BlockingIOError:
                return False
            except OSError:
                return age > _STALE_S
    return False


@atexit.register
def finish(tell: Callable[[str], None] = lambda text: None) -> None:
    """Wait for writes under way, at most EXIT_WAIT_S seconds, before the process ends.

    tell: called with the reason if the wait is long. Ctrl-C, or a signal's SystemExit, gives the
    writes up and removes half-written files.
    """
    stores = [store for store in _pending if not store.done and not store.given_up]
    deadline = time.monotonic() + EXIT_WAIT_S
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        for store in stores:
            store.join(_SILENT_S)
        if not all(store.done for store in stores):
            tell("writing a packed copy of the model to the cache; Ctrl-C gives it up")
        for store in stores:
            store.join(max(0.0, deadline - time.monotonic()))
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # a second Ctrl-C
        for store in stores:
            store.give_up()
