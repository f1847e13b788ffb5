"""Fields of requests that are not read: what clients and other servers know of passes or is refused
by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from field_page import BODIES, PAGE, page, read_by
from server_process import ServerProcess, serving

from sterna import LLM
from sterna.server.unsupported_fields import PROTOCOLS, unsupported_fields

SAID = [{"role": "user", "content": "def f(x):\n"}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": SAID, "max_tokens": 2, "temperature": 0}),
    "completions": ("/v1/completions", {"prompt": "a", "max_tokens": 2, "temperature": 0}),
    "responses": ("/v1/responses", {"input": "a", "max_output_tokens": 2, "temperature": 0}),
    "messages": ("/v1/messages", {"messages": SAID, "max_tokens": 2, "temperature": 0}),
    "embeddings": ("/v1/embeddings", {"input": "a", "pooling": "mean"}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("fields"), "nano") as running:
        yield running


def told(answer: Any) -> Any:
    """The parts of an answer that a request decides."""
    body = answer.json()
    assert answer.status_code == 200, body
    named = {name: body.get(name) for name in ("choices", "output", "content", "data")}
    text = json.dumps(named)
    return text if "output" not in body else [part["content"][0]["text"] for part in body["output"]]


def typed_fields(kind: Any) -> set[str]:
    """The fields of a package's type of requests."""
    return {*kind.__required_keys__, *kind.__optional_keys__}


def test_fields_of_openai() -> None:
    """Each of the package's request types has its place: a new field is to get one."""
    chat = pytest.importorskip("openai.types.chat.completion_create_params")
    text = pytest.importorskip("openai.types.completion_create_params")
    responses = pytest.importorskip("openai.types.responses.response_create_params")
    embeddings = pytest.importorskip("openai.types.embedding_create_params")
    for protocol, kind in (
        ("chat", chat.CompletionCreateParamsStreaming),
        ("completions", text.CompletionCreateParamsStreaming),
        ("responses", responses.ResponseCreateParamsStreaming),
        ("embeddings", embeddings.EmbeddingCreateParams),
    ):
        assert typed_fields(kind) - {*read_by(protocol), *unsupported_fields(protocol)} == set(), (
            protocol
        )


def test_fields_of_anthropic() -> None:
    plain = pytest.importorskip("anthropic.types.message_create_params")
    beta = pytest.importorskip("anthropic.types.beta.message_create_params")
    for module in (plain, beta):
        fields = typed_fields(module.MessageCreateParamsStreaming)
        assert fields - {*read_by("messages"), *unsupported_fields("messages")} == set()


def test_no_field_has_two_places() -> None:
    """A field that an endpoint reads may have a row for all protocols, but none for its own."""
    for protocol in PROTOCOLS:
        for name in {*read_by(protocol)} & {*unsupported_fields(protocol)}:
            assert unsupported_fields(protocol)[name].protocols == (), (protocol, name)


def test_fields_of_the_other_protocols() -> None:
    """What one protocol of texts reads has its place in each of them."""
    texts = [protocol for protocol in PROTOCOLS if protocol != "embeddings"]
    known = {name for protocol in texts for name in read_by(protocol)}
    for protocol in texts:
        assert known - {*read_by(protocol), *unsupported_fields(protocol)} == set(), protocol


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text() == page(), "run python tests/support/field_page.py"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_passes_changes_nothing(server: ServerProcess, protocol: str) -> None:
    """All fields that pass, at once and with any value; and each of the others with a neutral one,
    which with another is refused by its name."""
    path, body = ASKED[protocol]
    expected = told(server.post(path, **body))
    rows = [
        row for row in unsupported_fields(protocol).values() if row.name not in read_by(protocol)
    ]
    passing = {row.name: {"any": ["thing"]} for row in rows if row.passes is None}
    neutral = {row.name: row.passes[-1] for row in rows if row.passes}
    assert told(server.post(path, **body, **passing, **neutral)) == expected
    nothing = {row.name: None for row in rows}
    assert told(server.post(path, **body, **nothing, of_no_table=None)) == expected
    for row in rows:
        if row.passes is not None:
            answer = server.post(path, **{**body, row.name: {"other": 17}})
            assert answer.status_code == 400, row
            message = answer.json()["error"]["message"]
            assert message.startswith(f"{row.name}: would change the answer"), message


def test_unknown_fields_are_left_out(server: ServerProcess, tmp_path: Path) -> None:
    """With a warning that names them, and a count; refused by a strict server."""
    path, body = ASKED["chat"]
    expected = told(server.post(path, **body))
    unknown = {"of_no_table": 1, "bad\r\nname": 2}
    nested = {"stream_options": {"include_usage": False, "of_none": 3}}
    answer = server.post(path, **body, **unknown, **nested)
    assert told(answer) == expected
    warning = answer.headers["x-sterna-warning"]
    for name in ("'of_no_table'", "bad\\r\\nname", "'stream_options.of_none'"):
        assert name in warning, warning
    many = {f"field{i}": i for i in range(1000)}
    assert "and 984 more" in server.post(path, **body, **many).headers["x-sterna-warning"]
    text = server.http.get("/metrics").text
    assert f'sterna_unknown_fields_total{{handler="{path}"}} 1003.0' in text
    assert server.post("/tokenize", prompt="a", user="me", of_none=1).status_code == 200
    with serving(tmp_path, "nano", "--strict-requests") as strict:
        for more, name in ((unknown, "of_no_table"), (nested, "stream_options.of_none")):
            error = strict.post(path, **body, **more).json()["error"]
            assert error["message"] == f"{name}: is not supported here"
            assert (error["param"], error["code"]) == (name, "unknown_parameter")


