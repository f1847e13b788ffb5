"""Errors as clients get them: a status, and OpenAI's object of message, type, param and code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from sterna.errors import (
    ContextError,
    DiskError,
    ModelFormatError,
    RequestError,
    SternaError,
    shown,
)

__all__ = [
    "NO_THREADS",
    "ApiError",
    "field_error",
    "invalid",
    "of_fields",
    "rename_param",
    "renaming_params",
    "to_api_error",
]

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",  # llama.cpp's
    503: "server_error",
}
ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
TOO_LONG = "context_length_exceeded"
#: Anthropic's SDKs then send the whole conversation instead.
NO_THREADS = "thread_unsupported_request"
#: Names in requests of the library's arguments.
FIELDS = {
    **{"template_options": "chat_template_kwargs", "texts": "input"},
    **{"embed": "model", "generate": "model"},
}
#: The message of a RequestError begins with the name of the wrong argument.
_SUBJECT = re.compile(r"([A-Za-z_][\w.\[\]]*)(?:(?: of)? \d+)?:")


class ApiError(Exception):
    """An error response. retry_after: seconds after which trying again may help."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def rule(self) -> str:
        """The message without the offending value, which may be part of a prompt."""
        return self.message.partition(", but got ")[0]

    @property
    def type(self) -> str:
        """OpenAI's type of error."""
        return TYPES.get(self.status, "server_error")

    def body(self) -> dict[str, Any]:
        """Return the response in OpenAI's form."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """Return the response in Anthropic's form."""
        kind, message = ANTHROPIC_TYPES.get(self.status, self.type), self.message
        if self.code == TOO_LONG:  # clients look for these words and shorten the prompt
            message = f"prompt is too long: {message}"
        error: dict[str, Any] = {"type": kind, "message": message}
        if self.code == NO_THREADS:
            error["details"] = {"error_code": NO_THREADS, "unsupported": ["thread"]}
        return {"type": "error", "error": error}

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {**headers, "www-authenticate": "Bearer"} if self.status == 401 else headers


def field_error(param: str, rule: str, status: int = 400, **fields: Any) -> ApiError:
    """Make the error of a request's field. fields: code and retry_after, as of `ApiError`."""
    return ApiError(status, f"{param}: {rule}", param=param, **fields)


def invalid(param: str, rule: str, value: object, code: str | None = None) -> ApiError:
    """Make a 400 for a field with a value that breaks a rule."""
    return field_error(param, f"{rule}, but got {shown(value)}", code=code)


def to_api_error(error: Exception) -> ApiError:
    """Make the error response for any exception.

    Unexpected exceptions become a 500 without details. Expected ones keep their message, without
    the folders of this machine.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        subject = _SUBJECT.match(str(error))
        code = TOO_LONG if isinstance(error, ContextError) else None
        said = ApiError(400, str(error), param=subject[1] if subject else None, code=code)
        return rename_param(said, FIELDS)
    if isinstance(error, ModelFormatError | DiskError):
        return ApiError(500, str(error).replace(error.file, Path(error.file).name))
    if isinstance(error, SternaError):
        return ApiError(500, str(error))
    return ApiError(500, "The server failed. Its log has the reason.")


def rename_param(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Rename an error's field. names: from chat's name of a field to the protocol's."""
    for name, word in names.items():
        begins = re.compile(rf"{re.escape(name)}(?=$|[.:\[ ])")
        if error.param is not None and begins.match(error.param):
            param, message = begins.sub(word, error.param, 1), error.message
            if begins.match(message):
                message = begins.sub(word, message, 1)
            return ApiError(
                error.status, message, param=param, code=error.code, retry_after=error.retry_after
            )
    return error


def of_fields(error: ApiError, fields: Collection[str]) -> ApiError:
    """Return an error without `param` if that is none of a request's fields."""
    name = re.match(r"\w*", error.param or "")
    if name and name[0] not in fields:
        error.param = None
    return error


@contextlib.contextmanager
def renaming_params(names: Mapping[str, str]) -> Iterator[None]:
    """Apply `rename_param` to errors raised in a `with` block."""
    try:
        yield
    except (ApiError, RequestError) as error:
        raise rename_param(to_api_error(error), names) from error
