"""Results of a batch as they come, on disk: a restart computes none of them twice."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from sterna.server.json_body import encode

__all__ = ["Journal", "error_line", "output_line"]


def output_line(custom_id: str, status: int, id: str, body: bytes) -> bytes:
    """Make a line of the output file or of the error file: the response to a request."""
    response = {"status_code": status, "request_id": id, "body": msgspec.Raw(body)}
    return encode({"id": id, "custom_id": custom_id, "response": response, "error": None})


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """Make a line of the error file for a request that was not run."""
    error = {"code": code, "message": message}
    id = f"batch_req_{secrets.token_hex(12)}"
    return encode({"id": id, "custom_id": custom_id, "response": None, "error": error})


class Journal:
    """The results of one batch, each with the index of its request.

    A line of the file is `INDEX OK<tab>RESULT`, where OK is 1 for an answer and 0 for an error. A
    line that a killed server left incomplete is cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[int, tuple[int, int, bool]] = {}  # by index: offset, length, ok
        self._file = open(path, "a+b", opener=_open_private)  # noqa: SIM115
        self._file.seek(0)
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            self._add(end, line)
            end += len(line)
        self._file.truncate(end)
        self.nbytes: int = end

    def _add(self, start: int, line: bytes) -> None:
        head, _, data = line.partition(b"\t")
        index, ok = head.split(b" ")
        self._results[int(index)] = (start + len(head) + 1, len(data), ok == b"1")

    def __contains__(self, index: int) -> bool:
        """Whether a request has its result."""
        return index in self._results

    def count(self, ok: bool) -> int:
        """Return the number of answers (ok) or of errors."""
        return sum(1 for result in self._results.values() if result[2] is ok)

    def append(self, index: int, ok: bool, data: bytes) -> None:
        """Write the result of a request. OSError."""
        line = b"%d %d\t%s\n" % (index, ok, data)
        self._file.write(line)
        self._file.flush()
        self._add(self.nbytes, line)
        self.nbytes += len(line)

    def collect(self, ok: bool) -> tuple[int, Callable[[BinaryIO], None]]:
        """Return the bytes of answers (ok) or errors, and a function that writes them in order."""
        results = [self._results[i] for i in sorted(self._results) if self._results[i][2] is ok]

        def write(file: BinaryIO) -> None:
            for start, length, _ in results:
                self._file.seek(start)
                file.write(self._file.read(length))

        return sum(length for _, length, _ in results), write

    def close(self) -> None:
        """Close the file, which stays for the next start."""
        self._file.close()

    def delete(self) -> None:
        """Close and delete the file."""
        self.close()
        self._path.unlink(missing_ok=True)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
