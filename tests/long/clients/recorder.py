"""A recorder between a client and a server: keeps requests as sent, passes them on shortened."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

__all__ = ["Exchange", "Recorder"]

#: Characters of a text that reach the model. Agents send a hundred times more.
MAX_TEXT = 400
MAX_TOKENS = 400
SAID = "Done."
LIMITS = {
    "/chat/completions": "max_tokens",
    "/completions": "max_tokens",
    "/responses": "max_output_tokens",
    "/messages": "max_tokens",
}
SECONDS = 240


@dataclass
class Exchange:
    """A request as the client sent it, and the server's answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    status: int = 0
    answer: str = ""


@dataclass
class Recorder:
    """Listens on a free port of 127.0.0.1 until `close`.

    Attributes:
        server: the URL that requests are passed on to.
        calls: tools and their arguments, in turn. A request that has the next tool gets that call,
            and any other the answer `SAID`, because a small model does not know what an agent
            needs. None passes everything on whole.
    """

    server: str
    calls: list[tuple[str, dict[str, Any]]] | None = None
    exchanges: list[Exchange] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Bind a free port of the loopback and answer from a thread."""
        handler = type("Handler", (_Handler,), {"recorder": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._http.shutdown()
        self._http.server_close()

    def passed_on(self, path: str, body: Any) -> Any:
        """The request that the server gets."""
        end = next((end for end in LIMITS if path.split("?")[0].endswith(end)), None)
        if self.calls is None or end is None or not isinstance(body, dict):
            return body
        body = _shortened(body)
        name = "max_completion_tokens" if "max_completion_tokens" in body else LIMITS[end]
        body[name] = min(body.get(name) or MAX_TOKENS, MAX_TOKENS)
        if self.calls and self.calls[0][0] in map(_tool_name, body.get("tools") or ()):
            return _calling(end, body, *self.calls.pop(0))
        return _saying(end, body)


def _tool_name(tool: dict[str, Any]) -> str | None:
    found: str | None = (tool.get("function") or tool).get("name")
    return found


def _calling(end: str, body: dict[str, Any], name: str, arguments: dict[str, Any]) -> Any:
    """A request that only this call answers."""
    schema = {
        "type": "object",
        "properties": {key: {"const": value} for key, value in arguments.items()},
        "required": [*arguments],
        "additionalProperties": False,
    }
    tool: dict[str, Any] = {"name": name, "description": "", "parameters": schema}
    choice: dict[str, Any] = {"type": "function", "name": name}
    if end == "/messages":
        tool = {"name": name, "input_schema": schema}
        choice = {"type": "tool", "name": name}
    elif end == "/responses":
        tool |= {"type": "function"}
    else:
        tool = {"type": "function", "function": tool}
        choice = {"type": "function", "function": {"name": name}}
    return {**body, "tools": [tool], "tool_choice": choice}


def _saying(end: str, body: dict[str, Any]) -> Any:
    """A request that only `SAID` answers, but for a format that the client asks for."""
    form = {"type": "json_schema", "name": "said", "schema": {"const": SAID}}
    body = {key: value for key, value in body.items() if key not in ("tools", "tool_choice")}
    if end == "/messages":
        return {**body, "output_config": {"format": form, **(body.get("output_config") or {})}}
    if end == "/responses":
        return {**body, "text": {"format": form, **(body.get("text") or {})}}
    if body.get("response_format"):
        return body
    return {**body, "structured_outputs": {"choice": [SAID]}}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    if isinstance(value, list):
        return [_shortened(one) for one in value]
    if isinstance(value, dict):
        keep = ("arguments", "pattern")
        return {key: one if key in keep else _shortened(one) for key, one in value.items()}
    return value


class _Handler(BaseHTTPRequestHandler):
    recorder: Recorder

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        data = self.rfile.read(length)
        try:
            body = json.loads(data) if data else None
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange = Exchange(self.command, self.path, headers, body)
        self.recorder.exchanges.append(exchange)
        if body is not None:
            data = json.dumps(self.recorder.passed_on(self.path, body)).encode()
        dropped = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")
        sent = {name: value for name, value in headers.items() if name not in dropped}
        with (
            httpx.Client(timeout=SECONDS) as http,
            http.stream(
                self.command, self.recorder.server + self.path, content=data, headers=sent
            ) as answer,
        ):
            exchange.status = answer.status_code
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            parts = []
            for part in answer.iter_bytes():
                parts.append(part)
                self.wfile.write(part)
                self.wfile.flush()
            exchange.answer = b"".join(parts).decode("utf-8", "replace")
        self.close_connection = True

    do_GET = do_DELETE = do_HEAD = do_PUT = do_OPTIONS = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""
