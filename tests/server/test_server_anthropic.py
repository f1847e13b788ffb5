"""Anthropic's own package against the server: what it sends besides a plain conversation."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, serving

import sterna

anthropic = pytest.importorskip("anthropic")

TEMPLATE = (
    "{% for t in tools or [] %}# {{ t.function.name }}: <tool_call>\n{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
)
ASKED: dict[str, Any] = {"model": "local", "max_tokens": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("anthropic")
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder / "local")
    (folder / "local" / "chat_template.jinja").write_text(TEMPLATE)
    with serving(folder, str(folder / "local"), "nano", "--context", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def tokens(client: Any, content: Any) -> int:
    count: int = client.messages.count_tokens(
        model="local", messages=[{"role": "user", "content": content}]
    ).input_tokens
    return count


def test_documents_and_search_results(client: Any, server: ServerProcess) -> None:
    """Are read as text, with their titles; a PDF is refused."""
    text = {"type": "text", "media_type": "text/plain", "data": "A tern."}
    question = {"type": "text", "text": "Which bird?"}
    document = {"type": "document", "source": text, "title": "Birds", "context": "A list."}
    expected = "<document>\n<title>Birds</title>\n<context>A list.</context>\nA tern.\n</document>"
    assert tokens(client, [document, question]) == tokens(client, f"{expected}\nWhich bird?")
    blocks = {"type": "content", "content": [{"type": "text", "text": "A tern."}]}
    assert tokens(client, [{**document, "source": blocks}]) == tokens(client, expected)
    found: Any = {
        "type": "search_result", "source": "https://birds.example", "title": "Birds",
        "content": [{"type": "text", "text": "A tern."}], "citations": {"enabled": True},
    }  # fmt: skip
    expected = (
        "<search_result>\n<title>Birds</title>\n<source>https://birds.example</source>\nA tern.\n"
        "</search_result>"
    )
    assert tokens(client, [found]) == tokens(client, expected)
    result = {"type": "tool_result", "tool_use_id": "a", "content": [document, found]}
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    talk = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]}]  # fmt: skip
    answer = server.post("/v1/messages", **ASKED, messages=talk)
    assert answer.status_code == 200, answer.text
    assert "citations: ignored" in answer.headers["x-sterna-warning"]
    pdf = {
        "type": "base64",
        "media_type": "application/pdf",
        "data": base64.b64encode(b"x").decode(),
    }
    with pytest.raises(anthropic.BadRequestError, match="PDFs are not read"):
        tokens(client, [{"type": "document", "source": pdf}])
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content\[0\].content"):
        tokens(client, [{**found, "content": 5}])


def test_tool_runners_go_on_without_a_thread(client: Any, server: ServerProcess) -> None:
    """The SDK's runner asks for a thread first, and for the whole conversation when refused."""

    @anthropic.beta_tool
    def bird(name: str) -> str:
        """Get a bird"""
        return name

    said = [{"role": "user", "content": "Name a bird."}]
    runner = client.beta.messages.tool_runner(**ASKED, tools=[bird], messages=said)
    assert runner.until_done().content
    answer = server.post("/v1/messages", **ASKED, messages=said, thread={"type": "create"})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["error_code"] == "thread_unsupported_request"


def test_models_in_its_form(client: Any, server: ServerProcess) -> None:
    """In pages; the list of OpenAI's form is for others."""
    page = client.models.list()
    assert [(row.type, row.id) for row in page.data] == [("model", "local"), ("model", "nano")]
    assert all(row.display_name and row.created_at.year > 2000 for row in page.data)
    assert not page.has_more
    assert [row.id for row in client.models.list(limit=1)] == ["local", "nano"]  # two requests
    assert [row.id for row in client.models.list(before_id="nano").data] == ["local"]
    one = client.models.retrieve("local")
    assert (one.display_name, one.max_input_tokens) == ("local", 2048)
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")
    with pytest.raises(anthropic.BadRequestError):
        client.models.list(after_id="other")
    assert server.http.get("/v1/models").json()["object"] == "list"


def test_what_is_no_http_is_refused_in_its_form(server: ServerProcess) -> None:
    """Each door's own, by path or header."""

    def told(request: str) -> str:
        with server.raw() as raw:
            raw.sendall(request.encode())
            data = b""
            while part := raw.recv(4096):
                data += part
        assert data.startswith(b"HTTP/1.1 400"), data
        assert b"application/json" in data
        return data.partition(b"\r\n\r\n")[2].decode()

    bad = "\r\nHost: localhost\r\nBad Header\r\n\r\n"
    assert told(f"POST /v1/messages HTTP/1.1{bad}").startswith('{"type":"error","error"')
    version = "\r\nanthropic-version: 1"
    assert told(f"GET /v1/models HTTP/1.1{version}{bad}").startswith('{"type":"error"')
    assert told(f"GET /v1/models HTTP/1.1{bad}").startswith('{"error":{"message"')
    assert told(f"GET /api/tags?a HTTP/1.1{bad}").startswith('{"error":"request: must be HTTP')
    assert told("\x00\x01\r\n\r\n").startswith('{"error":{"message"')
    with server.raw() as raw:  # the second request of a connection
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        first = raw.recv(4096)
        while not first.endswith(b'"ok"}'):
            first += raw.recv(4096)
        raw.sendall(f"GET /api/tags HTTP/1.1{bad}".encode())
        assert b'{"error":"request' in raw.recv(4096)
