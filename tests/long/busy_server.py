"""Two agents, a client of JSON schemas and a reader of long prompts at once: each answer as alone.

    python tests/long/busy_server.py [--minutes 20] [--requests 1000] [--model FILE]

The clients ask one `sterna serve` of SmolLM2 until the minutes or the requests are over. Then a new
server gets each request again, alone. Fails on an answer that differs, and on an error that the
request does not get alone. All requests are greedy or have a seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "real")]
import assets  # noqa: E402
from server_process import serving  # noqa: E402

CONTEXT = 8192  #: of SmolLM2
LONG_TOKENS = 7000
LIMIT_S = 900  #: for one request
CITIES = ("Paris", "Rome", "Lima", "Oslo", "Cairo", "Quito", "Delhi", "Seoul")
CITY = {
    "type": "object", "properties": {"city": {"type": "string", "enum": [*CITIES]}},
    "required": ["city"], "additionalProperties": False,
}  # fmt: skip
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
#: Which parts of an answer a request decides, besides its text and calls.
TOLD = ("finish_reason", "stop_reason", "completion_tokens", "output_tokens")


@dataclass
class Asked:
    """A request of a client, and what it got: the status, and the answer or the error."""

    client: str
    path: str
    body: dict[str, Any]
    got: tuple[int, Any]
    seconds: float


@dataclass
class Clients:
    """Asks a server until the time or the requests are over, and keeps what it asked."""

    url: str
    until: float
    most: int
    asked: list[Asked] = field(default_factory=list)

    def ask(self, client: str, path: str, body: dict[str, Any]) -> Any:
        """Send a request; StopIteration once enough were sent."""
        if time.monotonic() > self.until or len(self.asked) >= self.most:
            raise StopIteration
        begun = time.perf_counter()
        got = answer(self.url, path, body)
        self.asked.append(Asked(client, path, body, got, time.perf_counter() - begun))
        return got[1]

    def run(self, name: str, client: Callable[[Clients, str], None]) -> None:
        """Let a client ask until it has to stop."""
        try:
            client(self, name)
        except StopIteration:
            print(f"{name}: done", flush=True)


def answer(url: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """The status, and the parts of the answer that a request decides, streamed or whole."""
    found = httpx.post(url + path, json={"model": "smol", **body}, timeout=LIMIT_S)
    if found.status_code != 200:
        return found.status_code, found.text
    lines = found.text.splitlines() if body.get("stream") else [f"data: {found.text}"]
    texts: dict[str, str] = {"text": "", "arguments": "", "name": ""}
    told: dict[str, Any] = {}
    for line in lines:
        if line.startswith("data: {"):
            for name, value in parts(json.loads(line[6:])):
                if name in texts:
                    texts[name] += value or ""
                elif value is not None:
                    told[name] = value
    return 200, {**texts, **told}


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """All texts, calls and counts in an answer or in an event, without ids and times."""
    if isinstance(value, list):
        for one in value:
            yield from parts(one)
    if not isinstance(value, dict):
        return
    if "error" in value:
        yield "error", value["error"]
    for name, one in value.items():
        if name in ("text", "content") and isinstance(one, str):
            yield "text", one
        elif name in ("arguments", "name"):
            yield name, one
        elif name == "input":
            yield "arguments", json.dumps(one)
        elif name in TOLD:
            yield name, one
        else:
            yield from parts(one)


def chat_agent(clients: Clients, name: str) -> None:
    """Calls a tool, reads its result and answers, in conversations of several turns, streamed."""
    tool = {"name": "get_weather", "description": "The weather.", "parameters": CITY}
    for n in itertools.count():
        messages: list[dict[str, Any]] = []
        for turn in range(3):
            said = f"Question {n}: what is the weather in {CITIES[(n + turn) % len(CITIES)]}?"
            messages.append({"role": "user", "content": said})
            body = {
                "max_tokens": 60, "temperature": 0, "stream": True,
                "tools": [{"type": "function", "function": tool}],
            }  # fmt: skip
            called = clients.ask(
                name, CHAT, {**body, "messages": [*messages], "tool_choice": "required"}
            )
            function = {"name": "get_weather", "arguments": arguments_of(called)}
            call = {"id": f"call_{n}_{turn}", "type": "function", "function": function}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": f"Sun, {n % 30} degrees"},
            ]
            told = clients.ask(name, CHAT, {**body, "messages": [*messages]})
            messages.append({"role": "assistant", "content": text_of(told)})


def messages_agent(clients: Clients, name: str) -> None:
    """The same in Anthropic's protocol, whole, with a seed."""
    tool = {"name": "get_weather", "description": "The weather.", "input_schema": CITY}
    for n in itertools.count():
        said = f"Report {n}: is it cold in {CITIES[n % len(CITIES)]}?"
        messages: list[dict[str, Any]] = [{"role": "user", "content": said}]
        body = {"max_tokens": 60, "temperature": 0.9, "seed": n, "tools": [tool]}
        called = clients.ask(
            name, MESSAGES, {**body, "messages": [*messages], "tool_choice": {"type": "any"}}
        )
        use = {"type": "tool_use", "id": f"toolu_{n}", "name": "get_weather"}
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "Rain, 5 degrees"}
        messages += [
            {"role": "assistant", "content": [{**use, "input": json.loads(arguments_of(called))}]},
            {"role": "user", "content": [result]},
        ]
        clients.ask(name, MESSAGES, {**body, "messages": messages})


