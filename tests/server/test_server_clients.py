"""Requests of public clients, as recorded (see `contracts`): each is answered in the form that the
client reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from client_page import PAGE, page
from contracts import ORIGIN, contracts
from pydantic import RootModel
from server_process import ServerProcess, serving

import sterna

CONTRACTS = dict(contracts())
#: Tokens of an answer; the prompts of agents are what takes time.
MAX_TOKENS = 6
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }} <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder / "smol")
    (folder / "smol" / "chat_template.jinja").write_text(TEMPLATE)
    options = ["--context", "16384", "--allow-origin", ORIGIN]
    with serving(folder, str(folder / "smol"), *options) as running:
        yield running


def shortened(path: str, body: Any) -> Any:
    """A request with short answers."""
    if not isinstance(body, dict) or not {"messages", "prompt", "input"} & {*body}:
        return body
    if "embed" in path or "count" in path or "token" in path:
        return body
    if "/responses" in path:
        return {**body, "max_output_tokens": MAX_TOKENS}
    name = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    return {**body, name: MAX_TOKENS}


@cache
def kinds(path: str) -> tuple[Any, Any]:
    """The types of a whole answer and of its events, in the packages of the protocol's owner."""
    from anthropic.types import Message, RawMessageStreamEvent
    from openai.types import Completion, CreateEmbeddingResponse
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    from openai.types.responses import Response, ResponseStreamEvent

    found = {
        "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
        "/v1/completions": (Completion, Completion),
        "/v1/responses": (Response, ResponseStreamEvent),
        "/v1/messages": (Message, RawMessageStreamEvent),
        "/v1/embeddings": (CreateEmbeddingResponse, None),
    }
    return found.get(path, (RootModel[dict[str, Any]], None))


@cache
def event_kinds(union: Any) -> dict[str, Any]:
    """The members of a union of events, by their type."""
    members = get_args(get_args(union)[0])
    return {get_args(m.model_fields["type"].annotation)[0]: m for m in members}


def check_stream(text: str, path: str, kind: Any, body: dict[str, Any]) -> None:
    """Each event is of its type, the last is the protocol's, and the usage is told if asked for."""
    *events, rest = text.split("\n\n")
    assert rest == ""
    data = [line[6:] for event in events for line in event.splitlines() if line[:6] == "data: "]
    told = [json.loads(one) for one in data if one != "[DONE]"]
    for one in told:
        of_type = event_kinds(kind)[one["type"]] if get_args(kind) else kind
        of_type.model_validate(one)
    if path == "/v1/messages":
        assert told[-1]["type"] == "message_stop"
    elif path == "/v1/responses":
        assert told[-1]["type"] in ("response.completed", "response.incomplete")
    else:
        assert data[-1] == "[DONE]"
        if (body.get("stream_options") or {}).get("include_usage"):
            assert told[-1]["usage"]["total_tokens"] > 0


def typed(answer: dict[str, Any], body: Any) -> dict[str, Any]:
    """An answer without the nulls of a prompt's first token, which OpenAI's types forget."""
    for choice in answer["choices"] if isinstance(body, dict) and body.get("echo") else ():
        for name in ("token_logprobs", "top_logprobs"):
            assert choice["logprobs"][name].pop(0) is None
    return answer


@pytest.mark.parametrize("name", CONTRACTS)
def test_contracts(server: ServerProcess, name: str) -> None:
    for asked in CONTRACTS[name]["requests"]:
        path, body = asked["path"].partition("?")[0], asked.get("body")
        content = None if body is None else json.dumps(shortened(path, body)).encode()
        answer = server.http.request(
            asked["method"], asked["path"], content=content, headers=asked["headers"]
        )
        assert answer.status_code == asked["status"], (asked["path"], answer.text[:2000])
        assert "does not know these fields" not in answer.headers.get("x-sterna-warning", "")
        if answer.status_code != 200 or asked["method"] != "POST":
            continue
        whole, event = kinds(path)
        if isinstance(body, dict) and body.get("stream"):
            check_stream(answer.text, path, event, body)
        else:
            whole.model_validate(typed(answer.json(), body))


def test_the_page_is_of_the_contracts() -> None:
    assert PAGE.read_text() == page(), "run python tests/support/client_page.py"
