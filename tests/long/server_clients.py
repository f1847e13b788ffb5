"""Public clients against a server of SmolLM2 with a template of tools; see README.md.

Each asks a question, reads a stream, and has a tool called where it knows tools. What is not
installed is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, serving

sys.path.insert(0, str(Path(__file__).parents[1] / "real"))
from assets import smollm2

QUESTION = "What is the capital of France?"
SAID = [{"role": "user", "content": QUESTION}]
SAME: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
CALLING = {**SAME, "max_tokens": 64}  # a call that is cut has no arguments
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": CITY}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
#: Seconds that a program may take.
PROGRAM_S = 240
#: In the manner of Qwen 2.5's.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}</tools> <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}'
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("clients")
    (folder / "template.jinja").write_text(TEMPLATE)
    command = ["gguf-new-metadata", "--chat-template-file", str(folder / "template.jinja")]
    model = folder / "smol.gguf"
    subprocess.run([*command, str(smollm2()), str(model)], check=True, capture_output=True)
    with serving(folder, str(model), "--served-name", "smol") as running:
        yield running


@pytest.fixture(scope="module")
def expected(server: ServerProcess) -> str:
    answer = server.post("/v1/chat/completions", messages=SAID, **SAME).json()
    text: str = answer["choices"][0]["message"]["content"]
    assert "France" in text or "Paris" in text
    return text


def ran(server: ServerProcess, home: Path, *command: str, **variables: str) -> str:
    """What a program prints, with a home of its own."""
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    env = {
        **os.environ, "HOME": str(home), "OPENAI_API_KEY": "none", "NO_COLOR": "1",
        "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_BASE": f"{server.url}/v1", **variables,
    }  # fmt: skip
    done = subprocess.run(
        [program, *command[1:]], env=env, cwd=home, text=True, capture_output=True,
        stdin=subprocess.DEVNULL, timeout=PROGRAM_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def test_openai(server: ServerProcess, expected: str) -> None:
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


def test_openai_for_node(server: ServerProcess, expected: str, tmp_path: Path) -> None:
    """The folder with the packages is NODE_MODULES."""
    modules = os.environ.get("NODE_MODULES")
    if modules is None or not (Path(modules) / "openai").is_dir():
        pytest.skip("set NODE_MODULES to a folder with openai, ai and @ai-sdk/openai-compatible")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "ask.mjs").write_text(
        """
import OpenAI from "openai"
import { generateText, streamText, tool, jsonSchema } from "ai"
import { createOpenAICompatible } from "@ai-sdk/openai-compatible"
const [url, content] = process.argv.slice(2)
const parameters = JSON.parse(process.argv[4])
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 })
const messages = [{ role: "user", content }]
const asked = { model: "smol", messages, max_tokens: 24, temperature: 0 }
const found = []
found.push((await client.chat.completions.create(asked)).choices[0].message.content)
let text = ""
for await (const c of await client.chat.completions.create({ ...asked, stream: true }))
    text += c.choices[0].delta.content ?? ""
