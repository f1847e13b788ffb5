"""The middleware of all endpoints: access checks, request ids, and one log line per request."""

from __future__ import annotations

import logging
import re
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sterna.errors import SternaError, shown
from sterna.server import errors
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError
from sterna.server.logs import log_fields, request_id
from sterna.server.routing import as_error, as_json
from sterna.server.service import Service
from sterna.server.unsupported_fields import unsupported_fields

__all__ = ["RequestMiddleware"]

_log = logging.getLogger("sterna.server")
MAX_ID = 128
SECURITY = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
CORS_METHODS, CORS_HEADERS = "GET, POST, DELETE", "authorization, content-type, x-api-key"
#: A list of header names, in the form in which browsers send it.
_NAMES = re.compile(r"[\w!#$%&'*+.^`|~-]+( *, *[\w!#$%&'*+.^`|~-]+)*", re.ASCII)
PREFLIGHT_S = 600  #: how long a browser may cache the answer to a preflight
MAX_WARNING = 1000


class RequestMiddleware:
    """Wraps an app: checks host, origin and key, and ends requests.

    open_paths: paths that need no key.
    """

    def __init__(self, app: ASGIApp, service: Service, open_paths: frozenset[str]) -> None:
        self._app, self._service, self._open = app, service, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; any exception becomes an error response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, headers = time.perf_counter(), Headers(scope=scope)
        state: dict[str, Any] = scope.setdefault("state", {})
        in_process = "key" in state  # set by `inprocess.post`; clients cannot set state
        if not in_process:
            state["id"] = _request_id(headers)
        request_id.set(state["id"])
        state["warnings"] = []
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = MutableHeaders(raw=message["headers"])
                added.update({"x-request-id": state["id"], **SECURITY, **self._cors(headers)})
                if state.get("warnings"):
                    added["x-sterna-warning"] = _header("; ".join(state["warnings"]))
            await send(message)

        try:
            response = self._preflight(scope, headers)
            if response is None:
                if not in_process:
                    self._check(scope, headers)
                await self._app(scope, receive, noting)
            else:
                await response(scope, receive, noting)
        except Exception as error:
            if not isinstance(error, (ApiError, SternaError)):
                _log.error("%s: failed", state["id"], exc_info=error)
            state["error"] = _of_route(errors.to_api_error(error), scope)
            if not status:
                await as_error(state["error"], scope)(scope, receive, noting)
        finally:
            self._end(scope, status, time.perf_counter() - began)

    def _preflight(self, scope: Scope, headers: Headers) -> Any:
        """Return the answer to a CORS preflight; None for any other request."""
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            return as_json({}, 200 if self._cors(headers) else 403)
        return None

    def _cors(self, headers: Headers) -> dict[str, str]:
        origin, allowed = headers.get("origin"), self._service.settings.origins
        if origin is None or not (origin in allowed or "*" in allowed):
            return {}
        asked = headers.get("access-control-request-headers", "")
        cors = {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": CORS_METHODS,
            # Allow any header: clients add their own.
            "access-control-allow-headers": asked if _NAMES.fullmatch(asked) else CORS_HEADERS,
            "access-control-max-age": str(PREFLIGHT_S),
            "access-control-expose-headers": "x-request-id, x-sterna-warning, retry-after",
            "vary": "Origin, Access-Control-Request-Headers",
        }
        if headers.get("access-control-request-private-network") == "true":
            cors["access-control-allow-private-network"] = "true"
        return cors

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raise ApiError 403 for a host or an origin that is not allowed, 401 for a wrong key."""
        service, host = self._service, headers.get("host", "")
        if not service.settings.allows_host(host):
            raise ApiError(
                403,
                f"host: must be a name of this server, but got {shown(host)}; see sterna serve "
                "--allowed-host",
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host and not self._cors(headers):
            raise ApiError(
                403,
                f"origin: must be allowed, but got {shown(origin)}; see sterna serve "
                "--allow-origin",
            )
        state = scope["state"]
        state["key"] = ""
        if not service.settings.has_keys or scope["path"] in self._open:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        owner = service.keys.owner(key.strip())
        if owner is None:
            raise ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
        state["key"] = owner

    def _end(self, scope: Scope, status: int, seconds: float) -> None:
        """Release what the request holds, and log it."""
        state = scope["state"]
        route = getattr(scope.get("route"), "path", "none")
        self._service.metrics.count_response(scope["method"], route, status)
        line: dict[str, Any] = {
            "id": state["id"],
            "status": status,
            "method": scope["method"],
            "path": route if route != "none" else scope["path"][:80],
            "seconds": round(seconds, 3),
        }
        if state.get("key"):
            line["key"] = state["key"]
        self._explain(line, state)
        active: ActiveRequest | None = state.get("active")
        if active is not None:
            active.cancel()  # if it has not ended
            line |= active.log_fields(self._service.settings.log_prompts)
            self._service.end(active)
        if route != "/health" and (route != "/metrics" or status >= 400):
            log_fields(line)  # probes of health come every few seconds, also while models load

    def _explain(self, line: dict[str, Any], state: dict[str, Any]) -> None:
        """Add the error, without the client's own text, and the ignored fields."""
        error: ApiError | None = state.get("error")
        if error is not None:
            line["error"] = error.message if self._service.settings.log_prompts else error.rule
        if state["warnings"]:
            line["warning"] = "; ".join(state["warnings"])


def _of_route(error: ApiError, scope: Scope) -> ApiError:
    """Return an error whose `param` is a field of the endpoint's body, if it has one."""
    route = getattr(scope.get("route"), "path", "")
    body = scope["app"].state.bodies.get((scope["method"], route)) if "app" in scope else None
    if body is None:
        return error
    fields = {*body.__struct_fields__, *unsupported_fields(getattr(body, "protocol", ""))}
    return errors.of_fields(error, fields) if error.code != "unknown_parameter" else error


def _header(text: str) -> str:
    """Encode a text for a header."""
    return text.encode("ascii", "backslashreplace").decode()[:MAX_WARNING]


def _request_id(headers: Headers) -> str:
    """Return the client's id if it is well-formed, else a new one."""
    header = headers.get("x-request-id", "")
    good = 0 < len(header) <= MAX_ID and all(c.isalnum() or c in "-_.:" for c in header)
    return header if good and header.isascii() else f"req-{secrets.token_hex(8)}"
