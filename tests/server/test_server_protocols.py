"""Responses, messages, embeddings and rankings: other protocols over the same answers."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from server_process import ServerProcess, serving

import sterna
from sterna import LLM

#: Of a model with calls of tools, which nano's own does not have.
TEMPLATE = (
    "{{ bos_token }}{% for t in tools or [] %}# {{ t.function.name }}: <tool_call>\n{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}\n{% endfor %}"
)
SAID = [{"role": "user", "content": "def f(x):\n"}]
TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Rome"]},
            "days": {"type": "integer", "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}
TOOLS: Any = [{"type": "function", "function": TOOL}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tools"
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def server(
    model: Path, tmp_path_factory: pytest.TempPathFactory, checkpoint: Callable[[str], Path]
) -> Iterator[ServerProcess]:
    """Two models, one in memory at a time, by the names of their folders."""
    with serving(
        tmp_path_factory.mktemp("protocols"), str(model), "nano", "--max-loaded", "1"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def llm(model: Path) -> LLM:
    return LLM(model, threads=1)


def named_events(text: str) -> list[Any]:
    """The data of events, each of which has its type as its name."""
    found = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_logprobs_of_responses(client: openai.OpenAI) -> None:
    """Those of chat, in a whole answer and in a stream; without `include` there are none."""
    said: Any = SAID
    chat = client.chat.completions.create(
        model="tools", messages=said, max_tokens=9, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    expected = [one.model_dump() for one in logprobs.content or ()]
    asked: Any = {"model": "tools", "input": said, "max_output_tokens": 9, "temperature": 0}
    more: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}

    def of(response: Any) -> list[Any]:
        return [one.model_dump() for one in response.output[0].content[0].logprobs]

    assert of(client.responses.create(**asked)) == []
    assert of(client.responses.create(**asked, **more)) == expected
    *events, last = client.responses.create(**asked, **more, stream=True)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    tokens = [one.token for event in deltas for one in event.logprobs]
    assert tokens == [one["token"] for one in expected]
    assert of(last.response) == expected
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        client.responses.create(**{**asked, "top_logprobs": 21})


def test_messages(server: ServerProcess, llm: LLM) -> None:
    """Anthropic's: whole, in a stream, and counted before."""
    body = {"messages": SAID, "max_tokens": 12, "temperature": 0}
    expected = llm.chat(SAID, max_tokens=12, temperature=0)
    whole = server.post("/v1/messages", **body).json()
    assert whole["content"] == [{"type": "text", "text": expected.text}]
    assert whole["stop_reason"] == "max_tokens"
    assert whole["usage"]["output_tokens"] == 12
    count = server.post("/v1/messages/count_tokens", messages=SAID).json()["input_tokens"]
    assert count == expected.stats.n_prompt
    events = named_events(server.post("/v1/messages", **body, stream=True).text)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(deltas) == expected.text


def test_messages_with_system_and_blocks(server: ServerProcess, llm: LLM) -> None:
    expected = llm.chat([{"role": "system", "content": "# s"}, *SAID], max_tokens=4, temperature=0)
    blocks = [{"role": "user", "content": [{"type": "text", "text": SAID[0]["content"]}]}]
    whole = server.post(
        "/v1/messages", messages=blocks, system="# s", max_tokens=4, temperature=0
    ).json()
    assert whole["content"][0]["text"] == expected.text
    refused = server.post("/v1/messages", messages=SAID)
    assert refused.json() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens: must be given"},
    }


def test_responses(server: ServerProcess, llm: LLM, client: openai.OpenAI) -> None:
    """Whole and in a stream; going on with one is the whole conversation again."""
    asked: dict[str, Any] = {"model": "tools", "temperature": 0, "max_output_tokens": 8}
    expected = llm.chat(SAID, max_tokens=8, temperature=0)
    first = client.responses.create(input=SAID[0]["content"], **asked)
    assert first.output_text == expected.text
    assert first.status == first.output[-1].status == "incomplete"
    with client.responses.stream(input=SAID[0]["content"], **asked) as stream:
        events = list(stream)
    assert events[-1].response.output_text == expected.text
    assert [e.item.status for e in events if e.type == "response.output_item.done"] == [
        "incomplete"
    ]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    talk = [
        *SAID,
        {"role": "assistant", "content": expected.text},
        {"role": "user", "content": "x"},
    ]
    second = client.responses.create(input="x", previous_response_id=first.id, **asked)
    assert second.output_text == llm.chat(talk, max_tokens=8, temperature=0).text
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)
    unkept = client.responses.create(input="x", store=False, **asked)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="x", previous_response_id=unkept.id, **asked)


