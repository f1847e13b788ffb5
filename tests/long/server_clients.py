"""Clients that no other test needs; see README.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from server_process import ServerProcess, serving

SAID = [{"role": "user", "content": "def f(x):\n"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("clients"), "nano") as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> str:
    answer = server.post("/v1/chat/completions", messages=SAID, max_tokens=12, temperature=0)
    return answer.json()["choices"][0]["message"]["content"]


def test_anthropic(server: ServerProcess, expected: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    asked = {"model": "nano", "messages": SAID, "max_tokens": 12}
    done = client.messages.create(**asked, extra_body={"temperature": 0})
    assert done.content[0].text == expected
    with client.messages.stream(**asked, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == expected
        assert stream.get_final_message().usage.output_tokens == 12
    assert client.messages.count_tokens(model="nano", messages=SAID).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "other"})


def test_litellm(server: ServerProcess, expected: str) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm = pytest.importorskip("litellm")
    asked = {"messages": SAID, "max_tokens": 12, "temperature": 0, "api_key": "none"}
    asked |= {"model": "openai/nano", "api_base": f"{server.url}/v1"}
    assert litellm.completion(**asked).choices[0].message.content == expected
    chunks = litellm.completion(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
    del asked["messages"]
    asked |= {"prompt": "a = ", "model": "text-completion-openai/nano"}
    text = litellm.text_completion(**asked)
    assert text.choices[0].text


def test_langchain(server: ServerProcess, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="nano", max_tokens=12, temperature=0
    )
    assert model.invoke(SAID[0]["content"]).content == expected
    assert "".join(c.content for c in model.stream(SAID[0]["content"])) == expected