def schema_client(clients: Clients, name: str) -> None:
    """Asks for objects of schemas that differ, greedy and with a seed."""
    for n in itertools.count():
        schema = {
            "type": "object",
            "properties": {
                f"name_{n % 7}": {"type": "string", "maxLength": 5 + n % 20},
                "age": {"type": "integer", "minimum": 0, "maximum": 100 + n % 50},
                "tags": {"type": "array", "items": {"enum": [*CITIES[: 1 + n % 8]]}, "maxItems": 3},
            },
            "required": [f"name_{n % 7}", "age", "tags"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        sampled = {"temperature": 1.0, "seed": n} if n % 2 else {"temperature": 0}
        said = [{"role": "user", "content": f"Describe person {n} as JSON."}]
        body = {"messages": said, "response_format": form, "max_tokens": 120, **sampled}
        clients.ask(name, CHAT, body)


def reader(clients: Clients, name: str) -> None:
    """Asks about long texts: each is new, and gets a second question once it is cached."""
    for n in itertools.count():
        text = " ".join(f"Line {n}.{i} of the list." for i in range(LONG_TOKENS))
        ids = httpx.post(f"{clients.url}/tokenize", json={"prompt": text}, timeout=LIMIT_S).json()
        cut = {"tokens": ids["tokens"][:LONG_TOKENS]}
        text = httpx.post(f"{clients.url}/detokenize", json=cut, timeout=LIMIT_S).json()["content"]
        for question in ("What is this?", "What is the last line?"):
            said = [{"role": "user", "content": f"{text}\n\n{question}"}]
            clients.ask(name, CHAT, {"messages": said, "max_tokens": 24, "temperature": 0})


def arguments_of(told: Any) -> str:
    """The arguments of the first call; those of none where it was cut, or is an error."""
    try:
        end = json.JSONDecoder().raw_decode(told["arguments"])[1]
        found: str = told["arguments"][:end]
    except (ValueError, TypeError):
        return "{}"
    return found


def text_of(told: Any) -> str:
    return str(told["text"]) if isinstance(told, dict) else ""


CLIENTS = {
    "agent (chat)": chat_agent, "agent (messages)": messages_agent, "schemas": schema_client,
    "long prompts": reader,
}  # fmt: skip


def busy(url: str, minutes: float, most: int) -> list[Asked]:
    """Let all clients ask at once."""
    clients = Clients(url, time.monotonic() + 60 * minutes, most)
    running = [
        threading.Thread(target=clients.run, args=one, daemon=True) for one in CLIENTS.items()
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return clients.asked


def judged(url: str, asked: list[Asked]) -> int:
    """Ask each again, alone; print what differs, and a row of each client; count the failures."""
    failures: dict[str, int] = dict.fromkeys(CLIENTS, 0)
    for one in asked:
        alone = answer(url, one.path, one.body)
        if one.got != alone:
            failures[one.client] += 1
            print(f"{one.client}: {json.dumps(one.body)[-300:]}\n  {one.got}\n  alone: {alone}")
    for name in CLIENTS:
        seconds = [one.seconds for one in asked if one.client == name]
        errors = sum(one.client == name and one.got[0] != 200 for one in asked)
        print(
            f"{name:16} {len(seconds):5} requests, {errors} errors, {failures[name]} otherwise "
            f"than alone, median {statistics.median(seconds or [0]):.1f} s, longest "
            f"{max(seconds, default=0):.1f} s"
        )
    return sum(failures.values()) + sum(
        name not in {one.client for one in asked} for name in CLIENTS
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--requests", type=int, default=1000)
    args = parser.parse_args()
    options = (
        "--served-name", "smol", "--context", str(CONTEXT),
        "--chat-template", str(HERE / "clients" / "template.jinja"),
    )  # fmt: skip
    model = str(args.model or assets.smollm2())
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder), model, *options) as server:
            asked = busy(server.url, args.minutes, args.requests)
        with serving(Path(folder), model, *options) as server:
            return int(judged(server.url, asked) > 0)


if __name__ == "__main__":
    sys.exit(main())
