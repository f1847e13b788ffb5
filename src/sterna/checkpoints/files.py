"""Files on disk, handled so that neither a hostile file nor a full disk can hurt the process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sterna.errors import ModelFormatError, RequestError, reason

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, which is not tested: temporaries of killed
    # writers stay there. mypy takes the name for a module, whatever is bound to it here.
    fcntl = None  # type: ignore[assignment]

CHUNK_BYTES = 4 << 20  # large enough that a read's fixed cost vanishes, small enough to balance
MAX_READ_THREADS = 4  # copying from the page cache is bound by memory bandwidth beyond that

_COPY_BYTES = 1 << 20
_HEX = re.compile("[0-9a-f]{16}")

_OPEN_FLAGS = (
    os.O_RDONLY
    # A FIFO in place of a file would otherwise block the open for ever.
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_seek_lock = threading.Lock()  # for platforms without preadv, where threads share one position


class FileState(NamedTuple):
    """What tells a file from a later one of the same name: its identity, size and time."""

    device: int
    inode: int
    nbytes: int
    mtime_ns: int


class Span(NamedTuple):
    """`nbytes` bytes at `offset` of a file that belong at `start` of a buffer."""

    offset: int
    start: int
    nbytes: int


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[tuple[int, FileState]]:
    """Opens a regular file for reading: (descriptor, state).

    Raises ModelFormatError if it is missing or is no regular file, RequestError if it may not be
    read.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFormatError(file=path, expected="a file", got="nothing at this path") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(file=path, expected="a regular file", got="another kind of file")
        yield (
            descriptor,
            FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        )
    finally:
        os.close(descriptor)


def unreadable(path: Path, error: Exception) -> RequestError:
    """The RequestError for a path that the operating system refuses to read."""
    return RequestError(
        f"{path}: must be readable, but got {reason(error)}; check the path and its rights"
    )


def require_regular(path: Path) -> None:
    """RequestError unless the caller's path is a regular file: a pipe or a device may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(mode):
        tests = {"a folder": stat.S_ISDIR, "a pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
        kind = next((name for name, test in tests.items() if test(mode)), "a device")
        raise RequestError(f"{path}: must be a regular file, but got {kind}; give a file's path")


def require_size(path: Path, max_bytes: int) -> None:
    """ModelFormatError where a file has more than `max_bytes` bytes."""
    try:
        nbytes = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if nbytes > max_bytes:
        raise ModelFormatError(
            file=path, field="size", expected=f"at most {max_bytes} bytes", got=nbytes
        )


def read_file(path: Path, max_bytes: int) -> bytearray:
    """The whole of a regular file of at most `max_bytes` bytes."""
    with open_regular(path) as (descriptor, state):
        if state.nbytes > max_bytes:
            raise ModelFormatError(
                file=path, field="size", expected=f"at most {max_bytes} bytes", got=state.nbytes
            )
        data = bytearray(state.nbytes)
        read_span(path, descriptor, memoryview(data), Span(0, 0, state.nbytes))
    return data


def read_span(path: Path, descriptor: int, buffer: memoryview, span: Span) -> None:
    """Fills `buffer[span.start:][:span.nbytes]` from the file at `span.offset`; thread-safe."""
    done = 0
    while done < span.nbytes:
        window = buffer[span.start + done : span.start + span.nbytes]
        try:
            count = _read_at(descriptor, window, span.offset + done)
        except OSError as error:
            raise unreadable(path, error) from error
        if count == 0:  # the file was cut while in use: an error, where mmap would be SIGBUS
            raise ModelFormatError(
                file=path,
                offset=span.offset + done,
                expected=f"{span.nbytes} bytes from byte {span.offset}",
                got=f"the end of the file after {done}",
                remedy="was the file truncated while in use? copy or download it again",
            )
        done += count


if hasattr(os, "preadv"):

    def _read_at(descriptor: int, window: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [window], offset)

else:  # pragma: no cover - Windows

    def _read_at(descriptor: int, window: memoryview, offset: int) -> int:
        with _seek_lock, os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
            file.seek(offset)
            return file.readinto(window) or 0


def read_spans(
    path: Path,
    descriptor: int,
    buffer: memoryview,
    spans: Sequence[Span],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Reads many spans into one buffer, in large chunks and on several threads if it is much.

    Fresh memory of the buffer is touched first by these threads. progress: is called with the bytes
    read since its last call, by any of them.
    """
    chunks = [
        Span(span.offset + at, span.start + at, min(CHUNK_BYTES, span.nbytes - at))
        for span in spans
        for at in range(0, span.nbytes, CHUNK_BYTES)
    ]
    n_threads = min(MAX_READ_THREADS, _n_cpus(), sum(c.nbytes for c in chunks) // CHUNK_BYTES)

    def read(chunk: Span) -> None:
        read_span(path, descriptor, buffer, chunk)
        if progress is not None:
            progress(chunk.nbytes)

    if n_threads <= 1:
        for chunk in chunks:
            read(chunk)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(read, chunks):
            pass


def _n_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def replacing(path: Path, nbytes: int, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A binary file that takes the place of `path` only once it is whole and on the disk.

    It is written beside `path` under another name, and may be read. `nbytes` is what will be
    written, for the message when the disk is full; `mode`: its rights, less the umask. Raises
    RequestError.
    """
    with replacing_path(path, nbytes, mode) as temporary:
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(temporary, flags), "w+b") as file:
            yield file


@contextlib.contextmanager
def replacing_path(path: Path, nbytes: int, mode: int = 0o666) -> Iterator[Path]:
    """The same for a writer that opens the file by its name: an empty file to be filled."""
    temporary = _temporary(path)
    try:
        require_space(path, nbytes)
        # Less the umask, as any other file; mkstemp's 0o600 would stay after the rename
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with _claimed(path, os.open(temporary, flags, mode)) as descriptor:
            yield temporary
            os.fsync(descriptor)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        _remove_quietly(temporary)
        raise unwritable(path, error, nbytes) from error
    except BaseException:
        _remove_quietly(temporary)
        raise


@contextlib.contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """A new binary file whose bytes are on the disk when the block has ended."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing_directory(path: Path, nbytes: int, force: bool = False) -> Iterator[Path]:
    """A fresh directory beside `path` that takes its name once the block ends without an error.

    `path` must not exist, or be an empty directory; with `force` it may be one with files, which
    are removed after the rename. Raises RequestError.
    """
    temporary = _temporary(path)
    try:
        full = path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None)
        if full and not (force and path.is_dir()):
            raise RequestError(
                f"{path}: must not exist or be an empty folder, but got one with files; "
                "remove it or choose another place"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        require_space(path, nbytes)
        temporary.mkdir()
        with _claimed(path, None if os.name == "nt" else os.open(temporary, os.O_RDONLY)):
            yield temporary
        sync_directory(temporary)
        _take_name(temporary, path, full)
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error, nbytes) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # nothing is left of it after the rename


def _take_name(temporary: Path, path: Path, full: bool) -> None:
    if not full:
        if path.exists():
            path.rmdir()  # Windows does not rename onto an empty directory
        temporary.rename(path)
        return
    old = _temporary(path)  # two renames: for a moment no folder has the name, never half of one
    path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(8)}.tmp")


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:64]}."


