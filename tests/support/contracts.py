"""Contracts: the requests of public clients, as they sent them, without texts, ids and places.

`tests/long/clients` records them by running the clients; `tests/server/test_server_clients.py`
sends them again.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "FORMS", "ORIGIN", "contracts", "forms", "record", "written"]

FOLDER = Path(__file__).parents[1] / "clients"
FORMS = ("plain", "stream", "tools", "schema", "both", "reasoning")
HEADERS = (
    "accept", "content-type", "anthropic-version", "anthropic-beta", "openai-beta",
    "access-control-request-method", "access-control-request-headers",
)  # fmt: skip
#: Where pages of browsers come from, in place of their own origins.
ORIGIN = "https://app.example"
#: Fields whose strings a server interprets.
MEANT = ("pattern", "$schema", "$ref", "type", "format")
#: Function tools kept of a request, those with the largest schemas; of other types, one each.
MAX_TOOLS = 4
_NAME = re.compile(r"[A-Za-z][\w.+:-]{0,39}(/[\w.+:-]{1,40})?|[\d.]{1,8}|\s*", re.ASCII)
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-|[0-9a-f]{12,}|^[a-z]+[_-](?=\w*\d)[A-Za-z0-9_-]{8,}$", re.ASCII
)
_PRIVATE = {socket.gethostname().lower(), getpass.getuser().lower(), Path.home().name.lower()}
MAX_NUMBER = 10**11  # larger ones are times
#: Fields with lists of token ids, which are texts of one vocabulary, and how many ids all have.
TOKENS = ("prompt", "tokens", "input")
MAX_ID = 256


class _Scrubber:
    """Replaces what is personal or another's text by something of the same kind."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def value(self, value: Any, name: str = "") -> Any:
        """A value under a field's name."""
        if isinstance(value, dict):
            return {self._key(key): self.value(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, name) for one in value]
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, (int, float)) and abs(value) > MAX_NUMBER:
            return 0
        if name in TOKENS and isinstance(value, int):
            return value % MAX_ID
        return value

    def _key(self, key: str) -> str:
        return key if key.startswith("$") or _is_name(key) else f"key of {len(key)} characters"

    def _text(self, text: str, name: str) -> str:
        if name in MEANT:
            return text
        if name == "arguments":
            try:
                return json.dumps(self.value(json.loads(text)))
            except ValueError:
                return text if len(text) < 8 else "{}"
        if _ID.search(text) and len(text) < 200:
            return self._ids.setdefault(text, f"id-{len(self._ids) + 1}")
        return text if _is_name(text) else f"A text of {len(text)} characters."


def _is_name(text: str) -> bool:
    """Whether a text is a word of a protocol or program, rather than of a person."""
    return (
        _NAME.fullmatch(text) is not None
        and not _ID.search(text)
        and not any(word in text.lower() for word in _PRIVATE)
    )


def _fewer(tools: Any) -> Any:
    """One tool of each type, and the functions with the largest schemas, in their order."""
    if not isinstance(tools, list):
        return tools
    sizes = {i: len(json.dumps(tool.get("function", tool))) for i, tool in enumerate(tools)}
    kinds = {tool.get("type"): i for i, tool in reversed([*enumerate(tools)])}
    functions = [i for i in sizes if tools[i].get("type") in (None, "function")]
    largest = sorted(functions, key=lambda i: -sizes[i])
    kept = {*kinds.values(), *largest[:MAX_TOOLS]}
    return [tool for i, tool in enumerate(tools) if i in kept]


def forms(body: Any) -> list[str]:
    """The features that a request uses, in the words of `FORMS`."""
    if not isinstance(body, dict) or not {"messages", "prompt", "input"} & {*body}:
        return []
    found = []
    formats = [
        body.get("response_format"), (body.get("text") or {}).get("format"),
        (body.get("output_config") or {}).get("format"), body.get("output_format"),
        body.get("structured_outputs") and {"type": "structured"}, body.get("guided_json") and {},
    ]  # fmt: skip
    tools = bool(body.get("tools"))
    schema = any(form and form.get("type") != "text" for form in formats)
    effort = (body.get("output_config") or {}).get("effort")
    asked = [body.get(name) for name in ("reasoning_effort", "reasoning", "thinking")]
    back = '"reasoning_content":' in json.dumps(body.get("messages"), separators=(",", ":"))
    if not tools and not schema and not body.get("stream"):
        found.append("plain")
    found += ["stream"] * bool(body.get("stream")) + ["tools"] * tools + ["schema"] * schema
    found += ["both"] * (tools and schema) + ["reasoning"] * any([*asked, effort, back])
    return found


def _shape(value: Any, name: str = "") -> Any:
    """A key that is equal for requests that differ only in texts and lengths."""
    if isinstance(value, dict):
        return {key: _shape(one, key) for key, one in sorted(value.items())}
    if isinstance(value, list):
        return sorted({json.dumps(_shape(one)) for one in value})
    if isinstance(value, bool) or name in ("role", "type", "tool_choice"):
        return value
    return type(value).__name__


def record(exchanges: Iterable[Any]) -> list[dict[str, Any]]:
    """The requests of a client, one of each shape; see `recorder.Exchange`."""
    scrubber, found = _Scrubber(), {}
    for exchange in exchanges:
        shape = json.dumps([exchange.method, exchange.path, _shape(exchange.body)])
        if shape in found:
            continue
        headers = {name: value for name, value in exchange.headers.items() if name in HEADERS}
        if "origin" in exchange.headers:
            headers["origin"] = ORIGIN
        asked = {"method": exchange.method, "path": exchange.path, "headers": headers}
        asked["status"] = exchange.status
        if exchange.body is not None:
            body = scrubber.value(exchange.body)
            if isinstance(body, dict) and "tools" in body:
                body["tools"] = _fewer(body["tools"])
            asked["body"] = body
        found[shape] = asked
    return [*found.values()]


def written(name: str, client: str, versions: dict[str, str], exchanges: Iterable[Any]) -> Path:
    """Writes a client's contract, a request a line."""
    lines = ",\n".join(f"  {json.dumps(asked)}" for asked in record(exchanges))
    head = json.dumps({"client": client, "versions": versions})[1:-1]
    path = FOLDER / f"{name}.json"
    path.write_text(f'{{{head}, "requests": [\n{lines}\n]}}\n')
    return path


def contracts() -> Iterator[tuple[str, dict[str, Any]]]:
    """All contracts by their names."""
    for path in sorted(FOLDER.glob("*.json")):
        yield path.stem, json.loads(path.read_text())
