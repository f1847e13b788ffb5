"""Agents send more than a chat: tools that are run elsewhere, system messages in the middle; and
what they go by: kinds of errors, stop sequences, headers, the log."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from server_process import ServerProcess, serving
from waits import wait_until

import sterna

SAID = [{"role": "user", "content": "def f(x):\n"}]
#: Templates in the manner of published ones: with a place for each system message, for the first
#: alone (the others are passed over, or refused), and for none.
ALL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
FIRST = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content | trim }}\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\n{% endif %}"
    "{% endfor %}"
)
REFUSES = "{% for m in messages[1:] %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}"  # noqa: E501
NONE = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"  # noqa: E501
TEMPLATES = {"all": ALL, "first": FIRST, "refuses": REFUSES + FIRST, "none": NONE + REFUSES + ALL}
TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Copies of nano, in folders whose path no answer may tell."""
    root = tmp_path_factory.mktemp("secret-place")
    for name, template in TEMPLATES.items():
        shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", root / name)
        (root / name / "chat_template.jinja").write_text(template)
    shutil.copytree(root / "all", root / "broken")
    config = root / "broken" / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": ', '"hidden_size": -'))
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def server(
    models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    paths = [str(models[name]) for name in (*TEMPLATES, "broken")]
    args = [*paths, "nano", "--context", "512", "--allow-origin", "https://app.example"]
    with serving(tmp_path_factory.mktemp("agents"), *args) as running:
        yield running


def logged(server: ServerProcess, id: str) -> str:
    """The line of log of a request, which comes behind its answer."""
    lines = wait_until(lambda: [line for line in server.log.splitlines() if f"id={id} " in line])
    return lines[0]


def prompt(server: ServerProcess, model: str, *messages: dict[str, Any]) -> str:
    answer = server.post("/apply-template", model=model, messages=list(messages))
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["prompt"]
    return text


def test_system_messages_anywhere(server: ServerProcess) -> None:
    """No text of theirs is lost, whatever places the template has."""
    talk = (
        {"role": "system", "content": "A one. "},
        {"role": "developer", "content": [{"type": "text", "text": "A two."}]},
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "A three."},
        {"role": "user", "content": "Again"},
    )
    spelt = "<system>A one. \n<system>A two.\n<user>Hello\n<system>A three.\n<user>Again\n"
    joined = "A one. \n\nA two.\n\nA three."
    assert prompt(server, "all", *talk) == spelt
    for model in ("first", "refuses"):
        assert prompt(server, model, *talk) == f"<system>{joined}\n<user>Hello\n<user>Again\n"
    assert prompt(server, "none", *talk) == f"<user>{joined}\n\nHello\n<user>Again\n"
    alone = {"role": "system", "content": "A one."}
    assert prompt(server, "first", alone, talk[2]) == "<system>A one.\n<user>Hello\n"


def test_system_messages_of_other_protocols(server: ServerProcess) -> None:
    """Anthropic's among the messages, and those of responses behind their instructions."""
    talk = [*SAID, {"role": "system", "content": "be brief"}, *SAID]
    body = {"model": "first", "max_tokens": 1, "system": "s", "messages": talk}
    assert server.post("/v1/messages", **body).status_code == 200
    items = [{"role": "developer", "content": "be brief"}, *SAID]
    answer = server.post(
        "/v1/responses", model="refuses", instructions="s", input=items, max_output_tokens=1
    )
    assert answer.status_code == 200, answer.text


def elsewhere(union: Any, own: set[str]) -> list[dict[str, Any]]:
    """A tool of each type in a package's union but those whose calls a client answers."""
    found: list[dict[str, Any]] = []
    for kind in get_args(union):
        names = getattr(kind.__annotations__["type"], "__forward_arg__", "")
        name = names.split("'")[1]
        if name not in own:
            found.append({"type": name, "name": name, "server_label": "x"})
    return found


def test_tools_of_openai_that_run_elsewhere(server: ServerProcess) -> None:
    """Every type that the package knows, next to a function of the client's."""
    module = pytest.importorskip("openai.types.responses.tool_param")
    tools = elsewhere(module.ToolParam, {"function", "custom", "namespace"})
    assert {"web_search", "apply_patch", "mcp"} <= {tool["type"] for tool in tools}
    body = {"model": "all", "input": "hi", "max_output_tokens": 1, "temperature": 0}
    plain = server.post("/v1/responses", **body, tools=[{"type": "function", **TOOL}])
    assert plain.status_code == 200
    assert "x-sterna-warning" not in plain.headers
    mixed = server.post("/v1/responses", **body, tools=[*tools, {"type": "function", **TOOL}])
    assert mixed.status_code == 200, mixed.text
    assert mixed.json()["output"][0]["content"] == plain.json()["output"][0]["content"]
    assert "tools[0]: ignored" in mixed.headers["x-sterna-warning"]
    line = logged(server, mixed.headers["x-request-id"])
    assert "ignored, because tools of the type" in line