def test_responses_in_the_background(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tools", "input": "a = 1\n", "background": True}
    begun = client.responses.create(**asked)
    assert begun.status == "in_progress"
    assert client.responses.cancel(begun.id).status in ("cancelled", "completed", "incomplete")
    short = client.responses.create(**asked, max_output_tokens=4, temperature=0)
    while (now := client.responses.retrieve(short.id)).status == "in_progress":
        pass
    assert now.status == "incomplete"
    assert now.output_text


def test_several_models(server: ServerProcess, client: openai.OpenAI) -> None:
    """The name says which; one takes the place of the other; the first is the default."""
    assert [m.id for m in client.models.list().data] == ["tools", "nano"]
    for name in ("nano", "tools", "nano"):
        done = client.completions.create(model=name, prompt="a", max_tokens=1)
        assert done.model == name
        rows = server.http.get("/v1/models").json()["data"]
        assert {row["id"]: row["loaded"] for row in rows} == {
            n: n == name for n in ("tools", "nano")
        }
    assert server.post("/v1/completions", prompt="a", max_tokens=1).json()["model"] == "tools"


def test_embeddings(server: ServerProcess, llm: LLM, client: openai.OpenAI) -> None:
    """Floats and base64 of the same bits; a model without pooling says what it needs."""
    texts = ["import os", "class A:"]
    expected = llm.embed(texts, pooling="mean")
    for form in ("float", "base64"):
        body = {"input": texts, "pooling": "mean", "encoding_format": form}
        data = server.post("/v1/embeddings", **body).json()["data"]
        rows = [
            d["embedding"] if form == "float"
            else np.frombuffer(base64.b64decode(d["embedding"]), "<f4")
            for d in data
        ]  # fmt: skip
        np.testing.assert_array_equal(np.array(rows, np.float32), expected)
    with pytest.raises(openai.BadRequestError, match="pooling"):
        client.embeddings.create(model="tools", input="a")


@pytest.mark.parametrize("ids", [[5, 6], [[5, 6], [7]], ["a", [5]]])
def test_embeddings_of_token_ids(client: openai.OpenAI, ids: Any) -> None:
    """A client's own tokenizer made them, so they are refused, with what LangChain needs."""
    with pytest.raises(openai.BadRequestError, match=r"token ids.*check_embedding_ctx_length"):
        client.embeddings.create(model="tools", input=ids)


def test_a_byte_order_mark_is_passed_over(server: ServerProcess) -> None:
    """Encoders of other languages may put one before a body."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode("utf-8-sig")
    done = server.http.post("/v1/completions", content=body)
    assert done.status_code == 200


def test_ranking(server: ServerProcess, llm: LLM) -> None:
    """By the query's log-probability behind each text."""
    texts, query = ["import os", "def f():\n    pass"], "os.path"
    tokens = [llm.tokenizer.encode(text + "\n\n") for text in texts]
    after = llm.tokenizer.encode(query, add_special=False)
    expected = [float(llm.logprobs([*t, *after], len(t)).astype(float).mean()) for t in tokens]
    body = server.post("/v1/rerank", query=query, documents=texts).json()["results"]
    assert {r["index"]: r["relevance_score"] for r in body} == pytest.approx(
        dict(enumerate(expected))
    )
    assert body[0]["relevance_score"] >= body[1]["relevance_score"]
    data = server.post("/v1/score", text_1=query, text_2=texts).json()["data"]
    assert [d["score"] for d in data] == pytest.approx(expected)


def call_of(message: Any) -> dict[str, Any]:
    """The arguments of the one call, which follow the tool's schema."""
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "days"}
    assert arguments["city"] in ("Oslo", "Rome")
    assert arguments["days"] <= 9
    return arguments


