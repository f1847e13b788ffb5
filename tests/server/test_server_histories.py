"""What clients send back of earlier answers: references, refusals, messages without content."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from server_process import ServerProcess

from sterna.server.errors import ApiError
from sterna.server.response_store import ResponseStore

ASKED: dict[str, Any] = {"model": "nano", "temperature": 0}
QUESTION: dict[str, Any] = {"role": "user", "content": "def f(x):\n"}
NEXT: Any = {"role": "user", "content": "x"}
TOOL: dict[str, Any] = {"name": "look", "description": None, "parameters": None, "strict": None}


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def prompt_of(server: ServerProcess, *messages: dict[str, Any]) -> str:
    """The prompt that the server makes of messages."""
    answered = server.post("/apply-template", model="nano", messages=list(messages))
    assert answered.status_code == 200, answered.text
    return str(answered.json()["prompt"])


def test_items_by_reference(client: openai.OpenAI) -> None:
    """A client that relies on the store names items of earlier answers, with and without a type."""
    first = client.responses.create(input=[QUESTION], max_output_tokens=8, **ASKED)
    (item,) = first.output
    whole: Any = [QUESTION, item.model_dump(), NEXT]
    expected = client.responses.create(input=whole, max_output_tokens=8, **ASKED)
    counted = client.responses.input_tokens.count(model="nano", input=whole)
    for reference in ({"type": "item_reference", "id": item.id}, {"id": item.id}):
        talk: Any = [QUESTION, reference, NEXT]
        again = client.responses.create(input=talk, max_output_tokens=8, **ASKED)
        assert again.output_text == expected.output_text
        assert again.usage is not None
        assert again.usage.input_tokens == counted.input_tokens
        assert client.responses.input_tokens.count(model="nano", input=talk) == counted
    kept = client.responses.input_items.list(again.id, order="asc").data
    assert [kept[1].id, kept[1].type] == [item.id, "message"], "the item itself is stored"


def test_references_to_nothing(client: openai.OpenAI) -> None:
    """An item that is not stored, or of another key, is a 404 that says what to send."""
    unkept = client.responses.create(input="x", store=False, max_output_tokens=2, **ASKED)
    for id in (unkept.output[0].id, "msg_1", "rs_resp-0_0"):
        talk: Any = [{"type": "item_reference", "id": id}, NEXT]
        with pytest.raises(openai.NotFoundError, match=r"input\[0\]\.id: .*; send the item itself"):
            client.responses.create(input=talk, **ASKED)

    async def another_key() -> None:
        store = ResponseStore()
        store.put("resp-0", "a", [{"id": "msg_resp-0_0"}], {"id": "resp-0"})
        assert store.item("msg_resp-0_0", "a", "id")["id"] == "msg_resp-0_0"
        with pytest.raises(ApiError):
            store.item("msg_resp-0_0", "b", "id")

    asyncio.run(another_key())


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "No."),
        ({"content": None, "refusal": None, "tool_calls": []}, ""),
        ({"refusal": None, "annotations": None, "audio": None}, ""),
    ],
)
def test_answers_without_text(
    server: ServerProcess, client: openai.OpenAI, said: dict[str, Any], text: str
) -> None:
    """An answer that refused, or said nothing, does not stop the conversation."""
    answer, plain = {"role": "assistant", **said}, {"role": "assistant", "content": text}
    assert prompt_of(server, QUESTION, answer, NEXT) == prompt_of(server, QUESTION, plain, NEXT)
    talk: Any = [QUESTION, answer, NEXT]
    assert client.chat.completions.create(messages=talk, max_tokens=2, **ASKED).choices
    if isinstance(said.get("content"), list):
        item: Any = {"type": "message", "id": "msg_1", "status": "completed", **answer}
        talk[1] = item
        assert client.responses.create(input=talk, max_output_tokens=2, **ASKED).output


def test_calls_in_the_form_before_tools(server: ServerProcess) -> None:
    """`function_call` of old histories is the call of a tool."""
    function = {"name": "look", "arguments": '{"at": "x"}'}
    result = {"role": "function", "name": "look", "content": "y"}
    old = {"role": "assistant", "content": None, "function_call": function}
    call = {"type": "function", "function": function}
    new = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert prompt_of(server, QUESTION, old, result) == prompt_of(server, QUESTION, new, result)
    assert "look" in prompt_of(server, QUESTION, old, result)


def test_questions_without_text(server: ServerProcess) -> None:
    """Whoever asks must say something; the error names the place in the protocol's words."""
    for path, field, more in (
        ("/v1/chat/completions", "messages", {}),
        ("/v1/responses", "input", {"instructions": "i"}),
    ):
        talk = {field: [NEXT, {"role": "user", "content": None}], **more}
        error = server.post(path, model="nano", **talk).json()["error"]
        assert error["message"].startswith(f"{field}[1].content: must be a text or parts"), error
        assert error["param"] == f"{field}[1].content"
    error = server.post("/v1/responses", model="nano", input=[]).json()["error"]
    assert error["message"].startswith("input: must not be empty")


def test_nulls_of_tools(client: openai.OpenAI) -> None:
    """Clients that write every field of their types send null for what they have not."""
    chat: Any = [{"type": "function", "function": TOOL}]
    flat: Any = [{"type": "function", **TOOL}]
    bare: Any = [{"type": "function", "function": {"name": "look"}}]
    made = [
        client.chat.completions.create(messages=[NEXT], tools=tools, max_tokens=4, **ASKED)
        for tools in (chat, bare)
    ]
    sizes = [one.usage.prompt_tokens for one in made if one.usage]
    assert sizes[0] == sizes[1]
    assert made[0].choices[0].message.content == made[1].choices[0].message.content
    assert client.responses.create(input="x", tools=flat, max_output_tokens=4, **ASKED).output


def test_a_schema_next_to_json_object(client: openai.OpenAI) -> None:
    """llama.cpp's form of a schema is enforced, not left out."""
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    form: Any = {"type": "json_object", "schema": {**schema, "additionalProperties": False}}
    said = client.chat.completions.create(
        messages=[NEXT], response_format=form, max_tokens=64, **ASKED
    )
    assert "".join((said.choices[0].message.content or "").split()) == '{"a":7}'
    form = {"type": "json_object", "schema": "a"}
    with pytest.raises(openai.BadRequestError, match=r"response_format\.schema: must be a JSON"):
        client.chat.completions.create(messages=[NEXT], response_format=form, **ASKED)


def test_formats_that_are_no_objects(server: ServerProcess) -> None:
    """Such a format is the client's mistake, not the server's."""
    for given in ("json", ["x"], 5):
        answered = server.post("/v1/responses", model="nano", input="x", text={"format": given})
        assert answered.status_code == 400
        assert answered.json()["error"]["message"].startswith("text.format: must be an object")