def test_tools_of_anthropic_that_run_elsewhere(server: ServerProcess) -> None:
    module = pytest.importorskip("anthropic.types.beta.beta_tool_union_param")
    tools = elsewhere(module.BetaToolUnionParam, {"custom"})
    assert any(tool["type"].startswith("web_search") for tool in tools)
    own = [{"name": "f", "input_schema": {}}, {"type": "custom", "name": "g", "input_schema": {}}]
    body = {"model": "all", "messages": SAID, "max_tokens": 1}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        given = body if path == "/v1/messages" else {**body, "max_tokens": None}
        answer = server.post(path, **given, tools=[*own, *tools])
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-sterna-warning"].count("ignored") > 3
    assert "x-sterna-warning" not in server.post("/v1/messages", **body, tools=own).headers


def test_parts_that_come_of_such_tools(server: ServerProcess) -> None:
    items = [{"type": "web_search_call", "id": "w", "status": "completed"}, *SAID]
    answer = server.post("/v1/responses", model="all", input=items, max_output_tokens=1)
    assert answer.status_code == 200, answer.text
    assert "web_search_call" in answer.headers["x-sterna-warning"]
    blocks = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]
    talk = [*SAID, {"role": "assistant", "content": blocks}, *SAID]
    answer = server.post("/v1/messages", model="all", messages=talk, max_tokens=1)
    assert answer.status_code == 200, answer.text
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    assert server.post("/v1/messages", messages=image, max_tokens=1).status_code == 400


def test_a_stop_sequence_is_named(server: ServerProcess) -> None:
    body = {"messages": SAID, "max_tokens": 12, "temperature": 0, "model": "nano"}
    text = server.post("/v1/messages", **body).json()["content"][0]["text"]
    stop = text[4:7]
    answer = server.post("/v1/messages", **body, stop_sequences=["never", stop]).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    assert answer["content"][0]["text"] == text[: text.index(stop)]
    streamed = server.post("/v1/messages", **body, stop_sequences=[stop], stream=True).text
    assert f'"stop_reason":"stop_sequence","stop_sequence":"{stop}"' in streamed
    assert server.post("/v1/messages", **body).json()["stop_sequence"] is None


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
def test_a_prompt_that_is_too_long(server: ServerProcess, path: str) -> None:
    text = "def f(x):\n" * 600
    key = {"completions": "prompt", "responses": "input"}.get(path, "messages")
    said = [{"role": "user", "content": text}] if key == "messages" else text
    body: dict[str, Any] = {key: said, "model": "nano"}
    if path == "messages":
        error = server.post("/v1/messages", **body, max_tokens=1).json()["error"]
        assert error["message"].startswith("prompt is too long")
    else:
        answer = server.post(f"/v1/{path}", **body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_errors_of_responses_have_their_names(server: ServerProcess) -> None:
    for body, param in (
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"max_output_tokens": -3}, "max_output_tokens"),
    ):
        error = server.post("/v1/responses", input="hi", **body).json()["error"]
        assert error["param"] == param, error
        assert error["message"].startswith(param)
    body = {"messages": SAID, "max_tokens": 1}
    error = server.post("/v1/messages", **body, stop_sequences=["a"] * 99).json()["error"]
    assert error["message"].startswith("stop_sequences")
    form = {"format": {"type": "xml"}}
    error = server.post("/v1/messages", **body, output_config=form).json()["error"]
    assert error["message"].startswith("output_config.format.type")


