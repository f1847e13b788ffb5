"""Frameworks and packages as a user calls them: a question, a stream, a call, an object.

What is not installed is skipped; see ../README.md.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, Literal

import pytest
from asking import CALLING, CITY, FUNCTION, QUESTION, SAID, SAME, TOOLS, client
from pydantic import BaseModel
from recorder import Recorder

STRICT: Any = [{"type": "function", "function": {**FUNCTION, "strict": True}}]


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "Rome"]


@client("openai", "openai")
def test_openai(server: Recorder, expected: str) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked = {"model": "smol", "messages": SAID, **SAME}
    assert client.chat.completions.create(**asked).choices[0].message.content == expected
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
    asked |= CALLING
    forced = client.chat.completions.create(**asked, tools=TOOLS, tool_choice="required")
    (call,) = forced.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    own = {"type": "function", **FUNCTION, "strict": True}
    answer = client.responses.create(
        model="smol", input=QUESTION, tools=[own, {"type": "web_search"}], tool_choice="required",
        max_output_tokens=64,
    )  # fmt: skip
    assert answer.output[0].name == "get_weather"
    both = client.chat.completions.parse(**asked, tools=STRICT, response_format=City)
    assert both.choices[0].message.parsed or both.choices[0].message.tool_calls
    parsed = client.responses.parse(
        model="smol", input=QUESTION, text_format=City, max_output_tokens=64,
        reasoning={"effort": "low"},
    )  # fmt: skip
    assert parsed.output_parsed.city


@client("anthropic", "anthropic")
def test_anthropic(server: Recorder, expected: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    asked = {"model": "smol", "messages": SAID, "max_tokens": 24}
    greedy = {"temperature": 0}
    done = client.messages.create(**asked, extra_body=greedy)
    assert done.content[0].text == expected
    with client.messages.stream(**asked, extra_body=greedy) as stream:
        assert "".join(stream.text_stream) == expected
        assert stream.get_final_message().usage.output_tokens == done.usage.output_tokens
    tools = [
        {"name": "get_weather", "description": "The weather.", "input_schema": CITY},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    asked["max_tokens"] = 64
    called = client.messages.create(**asked, tools=tools, tool_choice={"type": "any"})
    assert called.stop_reason == "tool_use"
    assert called.content[-1].input["city"] in ("Paris", "Rome")
    form = {"type": "json_schema", "schema": CITY}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    formed = client.messages.create(
        model="smol", messages=SAID, max_tokens=2000, thinking=thinking,
        output_config={"format": form},
    )  # fmt: skip
    assert json.loads(formed.content[-1].text)["city"]
    assert client.messages.count_tokens(model="smol", messages=SAID).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "other"})


@client("litellm", "litellm")
def test_litellm(server: Recorder, expected: str) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm = pytest.importorskip("litellm")
    asked = {"messages": SAID, **SAME, "api_key": "none"}
    asked |= {"model": "openai/smol", "api_base": f"{server.url}/v1"}
    assert litellm.completion(**asked).choices[0].message.content == expected
    chunks = litellm.completion(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
    called = litellm.completion(**{**asked, **CALLING}, tools=TOOLS, tool_choice="required")
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    formed = litellm.completion(**asked, response_format=City, reasoning_effort="low")
    assert City.model_validate_json(formed.choices[0].message.content).city
    del asked["messages"]
    asked |= {"prompt": "a = ", "model": "text-completion-openai/smol"}
    assert litellm.text_completion(**asked).choices[0].text


@client("LangChain", "langchain-openai")
def test_langchain(server: Recorder, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    asked = {"base_url": f"{server.url}/v1", "api_key": "none", "model": "smol"}
    model = langchain.ChatOpenAI(**asked, **SAME)
    assert model.invoke(QUESTION).content == expected
    assert "".join(c.content for c in model.stream(QUESTION)) == expected
    calling = langchain.ChatOpenAI(**asked, **CALLING).bind_tools(TOOLS, tool_choice="required")
    called = calling.invoke(QUESTION)
    assert called.tool_calls[0]["args"]["city"] in ("Paris", "Rome")
    thinking = langchain.ChatOpenAI(**asked, **CALLING, reasoning_effort="low")
    for method in ("json_schema", "function_calling"):
        assert thinking.with_structured_output(City, method=method).invoke(QUESTION).city
    both = thinking.bind_tools([City], strict=True, response_format=City).invoke(QUESTION)
    assert both.tool_calls or City.model_validate_json(both.content)


@client("LlamaIndex", "llama-index-llms-openai-like")
def test_llama_index(server: Recorder, expected: str) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    model = like.OpenAILike(
        api_base=f"{server.url}/v1", api_key="none", model="smol", is_chat_model=True,
        is_function_calling_model=True, **SAME,
    )  # fmt: skip
    from llama_index.core.tools import FunctionTool

    def get_weather(city: str) -> str:
        return f"Sun in {city}"

    assert str(model.complete(QUESTION)) == expected
    assert [r.text for r in model.stream_complete(QUESTION)][-1] == expected
    tool = FunctionTool.from_defaults(get_weather)
    called = model.chat_with_tools([tool], user_msg=QUESTION, tool_required=True, max_tokens=64)
    assert model.get_tool_calls_from_response(called)[0].tool_name == "get_weather"


@client("pydantic-ai", "pydantic-ai-slim")
def test_pydantic_ai(server: Recorder, expected: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    model = OpenAIChatModel("smol", provider=provider, settings=SAME)
    assert pydantic_ai.Agent(model).run_sync(QUESTION).output == expected

    async def streamed() -> list[str]:
        async with pydantic_ai.Agent(model).run_stream(QUESTION) as result:
            return [text async for text in result.stream_text()]

    assert asyncio.run(streamed())[-1] == expected
    settings = {**SAME, "max_tokens": 60}
    agent = pydantic_ai.Agent(model, output_type=City, model_settings=settings)  # by a tool
    assert agent.run_sync(QUESTION).output.city
    native = pydantic_ai.NativeOutput(City)
    thinking = {**settings, "openai_reasoning_effort": "low"}
    agent = pydantic_ai.Agent(model, output_type=native, model_settings=thinking)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather."""
        return f"Sun in {city}"

    server.calls = [("get_weather", {"city": "Paris"})]
    assert agent.run_sync(QUESTION).output.city
    assert server.calls == []


