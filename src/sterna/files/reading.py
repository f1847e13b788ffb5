"""Regular files read in large pieces, so that a hostile file cannot hurt the process."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sterna.errors import ModelFormatError, RequestError, reason
from sterna.files.system import OPEN_FLAGS, allowed_cpus, read_at

CHUNK_BYTES = 4 << 20  # large enough that a read's fixed cost vanishes, small enough to balance
MAX_READ_THREADS = 4  # copying from the page cache is bound by memory bandwidth beyond that

# A clone without git-lfs has this instead of a large file: github.com/git-lfs, docs/spec.md.
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER_BYTES = 1024


class FileState(NamedTuple):
    """A key that tells a file from a later one of the same name: its identity, size and time."""

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
    """Open a regular file for reading: (descriptor, state).

    Raises ModelFormatError if it is missing, is no regular file or only a pointer of Git LFS to
    one, RequestError if it may not be read.
    """
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise ModelFormatError(path, expected="a file", got="nothing at this path") from None
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(path, expected="a regular file", got="another kind of file")
        if len(_LFS_POINTER) <= status.st_size <= _MAX_POINTER_BYTES:
            start = bytearray(len(_LFS_POINTER))
            read_span(path, descriptor, memoryview(start), Span(0, 0, len(start)))
            if start == _LFS_POINTER:
                got = "a pointer of Git LFS to it"
                remedy = "run git lfs pull in its folder, or download it with sterna pull"
                raise ModelFormatError(path, expected="the file itself", got=got, remedy=remedy)
        yield (
            descriptor,
            FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns),
        )
    finally:
        os.close(descriptor)


def unreadable(path: Path, error: Exception) -> RequestError:
    """Make the RequestError for a path that the operating system refuses to read."""
    return RequestError(
        f"{path}: must be readable, but got {reason(error)}; check the path and its rights"
    )


def require_regular(path: Path) -> None:
    """Raise RequestError unless a path is a regular file: a pipe or a device may never end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(mode):
        tests = {"a folder": stat.S_ISDIR, "a pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
        kind = next((name for name, test in tests.items() if test(mode)), "a device")
        raise RequestError(f"{path}: must be a regular file, but got {kind}; give a file's path")


def require_size(path: Path, max_bytes: int) -> None:
    """Raise ModelFormatError if a file has more than `max_bytes` bytes."""
    try:
        nbytes = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None
    if nbytes > max_bytes:
        raise ModelFormatError(path, "size", f"at most {max_bytes} bytes", nbytes)


def read_file(path: Path, max_bytes: int) -> bytearray:
    """Read the whole of a regular file of at most `max_bytes` bytes."""
    with open_regular(path) as (descriptor, state):
        if state.nbytes > max_bytes:
            raise ModelFormatError(path, "size", f"at most {max_bytes} bytes", state.nbytes)
        data = bytearray(state.nbytes)
        read_span(path, descriptor, memoryview(data), Span(0, 0, state.nbytes))
    return data


def read_span(path: Path, descriptor: int, buffer: memoryview, span: Span) -> None:
    """Fill `buffer[span.start:][:span.nbytes]` from the file at `span.offset`; thread-safe."""
    done = 0
    while done < span.nbytes:
        window = buffer[span.start + done : span.start + span.nbytes]
        try:
            count = read_at(descriptor, window, span.offset + done)
        except OSError as error:
            raise unreadable(path, error) from error
        if count == 0:  # the file was cut while in use: an error, where mmap would be SIGBUS
            raise ModelFormatError(
                path,
                expected=f"{span.nbytes} bytes from byte {span.offset}",
                got=f"the end of the file after {done}",
                offset=span.offset + done,
                remedy="was the file truncated while in use? copy or download it again",
            )
        done += count


def read_spans(
    path: Path,
    descriptor: int,
    buffer: memoryview,
    spans: Sequence[Span],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Read many spans into one buffer, in large chunks and on several threads if it is much.

    Fresh memory of the buffer is touched first by these threads. progress: is called with the bytes
    read since its last call, by any of them.
    """
    chunks = [
        Span(span.offset + at, span.start + at, min(CHUNK_BYTES, span.nbytes - at))
        for span in spans
        for at in range(0, span.nbytes, CHUNK_BYTES)
    ]
    n_cpus, nbytes = (
        len(allowed_cpus()) or os.cpu_count() or 1,
        sum(chunk.nbytes for chunk in chunks),
    )
    n_threads = min(MAX_READ_THREADS, n_cpus, nbytes // CHUNK_BYTES)

    def read(chunk: Span) -> None:
        read_span(path, descriptor, buffer, chunk)
        if progress is not None:
            progress(chunk.nbytes)

    left, errors = iter(chunks), list[BaseException]()

    def work() -> None:
        try:
            for chunk in left:  # each goes to one thread
                if errors:
                    return
                read(chunk)
        except BaseException as error:
            errors.append(error)

    # Not a pool of concurrent.futures, which takes longer to import than a small model to read.
    others = [threading.Thread(target=work) for _ in range(n_threads - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
