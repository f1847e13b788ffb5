"""The input file of a batch: one request per line (JSONL), all checked before any runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sterna.errors import shown
from sterna.server.errors import ApiError, field_error
from sterna.server.json_body import decode

__all__ = ["BatchInput", "InvalidInputError", "read_input"]

MAX_LINES = 50_000  #: per file, as OpenAI defines it
MAX_ERRORS = 100  #: reported of one file


class _Line(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Body(msgspec.Struct):
    """The fields of a request's body that the batch itself needs."""

    model: str | None = None
    stream: Any = None
    background: Any = None


class BatchInput:
    """The requests of a checked file. Reads one line at a time, so any file fits in memory."""

    def __init__(self, path: Path, spans: list[tuple[int, int]], model: str | None) -> None:
        self._path, self._spans = path, spans
        self.model = model

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._spans)

    def read(self, index: int) -> tuple[str, bytes]:
        """Return the custom_id and the body of a request."""
        start, length = self._spans[index]
        with self._path.open("rb") as file:
            file.seek(start)
            line = decode(file.read(length), _Line)
        return line.custom_id, bytes(line.body)


class InvalidInputError(Exception):
    """The input file has errors; `errors` lists them in OpenAI's form."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("the input file has errors")
        self.errors = errors


def read_input(path: Path, endpoint: str) -> BatchInput:
    """Check all lines of a file. InvalidInputError."""
    spans: list[tuple[int, int]] = []
    errors: list[dict[str, Any]] = []
    custom_ids: set[str] = set()
    model = None
    for number, start, data in _lines(path):
        try:
            body = _check(data, endpoint, custom_ids)
            model = model or body.model
            if len(spans) == MAX_LINES:
                raise ApiError(400, f"file: must have at most {MAX_LINES} lines", code="too_many")
        except ApiError as error:
            code = error.code or "invalid_request"
            details = {"message": error.message, "param": error.param}
            errors.append({"code": code, "line": number, **details})
            if len(errors) == MAX_ERRORS or code == "too_many":
                break
        spans.append((start, len(data)))
    if not spans and not errors:
        message = "file: must have one request per line, but has none"
        errors.append({"code": "empty_file", "line": None, "message": message, "param": None})
    if errors:
        raise InvalidInputError(errors)
    return BatchInput(path, spans, model)


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the offset and the bytes of each line that is not blank."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, start, line
            start += len(line)


def _check(data: bytes, endpoint: str, custom_ids: set[str]) -> _Body:
    """Check a line and note its custom_id. ApiError 400."""
    line = decode(data, _Line)
    if line.custom_id in custom_ids:
        raise field_error("custom_id", "must be unique", code="duplicate_custom_id")
    custom_ids.add(line.custom_id)
    for name, value, wanted in (("method", line.method, "POST"), ("url", line.url, endpoint)):
        if value != wanted:
            raise field_error(name, f"must be {wanted}, but is {shown(value)}")
    body = decode(bytes(line.body), _Body)
    for name in ("stream", "background"):
        if getattr(body, name):
            raise field_error(f"body.{name}", "is not supported in batches")
    return body
