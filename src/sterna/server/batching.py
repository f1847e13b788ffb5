"""A batch: the requests of a file, what has come of them, and how it stands."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from sterna.errors import shown
from sterna.server.errors import ApiError
from sterna.server.json_body import decode, encode

__all__ = [
    "ENDPOINTS",
    "Batch",
    "Journal",
    "Lines",
    "Refused",
    "read_lines",
    "result",
    "unanswered",
]

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_LINES = 50_000  #: of a file, as in OpenAI's definition
MAX_ERRORS = 100  #: of a file that is refused, are told
ENDED = ("failed", "completed", "expired", "cancelled")


class Batch(msgspec.Struct):
    """How a batch stands; fields are OpenAI's, but for the key, whose it is."""

    id: str
    key: str
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    created_at: int
    status: str = "validating"
    metadata: dict[str, str] | None = None
    errors: dict[str, Any] | None = None
    model: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_expires_s: int | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def runs(self) -> bool:
        """Whether it is being checked or answered."""
        return self.status in ("validating", "in_progress")

    @property
    def ended(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.status in ENDED

    def become(self, status: str) -> None:
        """Notes a status, and since when."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))

    def body(self) -> dict[str, Any]:
        """In OpenAI's words."""
        fields = msgspec.structs.asdict(self)
        counts = {name: fields.pop(name) for name in ("total", "completed", "failed")}
        for name in ("key", "output_expires_s"):
            del fields[name]
        return {"object": "batch", **fields, "request_counts": counts}


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Asked(msgspec.Struct):
    """What of a body a batch looks at itself."""

    model: str | None = None
    stream: Any = None
    background: Any = None


class Lines:
    """The requests of a checked file; read one at a time, whatever their number."""

    def __init__(self, path: Path, spans: list[tuple[int, int]], model: str | None) -> None:
        self._path, self._spans, self.model = path, spans, model

    def __len__(self) -> int:
        return len(self._spans)

    def read(self, index: int) -> tuple[str, bytes]:
        """A request's custom_id and body."""
        at, length = self._spans[index]
        with self._path.open("rb") as file:
            file.seek(at)
            line = decode(file.read(length), _Line)
        return line.custom_id, bytes(line.body)


class Refused(NamedTuple):
    """A file that is not run: what is wrong with its lines, in OpenAI's words."""

    errors: list[dict[str, Any]]


def read_lines(path: Path, endpoint: str) -> Lines | Refused:
    """Checks all lines of a file."""
    spans: list[tuple[int, int]] = []
    wrong: list[dict[str, Any]] = []
    known: set[str] = set()
    model = None
    for number, at, data in _split(path):
        try:
            asked = _check(data, endpoint, known)
            model = model or asked.model
            if len(spans) == MAX_LINES:
                raise ApiError(400, f"file: must have at most {MAX_LINES} lines", code="too_many")
        except ApiError as error:
            code = error.code or "invalid_request"
            said = {"message": error.message, "param": error.param}
            wrong.append({"code": code, "line": number, **said})
            if len(wrong) == MAX_ERRORS or code == "too_many":
                break
        spans.append((at, len(data)))
    if not spans and not wrong:
        message = "file: must have a request a line, but has none"
        wrong.append({"code": "empty_file", "line": None, "message": message, "param": None})
    return Refused(wrong) if wrong else Lines(path, spans, model)


def _split(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, place and bytes of each line that is not empty."""
    at = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, at, line
            at += len(line)


def _check(data: bytes, endpoint: str, known: set[str]) -> _Asked:
    line = decode(data, _Line)
    if line.custom_id in known:
        raise ApiError(
            400, "custom_id: must be of one line alone", param="custom_id",
            code="duplicate_custom_id",
        )  # fmt: skip
    known.add(line.custom_id)
    for name, value, good in (("method", line.method, "POST"), ("url", line.url, endpoint)):
        if value != good:
            raise ApiError(400, f"{name}: must be {good}, but is {shown(value)}", param=name)
    asked = decode(bytes(line.body), _Asked)
    for name in ("stream", "background"):
        if getattr(asked, name):
            raise ApiError(400, f"body.{name}: must not be asked of a batch", param=f"body.{name}")
    return asked


def result(custom_id: str, status: int, id: str, body: bytes) -> bytes:
    """A line of the output: what a request was answered with."""
    response = {"status_code": status, "request_id": id, "body": msgspec.Raw(body)}
    return encode({"id": id, "custom_id": custom_id, "response": response, "error": None})


def unanswered(custom_id: str, code: str, message: str) -> bytes:
    """A line of the errors: a request that there was no time for."""
    error = {"code": code, "message": message}
    id = f"batch_req_{secrets.token_hex(12)}"
    return encode({"id": id, "custom_id": custom_id, "response": None, "error": error})


class Journal:
    """Results as they come, each behind the number of its line: a batch goes on where it was.

    A line that a killed server has left half written is cut off.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, tuple[int, int, bool]] = {}
        self._file = open(path, "a+b", opener=_opened)  # noqa: SIM115
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            self._note(whole, line)
            whole += len(line)
        self._file.truncate(whole)
        self.nbytes = whole

    def _note(self, at: int, line: bytes) -> None:
        head, _, data = line.partition(b"\t")
        index, good = head.split(b" ")
        self._places[int(index)] = (at + len(head) + 1, len(data), good == b"1")

    def __contains__(self, index: int) -> bool:
        """Whether a line has its result."""
        return index in self._places

    def count(self, good: bool) -> int:
        """Results that are answers, or errors."""
        return sum(1 for place in self._places.values() if place[2] is good)

    def append(self, index: int, good: bool, data: bytes) -> None:
        """The result of a line. OSError."""
        line = b"%d %d\t%s\n" % (index, good, data)
        self._file.write(line)
        self._file.flush()
        self._note(self.nbytes, line)
        self.nbytes += len(line)

    def part(self, good: bool) -> tuple[int, Callable[[BinaryIO], None]]:
        """Bytes of the results that are answers, or errors, and what writes them in order."""
        places = [self._places[i] for i in sorted(self._places) if self._places[i][2] is good]

        def write(file: BinaryIO) -> None:
            for at, length, _ in places:
                self._file.seek(at)
                file.write(self._file.read(length))

        return sum(length for _, length, _ in places), write

    def close(self) -> None:
        """Keeps it for the next start."""
        self._file.close()

    def remove(self) -> None:
        """Its results are elsewhere."""
        self.close()
        self._path.unlink(missing_ok=True)


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