@contextlib.contextmanager
def _claimed(path: Path, descriptor: int | None) -> Iterator[int]:
    """Locks a temporary while it is written, and removes those of `path` whose writers were killed.

    The system gives up a lock with its process, so one that can be had belongs to nobody.
    """
    try:
        if fcntl is not None and descriptor is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                _sweep(path)
        yield -1 if descriptor is None else descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sweep(path: Path) -> None:
    prefix = _temporary_prefix(path)
    for entry in list(path.parent.iterdir()):
        middle = entry.name[len(prefix) : -len(".tmp")]
        if not (entry.name == f"{prefix}{middle}.tmp" and _HEX.fullmatch(middle)):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(entry, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()
            finally:
                os.close(descriptor)


def require_space(path: Path, nbytes: int) -> None:
    """RequestError if the file system of `path` has fewer than `nbytes` bytes free."""
    with contextlib.suppress(OSError):  # what cannot be asked is found out by writing
        total, _, free = shutil.disk_usage(path.parent)
        # Of a place for no files, or not for these, zero bytes free is not what is wrong
        if free < nbytes and total and os.access(path.parent, os.W_OK):
            raise RequestError(
                f"{path}: must have {nbytes} bytes of disk space, but {free} are free; "
                "free disk space or choose another place"
            )


def copy_file(source: Path, target: Path, max_bytes: int) -> None:
    """Copies a regular file, whole or not at all, its data on the disk when this returns.

    ModelFormatError where it has more than `max_bytes` bytes.
    """
    require_size(source, max_bytes)
    with open_regular(source) as (descriptor, state), replacing(target, state.nbytes) as out:
        buffer = memoryview(bytearray(min(_COPY_BYTES, state.nbytes)))
        for at in range(0, state.nbytes, _COPY_BYTES):
            count = min(_COPY_BYTES, state.nbytes - at)
            read_span(source, descriptor, buffer, Span(at, 0, count))
            out.write(buffer[:count])


def unwritable(path: Path, error: OSError, nbytes: int | None = None) -> RequestError:
    """The RequestError for a path that cannot be written, naming the bytes it needs."""
    need = "" if nbytes is None else f" with {nbytes} bytes"
    full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
    remedy = "free disk space or choose another place" if full else "choose another place"
    return RequestError(f"{path}: must be writable{need}, but got {reason(error)}; {remedy}")


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable, where the platform can."""
    if os.name == "nt":  # pragma: no cover - directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(descriptor)


def _remove_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