def test_tools(client: openai.OpenAI) -> None:
    """A model that knows nothing of tools calls one by its schema where it must."""
    asked: dict[str, Any] = {"model": "tools", "messages": SAID, "tools": TOOLS, "seed": 1}
    asked |= {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    for temperature in (0, 1):
        done = client.chat.completions.create(**asked, temperature=temperature).choices[0]
        assert done.finish_reason == "tool_calls"
        arguments = call_of(done.message)
        chunks = client.chat.completions.create(**asked, temperature=temperature, stream=True)
        texts, names = [], []
        for chunk in chunks:
            for call in chunk.choices[0].delta.tool_calls or ():
                names += [call.function.name] if call.id else []
                texts += [call.function.arguments] if call.function.arguments else []
        assert names == ["get_weather"]
        assert json.loads("".join(texts)) == arguments
        assert len(texts) > 2  # as they come
        with client.chat.completions.stream(**asked, temperature=temperature) as stream:
            pieces = [e.arguments_delta for e in stream if "arguments.delta" in e.type]
            (call,) = stream.get_final_completion().choices[0].message.tool_calls
        assert [piece for piece in pieces if piece] == texts
        assert json.loads(call.function.arguments) == arguments


def test_a_call_that_is_cut(server: ServerProcess, client: openai.OpenAI) -> None:
    """Its start is there, and the reason is the length."""
    asked: dict[str, Any] = {"messages": SAID, "tools": TOOLS, "tool_choice": "required"}
    asked["parallel_tool_calls"] = False
    (whole,) = client.chat.completions.create(model="tools", **asked, seed=1).choices
    assert whole.finish_reason == "tool_calls"
    for most in range(200):
        (cut,) = client.chat.completions.create(
            model="tools", **asked, seed=1, max_tokens=most + 1
        ).choices
        if cut.message.tool_calls and cut.message.tool_calls[0].function.arguments:
            break
    arguments = whole.message.tool_calls[0].function.arguments
    assert arguments.startswith(cut.message.tool_calls[0].function.arguments)
    assert cut.finish_reason == "length"
    tool = {"name": "get_weather", "input_schema": TOOL["parameters"], "strict": True}
    body = {"messages": SAID, "tools": [tool], "tool_choice": {"type": "any"}, "seed": 1}
    said = server.post("/v1/messages", **body, max_tokens=most + 1).json()
    assert said["content"][0]["input"] == {}
    assert said["stop_reason"] == "max_tokens"


def test_tools_in_other_protocols(server: ServerProcess, client: openai.OpenAI) -> None:
    flat = {"type": "function", **TOOL}
    asked: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    (item,) = client.responses.create(model="tools", input="x", tools=[flat], **asked).output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["city"] in ("Oslo", "Rome")
    tool = {"name": "get_weather", "input_schema": TOOL["parameters"], "strict": True}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    body = {"messages": SAID, "tools": [tool], "tool_choice": choice, "max_tokens": 300}
    (block,) = server.post("/v1/messages", **body).json()["content"]
    assert block["input"]["city"] in ("Oslo", "Rome")
    events = named_events(server.post("/v1/messages", **body, stream=True).text)
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    deltas = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert len(deltas) > 2
    assert json.loads("".join(deltas))["city"] in ("Oslo", "Rome")
    with client.responses.stream(model="tools", input="x", tools=[flat], **asked) as stream:
        pieces = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        (item,) = stream.get_final_response().output
    assert len(pieces) > 2
    assert item.arguments == "".join(pieces)


def test_schemas(server: ServerProcess, client: openai.OpenAI) -> None:
    """An accepted field is enforced; a field that cannot be enforced is refused by name."""
    schema = {
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 99}},
        "required": ["a"], "additionalProperties": False,
    }  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    for seed in range(5):
        done = client.chat.completions.create(
            model="tools", messages=SAID, response_format=form, seed=seed, temperature=1  # type: ignore
        )  # fmt: skip
        value = json.loads(done.choices[0].message.content)
        assert list(value) == ["a"]
        assert value["a"] <= 99
    chosen = server.post("/v1/completions", prompt="a", structured_outputs={"choice": ["x1", "y2"]})
    assert chosen.json()["choices"][0]["text"] in ("x1", "y2")
    form["json_schema"]["schema"] = {"type": "object", "unevaluatedProperties": {"type": "null"}}
    refused = server.post("/v1/chat/completions", messages=SAID, response_format=form)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "response_format"


def test_schemas_that_are_relaxed(server: ServerProcess) -> None:
    """With strict: false, as strict=False does; without it the schema is refused."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}
    for strict, status in ((False, 200), (True, 400), (None, 400)):
        named: dict[str, Any] = {"name": "a", "schema": schema}
        if strict is not None:
            named["strict"] = strict
        form = {"type": "json_schema", "json_schema": named}
        said = server.post("/v1/chat/completions", messages=SAID, response_format=form)
        assert said.status_code == status, said.text
        assert (status == 200) or "strict: false" in said.json()["error"]["message"]
        if status == 200:
            assert len(json.loads(said.json()["choices"][0]["message"]["content"])) <= 2


def test_a_template_of_a_request(model: Path, server: ServerProcess, tmp_path: Path) -> None:
    """Refused, unless the server trusts requests; then the answer is the one with this template."""
    template = "{% for m in messages %}{{ m.content }}<eos>{% endfor %}# "
    refused = server.post("/v1/chat/completions", messages=SAID, chat_template=template)
    assert refused.status_code == 400
    assert "--trust-request-chat-template" in refused.json()["error"]["message"]
    with serving(
        tmp_path, str(model), "--trust-request-chat-template", "--chat-template", "chatml"
    ) as trusting:
        own = trusting.post("/apply-template", messages=SAID).json()["prompt"]
        assert own.startswith("<|im_start|>user")
        asked: dict[str, Any] = {"messages": SAID, "chat_template": template}
        written = trusting.post("/apply-template", **asked).json()["prompt"]
        assert written == SAID[0]["content"] + "<eos># "
        said = trusting.post("/v1/chat/completions", **asked, max_tokens=4, temperature=0)
        assert said.status_code == 200
        broken = trusting.post("/v1/chat/completions", messages=SAID, chat_template="{% for %}")
        assert broken.status_code == 400
        assert broken.json()["error"]["param"] == "chat_template"
