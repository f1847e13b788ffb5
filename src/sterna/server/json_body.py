"""JSON bodies: bounded bytes in, checked structs out, and JSON of responses."""

from __future__ import annotations

import codecs
import re
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from sterna.errors import shown
from sterna.server.body_parts import body_parts
from sterna.server.errors import ApiError, field_error
from sterna.server.unsupported_fields import drop_ignored

__all__ = ["MAX_DEPTH", "decode", "encode", "read", "read_bytes"]

MAX_DEPTH = 64  #: levels of nesting, as for every JSON file that Sterna reads
MAX_NESTED = 16  #: unknown fields within the fields of a request
MAX_NAMES = 16  #: unknown fields that a warning names
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$")

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """Encode a value as JSON, with the shortest digits that give each float back."""
    return msgspec.json.encode(value)


async def read(request: Request, kind: type[T]) -> T:
    """Read the request's body as a struct. ApiError 400, 408 or 413.

    Unknown fields are left out, with a warning to the client; with `--strict-requests` they are an
    error.
    """
    data, service = await read_bytes(request), request.app.state.service
    if service.settings.strict_requests:
        return decode(data, kind)
    unknown: list[str] = []
    body = decode(data, kind, unknown)
    if unknown:
        request.state.warnings.append(_warning(unknown))
        service.metrics.count_unknown_fields(request.scope["route"].path, len(unknown))
    return body


def _warning(unknown: list[str]) -> str:
    """Return a warning that names the ignored fields."""
    names = ", ".join(shown(name) for name in unknown[:MAX_NAMES])
    more = f" and {len(unknown) - MAX_NAMES} more" if len(unknown) > MAX_NAMES else ""
    return f"ignored, because this endpoint does not know these fields: {names}{more}"


async def read_bytes(request: Request) -> bytes:
    """Read the request's body within the limits of `body_parts`. ApiError 400, 408, 413."""
    most = request.app.state.service.max_body
    too_large = ApiError(
        413,
        f"body: must have at most {most} bytes, but has more; see sterna serve --max-body, which "
        "is 32M by default where a model sees images, else 1M, or 16 for each token of the context",
    )
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise too_large
    return b"".join([part async for part in body_parts(request, most, too_large)])


def decode(body: bytes, kind: type[T], unknown: list[str] | None = None) -> T:
    """Decode JSON as a struct. ApiError 400 that names the field.

    A struct with a `protocol` allows fields that are not read, by the table of
    `unsupported_fields`. A field that neither the struct nor the table has is ignored, and its name
    is added to `unknown`; without such a list it is an error. A byte order mark is passed over.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    _check_depth(body)
    protocol = getattr(kind, "protocol", None)
    try:
        if protocol is None and unknown is None:
            return msgspec.json.decode(body, type=kind)
        body_fields = msgspec.json.decode(body)
        if isinstance(body_fields, dict):
            read = frozenset(_fields(kind))
            body_fields = drop_ignored(body_fields, protocol or "", read)
            if unknown is not None:
                unknown += [name for name in body_fields if name not in read]
                body_fields = {name: value for name, value in body_fields.items() if name in read}
        return _convert(body_fields, kind, unknown)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(
            400, f"body: must be JSON, but is not: {error}", code="invalid_json"
        ) from None


def _convert(value: Any, kind: type[T], unknown: list[str] | None) -> T:
    """Make a struct. With a list, unknown fields of nested structs are ignored and added to it."""
    for _ in range(MAX_NESTED):
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            place = _unknown_place(str(error))
            if unknown is None or place is None:
                raise
            *path, name = place
            inside = value
            for part in path:
                inside = inside[part]
            del inside[name]
            unknown.append(".".join(place))
    return msgspec.convert(value, kind)


def _unknown_place(message: str) -> list[str] | None:
    """Return the path of an unknown field from msgspec's message; None for any other message."""
    unknown, place = _UNKNOWN.match(message), _PATH.search(message)
    if not unknown or not place or "[" in place[1]:
        return None
    return [*place[1].split("."), unknown[1]]


def _fields(kind: Any) -> tuple[str, ...]:
    fields: tuple[str, ...] = kind.__struct_fields__
    return fields


def _check_depth(body: bytes) -> None:
    # Texts may have the brackets as well; without many, even of megabytes nothing is to be parsed.
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for structural in _STRUCTURE.finditer(body):
        first = body[structural.start()]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        elif first in b"]}":
            depth -= 1


def _too_deep() -> ApiError:
    return ApiError(400, f"body: must be at most {MAX_DEPTH} levels deep, but is deeper")


def _field_error(message: str) -> ApiError:
    """Make the error for a message of msgspec, with the field that the message names."""
    path = _PATH.search(message)
    where = re.sub(r"\[\.\.\.\]", "", path[1]) if path else ""
    reason = message[: path.start()] if path else message
    for pattern, code in ((_UNKNOWN, "unknown_parameter"), (_MISSING, "missing_parameter")):
        if named := pattern.match(reason):
            param = f"{where}.{named[1]}" if where else named[1]
            what = "is not supported here" if code == "unknown_parameter" else "must be given"
            return field_error(param[:200], f"{what}", code=code)
    reason = reason.replace("Expected", "must be").replace(", got", ", but got")
    return ApiError(
        400, f"{where or 'body'}: {reason}", param=where or None, code="invalid_parameter"
    )