def test_a_format_of_messages_is_held(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["b"]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    body = {"messages": SAID, "max_tokens": 30, "model": "nano", "temperature": 0}
    text = server.post("/v1/messages", **body, output_config=form).json()["content"][0]["text"]
    assert json.loads(text) == {"a": "b"}


def test_errors_in_anthropics_words(server: ServerProcess, tmp_path: Path) -> None:
    """Also where no endpoint was reached: by the path, or the header that its clients send."""
    for method, path, kind in (
        ("GET", "/v1/messages", "invalid_request_error"),
        ("POST", "/v1/messages/nowhere", "not_found_error"),
    ):
        body = server.http.request(method, path).json()
        assert (body["type"], body["error"]["type"]) == ("error", kind)
    headers = {"anthropic-version": "2023-06-01"}
    assert server.http.get("/v1/models/nowhere", headers=headers).json()["type"] == "error"
    assert "type" not in server.http.get("/v1/models/nowhere").json()
    with serving(tmp_path, "nano", "--api-key", "right") as running:
        for key in ({}, {"x-api-key": "wrong"}):
            answer = running.http.post("/v1/messages", json={}, headers=key)
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.json()["type"] == "error"


def test_no_answer_has_a_path(server: ServerProcess, models: dict[str, Path]) -> None:
    """Of the server's folders, whatever is wrong: with the request, or with the model."""
    bad = [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]
    tool = {"type": "function", "function": {**TOOL, "strict": True}}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/embeddings", {"input": "a", "prompt_name": "x", "pooling": "mean"}),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ("/v1/completions", {"prompt": ""}),
        ("/v1/chat/completions", {"messages": bad}),
        ("/v1/chat/completions", {"messages": SAID, "tools": [tool], "tool_choice": "required"}),
        ("/v1/chat/completions", {"messages": SAID, "chat_template_kwargs": {"messages": 1}}),
        ("/v1/rerank", {"query": "a", "documents": []}),
        ("/tokenize", {"prompt": "a"}),
    ]
    for model in (*TEMPLATES, "broken", "other"):
        for path, body in asked:
            text = server.post(path, **body, model=model).text
            assert "secret-place" not in text, text
            assert os.fspath(Path(sterna.__file__).parent) not in text
    for path in ("/v1/models", "/v1/models/all", "/metrics", "/openapi.json", "/tokenizer_info"):
        assert "secret-place" not in server.http.get(path).text
    broken = server.post("/v1/completions", model="broken", prompt="a")
    assert broken.status_code == 500
    assert "log has the reason" in broken.json()["error"]["message"]
    assert "hidden_size" in server.log  # for who may read it


def test_preflights(server: ServerProcess) -> None:
    """An allowed origin may send what it asks for: OpenAI's client in a browser has headers of its
    own."""
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-anything"
    headers = {
        "origin": "https://app.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": wanted,
    }
    answer = server.http.options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-headers"] == wanted
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    for more in ({"origin": "https://evil.example"}, {}):
        answer = server.http.options("/v1/models", headers={**headers, **more})
        assert ("access-control-allow-headers" in answer.headers) is not bool(more)
    odd = {**headers, "access-control-request-headers": 'a, "b"'}
    assert '"' not in server.http.options("/", headers=odd).headers["access-control-allow-headers"]


def test_the_log_says_why(server: ServerProcess) -> None:
    """Of what was refused; not what its client wrote."""
    said = [{"role": "user", "content": {"my": "secret"}}]
    answer = server.post("/v1/chat/completions", messages=said)
    line = logged(server, answer.headers["x-request-id"])
    assert "status=400" in line
    assert "error='messages[0]" in line
    assert "secret" not in line
    answer = server.post("/v1/completions", prompt="a", temperature=-1)
    line = logged(server, answer.headers["x-request-id"])
    assert "error='temperature: must" in line


def test_errors_name_fields_of_the_request(server: ServerProcess) -> None:
    """And no argument of the library."""
    schema = {"name": "a", "schema": {"$ref": "#"}}
    form = {"type": "json_schema", "json_schema": schema}
    chat = {"messages": SAID, "max_tokens": 9, "model": "all"}
    asked: list[tuple[str, dict[str, Any], str | None]] = [
        ("embeddings", {"input": "a"}, "model"),
        ("embeddings", {"input": "a", "pooling": "mode"}, "pooling"),
        ("embeddings", {"input": "x = 1\n" * 900, "pooling": "mean"}, "input"),
        ("chat/completions", {**chat, "chat_template_kwargs": {"messages": []}},
         "chat_template_kwargs"),
        ("chat/completions", {**chat, "response_format": form}, "response_format"),
        ("chat/completions", {**chat, "structured_outputs": {"json": schema["schema"]}},
         "structured_outputs"),
        ("responses", {"input": "a", "text": {"format": {**schema, "type": "json_schema"}}},
         "text.format"),
        ("messages", {**chat, "output_config": {"format": {**schema, "type": "json_schema"}}},
         None),
    ]  # fmt: skip
    for path, body, param in asked:
        for stream in (False, True):
            given = body if path == "embeddings" else {**body, "stream": stream}
            answer = server.post(f"/v1/{path}", **given)
            last = [line for line in answer.text.splitlines() if "error" in line][-1]
            error = json.loads(last[last.index("{") :])
            error = error.get("error", error)
            assert error.get("param") == param, (path, body, error)
            assert "constraint" not in error["message"]


def test_methods_of_a_path(server: ServerProcess) -> None:
    """405 names all of them; a path that nothing has is 404 with any method."""
    for method, path, allowed in (
        ("PUT", "/v1/responses/x", "DELETE, GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/conversations/x", "DELETE, GET, HEAD, POST"),
    ):
        answer = server.http.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    for method in ("GET", "POST", "DELETE"):
        answer = server.http.request(method, "/v1/nowhere")
        assert answer.status_code == 404
        assert "allow" not in answer.headers
