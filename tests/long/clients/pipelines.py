"""Frameworks of pipelines and agents: a question, a stream, calls that are run, objects."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import pytest
from asking import CALLING, QUESTION, SAME, client
from pydantic import BaseModel
from recorder import Recorder


class City(BaseModel):
    """A city."""

    city: Literal["Paris", "Rome"]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sun in {city}"


@client("LangGraph", "langgraph", "langchain-openai")
def test_langgraph(server: Recorder) -> None:
    """An agent that runs a tool and answers with an object."""
    prebuilt = pytest.importorskip("langgraph.prebuilt")
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model="smol", **CALLING,
        reasoning_effort="low",
    )  # fmt: skip
    agent = prebuilt.create_react_agent(model, [get_weather], response_format=City)
    server.calls = [("get_weather", {"city": "Paris"})]
    asked = {"messages": [("user", QUESTION)]}
    done = agent.invoke(asked)
    assert done["structured_response"].city
    assert any(message.content == "Sun in Paris" for message in done["messages"])
    server.calls = [("get_weather", {"city": "Paris"})]
    assert [
        *prebuilt.create_react_agent(model, [get_weather]).stream(asked, stream_mode="messages")
    ]


@client("DSPy", "dspy")
def test_dspy(server: Recorder) -> None:
    dspy = pytest.importorskip("dspy")
    lm = dspy.LM(
        "openai/smol", api_base=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=80,
        cache=False, num_retries=0,
    )  # fmt: skip

    (text,) = lm(QUESTION, response_format=City)
    assert City.model_validate_json(text).city
    assert lm(QUESTION)


@client("Haystack", "haystack-ai")
def test_haystack(server: Recorder, expected: str) -> None:
    pytest.importorskip("haystack")
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    told: list[Any] = []
    said = [ChatMessage.from_user(QUESTION)]

    def generator(options: dict[str, Any]) -> Any:
        return OpenAIChatGenerator(
            Secret.from_token("none"), "smol", api_base_url=f"{server.url}/v1",
            generation_kwargs=dict(options),
        )  # fmt: skip

    model = generator(SAME)
    assert model.run(said)["replies"][0].text == expected
    model.run(said, streaming_callback=told.append)
    assert "".join(part.content for part in told) == expected
    model.run(said, generation_kwargs={"response_format": City})
    server.calls = [("get_weather", {"city": "Paris"})]
    agent = Agent(chat_generator=generator(CALLING), tools=[create_tool_from_function(get_weather)])
    assert agent.run(messages=said)["messages"][-1].text == "Done."


@client("Semantic Kernel", "semantic-kernel")
def test_semantic_kernel(server: Recorder) -> None:
    pytest.importorskip("semantic_kernel")
    import openai
    from semantic_kernel.agents import ChatCompletionAgent
    from semantic_kernel.connectors.ai.open_ai import (
        OpenAIChatCompletion,
        OpenAIChatPromptExecutionSettings,
    )
    from semantic_kernel.functions import KernelArguments, kernel_function

    class Weather:
        @kernel_function
        def get_weather(self, city: str) -> str:
            """The weather of a city."""
            return f"Sun in {city}"

    own = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    service = OpenAIChatCompletion(ai_model_id="smol", async_client=own)
    settings = OpenAIChatPromptExecutionSettings(max_tokens=60, response_format=City)

    async def ask() -> None:
        server.calls = [("Weather-get_weather", {"city": "Paris"})]
        agent = ChatCompletionAgent(service=service, plugins=[Weather()])
        assert str((await agent.get_response(QUESTION)).content) == "Done."
        assert server.calls == []
        assert [part async for part in agent.invoke_stream(QUESTION)]
        server.calls = None
        agent = ChatCompletionAgent(service=service, arguments=KernelArguments(settings))
        found = City.model_validate_json(str((await agent.get_response(QUESTION)).content))
        assert found.city

    asyncio.run(ask())


@client("Outlines", "outlines")
def test_outlines(server: Recorder, expected: str) -> None:
    outlines = pytest.importorskip("outlines")
    import openai

    own = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = outlines.from_openai(own, "smol")
    assert model(QUESTION, **SAME) == expected
    assert "".join(model.stream(QUESTION, **SAME)) == expected
    assert City.model_validate_json(model(QUESTION, City, max_tokens=60)).city


@client("CrewAI", "crewai")
def test_crewai(server: Recorder) -> None:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    crewai = pytest.importorskip("crewai")
    from crewai.tools import tool

    weather = tool("get_weather")(get_weather)
    llm = crewai.LLM(
        model="openai/smol", base_url=f"{server.url}/v1", api_key="none", temperature=0,
        max_tokens=80,
    )  # fmt: skip
    server.calls = [("get_weather", {"city": "Paris"})]
    agent = crewai.Agent(
        role="Guide", goal="Answer", backstory="Knows cities", llm=llm, tools=[weather], max_iter=3
    )
    task = crewai.Task(description=QUESTION, expected_output="a city", agent=agent)
    assert str(crewai.Crew(agents=[agent], tasks=[task]).kickoff())
    server.calls = None
    assert llm.call(QUESTION)


@client("Strands Agents", "strands-agents")
def test_strands(server: Recorder, expected: str) -> None:
    """It streams all answers."""
    strands = pytest.importorskip("strands")
    from strands.models.openai import OpenAIModel

    own = {"base_url": f"{server.url}/v1", "api_key": "none"}

    def agent(*, params: dict[str, Any] = SAME, **more: Any) -> Any:
        model = OpenAIModel(client_args=own, model_id="smol", params=params)
        return strands.Agent(model=model, callback_handler=None, **more)

    assert str(agent()(QUESTION)).rstrip("\n") == expected
    server.calls = [("get_weather", {"city": "Paris"})]
    assert str(agent(params=CALLING, tools=[strands.tool(get_weather)])(QUESTION)) == "Done.\n"
    assert server.calls == []
    server.calls = [("City", {"city": "Paris"})]  # the object is the call of a tool
    found = agent(params=CALLING)(QUESTION, structured_output_model=City)
    assert found.structured_output.city == "Paris"


@client("Agno", "agno")
def test_agno(server: Recorder, expected: str) -> None:
    pytest.importorskip("agno")
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    def agent(**more: Any) -> Any:
        model = OpenAILike(
            id="smol", base_url=f"{server.url}/v1", api_key="none", **more.pop("params", SAME)
        )
        return Agent(model=model, telemetry=False, **more)

    assert agent().run(QUESTION).content == expected
    assert "".join(part.content or "" for part in agent().run(QUESTION, stream=True)) == expected
    assert agent(params=CALLING, output_schema=City).run(QUESTION).content.city
    server.calls = [("get_weather", {"city": "Paris"})]
    assert agent(params=CALLING, tools=[get_weather]).run(QUESTION).content == "Done."
    assert server.calls == []
