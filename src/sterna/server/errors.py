"""What a client is told: a status, and OpenAI's object of message, type, param and code."""

from __future__ import annotations

import re
from typing import Any

from sterna.errors import RequestError, SternaError, shown

__all__ = ["ApiError", "of", "wrong"]

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
#: A message of a RequestError begins with the name of what it is about.
_SUBJECT = re.compile(r"([A-Za-z_][\w.\[\]]*)(?:(?: of)? \d+)?:")


class ApiError(Exception):
    """An answer with an error; `retry_after` in seconds, where trying again later may help."""

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
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after

    @property
    def type(self) -> str:
        """The kind of error, in OpenAI's words."""
        return TYPES.get(self.status, "server_error")

    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Headers beside it."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {**headers, "www-authenticate": "Bearer"} if self.status == 401 else headers


def wrong(param: str, rule: str, value: object) -> ApiError:
    """A 400 for a field that breaks a rule."""
    return ApiError(400, f"{param}: {rule}, but got {shown(value)}", param=param)


def of(error: Exception, names: dict[str, str] | None = None) -> ApiError:
    """The answer to an exception; names: the client's words for fields that Sterna calls otherwise.

    Whatever Sterna does not raise on purpose is a 500 that says nothing of the inside.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        found = _SUBJECT.match(str(error))
        subject = found[1] if found else None
        return ApiError(400, str(error), param=(names or {}).get(subject or "", subject))
    if isinstance(error, SternaError):
        return ApiError(500, str(error))
    return ApiError(500, "the server failed; its log says how")