found.push(text)
const model = createOpenAICompatible({ name: "sterna", baseURL: url })("smol")
const plain = { model, prompt: content, maxOutputTokens: 24, temperature: 0 }
found.push((await generateText(plain)).text)
text = ""
for await (const part of streamText(plain).textStream) text += part
found.push(text)
const tools = { get_weather: tool({ inputSchema: jsonSchema(parameters) }) }
const called = await generateText({ ...plain, tools, toolChoice: "required", maxOutputTokens: 64 })
found.push(called.toolCalls[0].input.city)
console.log(JSON.stringify(found))
"""
    )
    url = f"{server.url}/v1"
    printed = ran(server, tmp_path, "node", "ask.mjs", url, QUESTION, json.dumps(CITY))
    *texts, city = json.loads(printed.splitlines()[-1])
    assert texts == [expected] * 4
    assert city in ("Paris", "Rome")


def test_anthropic(server: ServerProcess, expected: str) -> None:
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
    assert client.messages.count_tokens(model="smol", messages=SAID).input_tokens > 0
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(**asked, extra_body={"temperature": -1})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**asked, "model": "other"})


def test_litellm(server: ServerProcess, expected: str) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    litellm = pytest.importorskip("litellm")
    asked = {"messages": SAID, **SAME, "api_key": "none"}
    asked |= {"model": "openai/smol", "api_base": f"{server.url}/v1"}
    assert litellm.completion(**asked).choices[0].message.content == expected
    chunks = litellm.completion(**asked, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
    called = litellm.completion(**{**asked, **CALLING}, tools=TOOLS, tool_choice="required")
    assert called.choices[0].message.tool_calls[0].function.name == "get_weather"
    del asked["messages"]
    asked |= {"prompt": "a = ", "model": "text-completion-openai/smol"}
    assert litellm.text_completion(**asked).choices[0].text


def test_langchain(server: ServerProcess, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    asked = {"base_url": f"{server.url}/v1", "api_key": "none", "model": "smol"}
    model = langchain.ChatOpenAI(**asked, **SAME)
    assert model.invoke(QUESTION).content == expected
    assert "".join(c.content for c in model.stream(QUESTION)) == expected
    calling = langchain.ChatOpenAI(**asked, **CALLING).bind_tools(TOOLS, tool_choice="required")
    called = calling.invoke(QUESTION)
    assert called.tool_calls[0]["args"]["city"] in ("Paris", "Rome")


def test_llama_index(server: ServerProcess, expected: str) -> None:
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


def test_pydantic_ai(server: ServerProcess, expected: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic import BaseModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class City(BaseModel):
        city: str

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


def test_openai_agents(server: ServerProcess, expected: str) -> None:
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

    async def ask_both() -> None:
        await ask(agents.OpenAIChatCompletionsModel)
        await ask(agents.OpenAIResponsesModel)

    asyncio.run(ask_both())
    assert len(asked) == 2


def test_smolagents(server: ServerProcess, expected: str) -> None:
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


def test_instructor(server: ServerProcess) -> None:
    instructor = pytest.importorskip("instructor")
    import openai
    from pydantic import BaseModel

    class City(BaseModel):
        city: str
        country: str

    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client = instructor.from_openai(
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"), mode=mode
        )
        found = client.create(
            model="smol", messages=SAID, response_model=City, max_tokens=80, temperature=0
        )
        assert isinstance(found, City)


def test_llm(server: ServerProcess, expected: str, tmp_path: Path) -> None:
    """Simon Willison's program, by its file of models that are like OpenAI's."""
    models = [{"model_id": "smol", "model_name": "smol", "api_base": f"{server.url}/v1"}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
    options = ["-o", "temperature", "0", "-o", "max_tokens", "24"]
    for more in (["--no-stream"], []):
        said = ran(
            server, tmp_path, "llm", "-m", "smol", *more, *options, QUESTION,
            LLM_USER_PATH=str(tmp_path),
        )  # fmt: skip
        assert said.rstrip("\n") == expected


def test_aider(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('hello')\n")
    said = ran(
        server, tmp_path, "aider", "--model", "openai/smol", "--no-git", "--yes-always",
        "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-pretty",
        "--edit-format", "ask", "--message", QUESTION, "a.py",
    )  # fmt: skip
    assert "Tokens:" in said


def test_codex(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "short.md").write_text("You answer questions.")
    config = (
        'model = "smol"\nmodel_provider = "sterna"\n'
        f'model_instructions_file = "{tmp_path}/short.md"\n'
        f'[model_providers.sterna]\nname = "Sterna"\nbase_url = "{server.url}/v1"\n'
        'wire_api = "responses"\nrequest_max_retries = 0\n'
    )
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(config)
    command = ["codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", QUESTION]
    assert ran(server, tmp_path, *command).strip()


def test_claude_code(server: ServerProcess, tmp_path: Path) -> None:
    said = ran(
        server, tmp_path, "claude", "--bare", "-p", QUESTION, "--model", "smol",
        "--system-prompt", "You answer questions.", "--tools", "Read",
        ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_OUTPUT_TOKENS="64",
    )  # fmt: skip
    assert said.strip()


def test_guidellm(server: ServerProcess, tmp_path: Path) -> None:
    """It asks for the usage in every chunk."""
    (tmp_path / "questions.jsonl").write_text(3 * (json.dumps({"text": QUESTION}) + "\n"))
    said = ran(
        server, tmp_path, "guidellm", "run", "--profile", "kind=synchronous",
        "--backend", f"kind=openai_http,target={server.url},model=smol,max_tokens=8",
        "--constraint", "kind=max_requests,count=3",
        "--data", f"kind=json_file,path={tmp_path / 'questions.jsonl'}",
        "--disable-console-interactive", HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert "Benchmarking complete" in said


def test_inspect(server: ServerProcess, tmp_path: Path) -> None:
    """A task of one sample, graded by whether the answer has a word."""
    (tmp_path / "capital.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n"
        "@task\n"
        "def capital():\n"
        f"    return Task([Sample(input={QUESTION!r}, target='France')], scorer=includes())\n"
    )
    said = ran(
        server, tmp_path, "inspect", "eval", "capital.py", "--model", "openai-api/sterna/smol",
        "--temperature", "0", "--max-tokens", "24", "--display", "plain",
        STERNA_API_KEY="none", STERNA_BASE_URL=f"{server.url}/v1",
    )  # fmt: skip
    assert "accuracy" in said