def test_values_that_mean_none(server: ServerProcess) -> None:
    """As vLLM and llama.cpp have them."""
    llm = LLM("nano", threads=1)
    greedy = llm.chat(SAID, max_tokens=8, temperature=0).text
    path, body = ASKED["chat"]
    body = {**body, "max_tokens": 8, "temperature": 1.5}
    answer = server.post(path, **body, top_p=0).json()
    assert answer["choices"][0]["message"]["content"] == greedy
    for more in ({"top_k": -1}, {"top_k": 0}):
        one = server.post(path, **body, seed=3, **more).json()["choices"][0]["message"]["content"]
        assert one == llm.chat(SAID, max_tokens=8, temperature=1.5, seed=3, top_k=0).text
    seeds = {server.post(path, **body, seed=-1).json()["receipt"]["seed"] for _ in range(3)}
    assert len(seeds) == 3
    for protocol, name in (
        ("chat", "max_tokens"),
        ("chat", "max_completion_tokens"),
        ("completions", "max_tokens"),
        ("responses", "max_output_tokens"),
        ("messages", "max_tokens"),
    ):
        path, body = ASKED[protocol]
        body = {**body, name: -1}
        if name == "max_completion_tokens":
            del body["max_tokens"]
        usage = server.post(path, **body, timeout=None).json()["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) > 20


def test_usage_of_every_chunk(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for protocol in ("chat", "completions"):
        path, body = ASKED[protocol]
        text = server.post(path, **{**body, "max_tokens": 6}, stream=True, stream_options=options)
        data = [line[6:] for line in text.text.splitlines() if line.startswith("data: {")]
        counts = [json.loads(line)["usage"] for line in data]
        told = [usage["completion_tokens"] for usage in counts if usage]
        assert told == sorted(told)
        assert {*range(1, 7)} <= {*told}


def test_openapi_has_them(server: ServerProcess) -> None:
    schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
    for protocol, body in BODIES.items():
        properties = schemas[body.__name__]["properties"]
        assert {*unsupported_fields(protocol)} <= {*properties}


def test_a_format_of_completions(server: ServerProcess) -> None:
    """A prompt's text follows response_format, as vLLM has it."""
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "maxItems": 2}
    form = {"type": "json_schema", "json_schema": {"name": "two", "schema": schema}}
    path, body = ASKED["completions"]
    asked = {**body, "max_tokens": 60, "response_format": form}
    assert {*json.loads(server.post(path, **asked).json()["choices"][0]["text"])} <= {"a", "b"}
    asked["response_format"] = {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}
    error = server.post(path, **asked).json()["error"]
    assert error["param"] == "response_format"


def test_variables_of_the_template(tmp_path: Path) -> None:
    """Every protocol passes them on, and what shows a prompt shows the one that is answered."""
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}{{ kind }}{{ reasoning_effort }}"
    )
    said = [{"role": "user", "content": "a"}]
    more: dict[str, Any] = {"chat_template_kwargs": {"kind": " of a kind, b"}}
    with serving(tmp_path, "nano", "--chat-template", str(template)) as server:

        def tokens(path: str, **body: Any) -> int:
            answer = server.post(path, **body).json()
            usage = answer.get("usage", answer)
            names = ("prompt_tokens", "input_tokens", "count")
            found: int = next(usage[name] for name in names if name in usage)
            return found + int(usage.get("cache_read_input_tokens") or 0)

        text = server.post("/apply-template", messages=said, reasoning_effort="low", **more)
        assert text.json()["prompt"] == "a of a kind, blow"
        effort = {"reasoning_effort": "low"}
        expected = tokens("/v1/chat/completions", messages=said, max_tokens=1, **effort, **more)
        assert expected > tokens("/v1/chat/completions", messages=said, max_tokens=1)
        assert expected == tokens("/tokenize", messages=said, **effort, **more)
        asked = {"input": "a", "max_output_tokens": 1, "reasoning": {"effort": "low"}}
        assert expected == tokens("/v1/responses", **asked, **more)
        config = {"messages": said, "output_config": {"effort": "low"}}
        assert expected == tokens("/v1/messages", **config, max_tokens=1, **more)
        assert expected == tokens("/v1/messages/count_tokens", **config, **more)


def test_a_choice_of_tools_in_ollamas_protocol(server: ServerProcess) -> None:
    """ollama's own package sends it, in OpenAI's form."""
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    functions = [{"name": name, "parameters": schema} for name in ("first", "second")]
    asked: dict[str, Any] = {
        "model": "nano", "messages": SAID, "stream": False, "options": {"num_predict": 60},
        "tools": [{"type": "function", "function": function} for function in functions],
    }  # fmt: skip
    chosen = {"type": "function", "function": {"name": "second"}}
    said = server.post("/api/chat", **asked, tool_choice=chosen).json()["message"]
    assert {call["function"]["name"] for call in said["tool_calls"]} == {"second"}
    assert (
        "tool_calls" not in server.post("/api/chat", **asked, tool_choice="none").json()["message"]
    )
    assert server.post("/api/chat", **asked, tool_choice="all").status_code == 400
