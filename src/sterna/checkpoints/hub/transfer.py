"""One file from the Hub to the disk: resumed where it stopped, bounded, and checked by its hash.

Over plain HTTP with byte ranges. The package's own download starts afresh in every process, and
checks a size only.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from sterna.checkpoints.hub.bounded_http import SLOW_BYTES, SLOW_S, Slow, answer, pieces
from sterna.checkpoints.hub.choose import RemoteFile
from sterna.checkpoints.hub.failures import network_errors, reason_of
from sterna.errors import HubError, ModelFormatError

HASH_BYTES = 8 << 20
RETRIES = 4  # in a row without a new byte
RETRY_WAIT_S = 0.5  # before the first; doubled each time: 7.5 s in all

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")

Progress = Callable[[int], None]  # bytes that came; negative where they are thrown away


class _Cut(Exception):
    """The server closed a transfer early, or answered with another part than asked for."""


def fetch(
    url: str, headers: dict[str, str], file: RemoteFile, partial: Path, progress: Progress
) -> None:
    """Fetch a file into `partial`, which may hold its beginning, and check it.

    `progress` also counts bytes that were there already. If the contents do not match the Hub's
    metadata, the file is removed and ModelFormatError raised. Errors of the network and of the disk
    pass through, and the file stays for the next attempt.
    """
    present_bytes = partial.stat().st_size if partial.exists() else 0
    resumed = 0 < present_bytes <= file.size
    if present_bytes > file.size:
        partial.unlink()
    elif resumed:
        progress(present_bytes)
    _complete(url, headers, file, partial, progress)
    try:
        check(partial, file)
    except ModelFormatError:
        partial.unlink()
        if not resumed:
            raise
        # A power cut may have damaged the beginning, from another process: fetch all once more
        progress(-file.size)
        fetch(url, headers, file, partial, progress)


def check(path: Path, file: RemoteFile) -> None:
    """Raise ModelFormatError unless a file has the bytes of the Hub's metadata."""
    got = digest_of(path, file)
    if got != file.digest:
        kind = "SHA-256" if len(file.digest) == 64 else "git SHA-1"
        raise ModelFormatError(
            file.path,
            kind,
            f"{file.digest} as the Hub's metadata say",
            got,
            remedy="the file was damaged on its way and is removed: pull again; if that does not "
            "help, something between here and the Hub changes files",
        )


def digest_of(path: Path, file: RemoteFile) -> str:
    """Compute the SHA-256 of a file, or its git SHA-1 if the metadata have that."""
    if len(file.digest) == 64:
        hasher = hashlib.sha256()
    else:
        hasher = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as source:
        while chunk := source.read(HASH_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _complete(
    url: str, headers: dict[str, str], file: RemoteFile, partial: Path, progress: Progress
) -> None:
    """Append to `partial` until it has its size; reconnect after a cut."""
    failures = 0
    passing: tuple[type[Exception], ...] = (*network_errors(), _Cut, Slow)
    with partial.open("ab") as out:
        while (before := out.tell()) < file.size:
            progress(0)  # ends here, and not after more attempts, where another thread has failed
            try:
                _append(url, headers, file, out, progress)
            except passing as error:
                out.flush()
                came = out.tell() > before and not isinstance(error, Slow)
                failures = 0 if came else failures + 1
                if failures > RETRIES or not _may_pass(error):
                    raise _as_error(error, file) from None
                time.sleep(RETRY_WAIT_S * 2 ** max(0, failures - 1))
        out.flush()
        os.fsync(out.fileno())


def _append(
    url: str, headers: dict[str, str], file: RemoteFile, out: BinaryIO, progress: Progress
) -> None:
    """Request the missing part; the answer must be that part or the whole file."""
    begin = out.tell()
    wanted = {**headers, "Range": f"bytes={begin}-"} if begin else headers
    with answer(url, wanted) as response:
        if begin and not _is_part(response, begin, file.size):
            progress(-begin)
            out.truncate(0)
            out.seek(0)
            if response.status_code != 200:
                raise _Cut
        for chunk in pieces(response):
            if out.tell() + len(chunk) > file.size:
                raise ModelFormatError(file.path, "size", f"{file.size} bytes", "more")
            out.write(chunk)
            progress(len(chunk))
    if out.tell() < file.size:
        raise _Cut


def _is_part(response: Any, begin: int, size: int) -> bool:
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    part = match is not None and (int(match[1]), int(match[2])) == (begin, size)
    return response.status_code == 206 and part


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may help: a cut, or a server that is busy."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status is None or status in (408, 429, 500, 502, 503, 504)


def _as_error(error: Exception, file: RemoteFile) -> Exception:
    if getattr(error, "response", None) is not None:
        return error
    ends = {_Cut: "ended early", Slow: f"brought under {SLOW_BYTES} bytes in {SLOW_S:.0f} s"}
    what = ends.get(type(error), f"failed ({reason_of(error)})")
    return HubError(
        f"{file.path}: the connection {what} {RETRIES + 1} times in a row; pull again, the "
        "download goes on where it stopped",
        "network",
    )
