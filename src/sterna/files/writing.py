"""Atomic writes: a file or folder takes its place once it is complete and on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sterna.errors import RequestError, reason
from sterna.files.reading import Span, open_regular, read_span, require_size
from sterna.files.system import lock, opened, rename_folder

_COPY_BYTES = 1 << 20
_HEX = re.compile("[0-9a-f]{16}")


@contextlib.contextmanager
def replacing(path: Path, nbytes: int, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a binary file that takes the place of `path` once it is whole and on the disk.

    It is written next to `path` under another name, and may be read; a symbolic link stays, and
    the file that it names is replaced. `nbytes` is what will be written, for the message when the
    disk is full; `mode`: its rights, less the umask. Raises RequestError.
    """
    with (
        replacing_path(path, nbytes, mode) as temporary,
        os.fdopen(os.open(temporary, os.O_RDWR), "w+b") as file,
    ):
        yield file


@contextlib.contextmanager
def replacing_path(path: Path, nbytes: int, mode: int = 0o666) -> Iterator[Path]:
    """Provide an empty file for a writer that opens it by its name; otherwise as `replacing`."""
    path = _followed(path)
    temporary = _temporary(path)
    try:
        require_space(path, nbytes)
        # Less the umask, as any other file; mkstemp's 0o600 would stay after the rename
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        with open(os.open(temporary, flags, mode), "rb") as file, _claimed(path, file.fileno()):
            yield temporary
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        _remove_quietly(temporary)
        raise unwritable(path, error, nbytes) from error
    except BaseException:
        _remove_quietly(temporary)
        raise


@contextlib.contextmanager
def writing(path: Path, nbytes: int) -> Iterator[BinaryIO]:
    """Open a file that a user names: as `replacing`, but a device or a pipe is written as it is."""
    if not path.exists() or path.is_file():
        with replacing(path, nbytes) as file:
            yield file
        return
    try:
        with open(path, "wb") as file:
            yield file
    except BrokenPipeError:
        raise  # the reader has left, which is its right
    except OSError as error:
        raise unwritable(path, error) from error


@contextlib.contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """Open a new binary file; its bytes are on the disk when the block has ended."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(path, flags, 0o666), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing_directory(path: Path, nbytes: int, force: bool = False) -> Iterator[Path]:
    """Make a fresh directory next to `path` that takes its name if the block ends without error.

    `path` must not exist, or be an empty directory; with `force` it may be one with files, which
    are removed after the rename. A symbolic link to such a directory stays. Raises RequestError.
    """
    path = _followed(path)
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
        with opened(temporary) as descriptor, _claimed(path, descriptor):
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
        rename_folder(temporary, path)  # an empty folder is replaced, one with files an error
        return
    old = _temporary(path)  # two renames: for a moment no folder has the name, never half of one
    path.rename(old)
    try:
        temporary.rename(path)
    except OSError:
        old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def require_name(path: Path) -> None:
    """Raise RequestError for a path without a name of its own (`.`, `..`, `/`), which none gets."""
    if path.name in ("", ".."):
        raise RequestError(f"{path}: must be the path of something new; add a name to it")


def _followed(path: Path) -> Path:
    """Follow a symbolic link: a rename would take the place of the link, not of what it names."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _temporary(path: Path) -> Path:
    require_name(path)
    return path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(8)}.tmp")


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:64]}."


@contextlib.contextmanager
def _claimed(path: Path, descriptor: int | None) -> Iterator[None]:
    """Lock a temporary while it is written and remove those of `path` whose writers were killed.

    The system gives up a lock with its process, so one that can be had is free.
    """
    with contextlib.suppress(OSError):  # a file system without locks
        lock(descriptor)
        _sweep(path)
    yield


def _sweep(path: Path) -> None:
    prefix = _temporary_prefix(path)
    for entry in list(path.parent.iterdir()):
        middle = entry.name[len(prefix) : -len(".tmp")]
        if not (entry.name == f"{prefix}{middle}.tmp" and _HEX.fullmatch(middle)):
            continue
        with contextlib.suppress(OSError):
            with opened(entry) as descriptor:
                lock(descriptor, wait=False)
            # Not while it is open, which Windows refuses; nobody takes up another's temporary.
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()


def require_space(path: Path, nbytes: int) -> None:
    """Raise RequestError if the file system of `path` has fewer than `nbytes` bytes free."""
    with contextlib.suppress(OSError):  # what cannot be asked is found out by writing
        total, _, free = shutil.disk_usage(path.parent)
        # A place for no files, or not for these, may have 0 bytes free; that is not what is wrong.
        if free < nbytes and total and os.access(path.parent, os.W_OK):
            raise RequestError(
                f"{path}: must have {nbytes} bytes of disk space, but {free} are free; "
                "free disk space or choose another place"
            )


def copy_file(source: Path, target: Path, max_bytes: int) -> None:
    """Copy a regular file, whole or not at all, its data on the disk when this returns.

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
    """Make the RequestError for a path that cannot be written, naming the bytes it needs."""
    need = "" if nbytes is None else f" with {nbytes} bytes"
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free disk space or choose another place" if full else "choose another place"
    return RequestError(f"{path}: must be writable{need}, but got {reason(error)}; {remedy}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where the file system can."""
    with opened(path) as descriptor:
        try:
            if descriptor is not None:
                os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
                raise


def _remove_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