@client("openai-agents", "openai-agents")
def test_openai_agents(server: Recorder, expected: str) -> None:
    agents = pytest.importorskip("agents")
    import openai

    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked: list[str] = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """The weather."""
        asked.append(city)
        return f"Sun in {city}"

    settings = agents.ModelSettings(temperature=0, max_tokens=24)
    forced = agents.ModelSettings(temperature=0, max_tokens=60, tool_choice="required")

    async def ask(kind: Any) -> None:
        model = kind(model="smol", openai_client=client)
        agent = agents.Agent(name="plain", model=model, model_settings=settings)
        assert (await agents.Runner.run(agent, QUESTION)).final_output == expected
        agent = agents.Agent(
            name="tools", model=model, model_settings=forced, tools=[get_weather],
            tool_use_behavior="stop_on_first_tool",
        )  # fmt: skip
        assert (await agents.Runner.run(agent, QUESTION)).final_output.startswith("Sun in")

        reasons = agents.ModelSettings(
            temperature=0, max_tokens=60, reasoning=openai.types.Reasoning(effort="low")
        )
        agent = agents.Agent(name="object", model=model, model_settings=reasons, output_type=City)
        assert (await agents.Runner.run(agent, QUESTION)).final_output.city
        streamed = agents.Runner.run_streamed(agent, QUESTION)
        assert [event async for event in streamed.stream_events()]

    async def ask_both() -> None:
        await ask(agents.OpenAIChatCompletionsModel)
        await ask(agents.OpenAIResponsesModel)

    asyncio.run(ask_both())
    assert len(asked) == 2


@client("smolagents", "smolagents")
def test_smolagents(server: Recorder, expected: str) -> None:
    smolagents = pytest.importorskip("smolagents")
    model = smolagents.OpenAIModel(
        model_id="smol", api_base=f"{server.url}/v1", api_key="none", **SAME
    )
    assert model.generate(SAID).content == expected
    assert "".join(d.content or "" for d in model.generate_stream(SAID)) == expected

    @smolagents.tool
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: Where.
        """
        return f"Sun in {city}"

    called = model.generate(SAID, tools_to_call_from=[get_weather], max_tokens=60)
    assert called.tool_calls[0].function.name == "get_weather"


@client("instructor", "instructor")
def test_instructor(server: Recorder) -> None:
    instructor = pytest.importorskip("instructor")
    import openai

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"), mode=mode
        )
        found = client.create(
            model="smol", messages=SAID, response_model=City, max_tokens=80, temperature=0
        )
        assert isinstance(found, City)
