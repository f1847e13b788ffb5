"""Bounded reasoning: closed after so many tokens, by the options of Python and of each protocol."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, serving

import sterna
from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningMarks, ReasoningState
from sterna.errors import RequestError

SAID = [{"role": "user", "content": "def f(x):\n"}]
OPENED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}({{ m.reasoning_content }})"
    "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n"
    "{% if enable_thinking is false %}</think>{% endif %}{% endif %}"
)
FREE = OPENED.replace("<think>\n", "").replace("%}</think>{%", "%}<think></think>{%")
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant"
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1, context=512)


def template(source: str) -> ChatTemplate:
    return ChatTemplate.from_source(source, {})


def test_reasoning_end_after_so_many_tokens(llm: LLM) -> None:
    """With drafts and without, with a constraint and without."""
    llm.renderer.template = template(OPENED)
    free = llm.chat(SAID, max_tokens=40, temperature=0)
    assert (free.reasoning, free.content) == (free.text, "")
    for options in ({}, {"prediction": free.text}):  # type: dict[str, Any]
        done = llm.chat(SAID, max_tokens=40, temperature=0, reasoning_budget=7, **options)
        assert done.tokens[:7] == free.tokens[:7]
        assert done.text.startswith(f"{done.reasoning}</think>")
        assert done.content
    constraint = llm.constraints.choice(["yes"])
    for budget, count in ((3, 3), (100, 20)):
        done = llm.chat(
            SAID, max_tokens=40, temperature=0, constraint=constraint, reasoning_budget=budget
        )
        assert done.tokens[:count] == free.tokens[:count]
        assert done.content == "yes"
    with pytest.raises(RequestError, match="reasoning_budget"):
        llm.chat(SAID, reasoning_budget=-1)


def test_no_reasoning_need_no_budget(llm: LLM) -> None:
    """Answers without reasoning are those without a budget."""
    llm.renderer.template = template(FREE)
    free = llm.chat(SAID, max_tokens=12, temperature=0)
    assert llm.chat(SAID, max_tokens=12, temperature=0, reasoning_budget=1).text == free.text


def test_marks_of_families() -> None:
    """Each family's own, also those that a template makes of parts."""
    for text, opens in (
        ("[THINK]a[/THINK]", "[THINK]"), ("<seed:think>a</seed:think>", "<seed:think>"),
        ("<|channel>thought\\n<channel|>", "<|channel>thought"), ("</think>", "<think>"),
        ("{% set o = '<think:open' %}{{ o }}source></think:opensource>", "<think:opensource>"),
    ):  # fmt: skip
        marks = template(text).reasoning_marks
        assert marks
        assert marks.opens.strip() == opens
    assert template("plain").reasoning_marks is None
    mistral = template("[THINK]a[/THINK]").reasoning_marks
    assert ReasoningState.after_prompt("x[THINK]", mistral) is ReasoningState.OPENED
    assert ReasoningState.after_prompt("x", mistral) is ReasoningState.FREE
    assert ReasoningState.after_prompt("x[THINK]", None) is ReasoningState.CLOSED
    kept = ReasoningMarks("[T]", "[/T]", ("[R]",))
    assert kept.without("\n[T]\n[/T][R]\n<call>") == "<call>"
    assert kept.without(" <call>") == " <call>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("thinking")
    for name, source in (("opened", OPENED), ("harmony", HARMONY)):
        shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", root / name)
        (root / name / "chat_template.jinja").write_text(source)
    paths = [str(root / name) for name in ("opened", "harmony")]
    with serving(root, *paths, "--context", "512", "--reasoning-budget", "9") as running:
        yield running


def reasoning(server: ServerProcess, **fields: Any) -> str:
    body = {"model": "opened", "messages": SAID, "max_tokens": 60, "temperature": 0, **fields}
    answer = server.post("/v1/chat/completions", **body)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"].get("reasoning_content") or ""
    return text


def test_of_each_protocol(server: ServerProcess) -> None:
    """The server's own budget, and that of a request, under the names of other servers."""
    default, none = reasoning(server), reasoning(server, reasoning_budget_tokens=-1)
    assert len(default) < len(none)
    assert none.startswith(default.rstrip())
    for name in ("thinking_budget_tokens", "thinking_token_budget", "thinking_budget"):
        assert len(reasoning(server, **{name: 3})) < len(default)
    assert reasoning(server, thinking_budget=0) == ""
    assert reasoning(server, reasoning_effort="none") == ""
    body: dict[str, Any] = {
        "model": "opened", "messages": SAID, "max_tokens": 60, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 3},
    }  # fmt: skip
    first = server.post("/v1/messages", **body).json()["content"][0]
    assert first["type"] == "thinking"
    assert len(first["thinking"]) < len(default)
    options = {"num_predict": 60, "temperature": 0}
    asked: dict[str, Any] = {"model": "opened", "messages": SAID, "options": options}
    said = server.post("/api/chat", **asked, stream=False).json()["message"]
    assert said["thinking"] == default
    assert (
        "thinking"
        not in server.post("/api/chat", **asked, stream=False, think=False).json()["message"]
    )
    bad = server.post("/v1/chat/completions", model="opened", messages=SAID, thinking_budget=-2)
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "thinking_budget")


def test_reasoning_that_come_back(server: ServerProcess) -> None:
    """They are given to the template, which keeps or drops them."""
    said = [*SAID, {"role": "assistant", "content": "a", "reasoning_content": "why"}]
    prompt = server.post("/apply-template", model="opened", messages=said).json()["prompt"]
    assert "(why)a" in prompt


def test_an_answer_of_messages(server: ServerProcess) -> None:
    """A schema holds for the final message alone."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    body = {"model": "harmony", "messages": SAID, "max_tokens": 60, "response_format": form}
    message = server.post("/v1/chat/completions", **body).json()["choices"][0]["message"]
    assert message["content"] is not None


def test_stop_strings_and_counts(server: ServerProcess) -> None:
    """Stop strings end the content, not the reasoning; each protocol counts the tokens of both."""
    body = {"model": "opened", "max_tokens": 30, "temperature": 1, "seed": 3}
    chat = server.post("/v1/chat/completions", **body, messages=SAID).json()
    message, usage = chat["choices"][0]["message"], chat["usage"]
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 9 <= counted < usage["completion_tokens"]
    inside, behind = message["reasoning_content"][2:5], message["content"][3:6]
    assert inside not in message["content"]
    stopped = server.post("/v1/chat/completions", **body, messages=SAID, stop=[inside]).json()
    assert stopped["choices"][0]["message"] == message
    both = server.post("/v1/chat/completions", **body, messages=SAID, stop=[inside, behind])
    cut = both.json()["choices"][0]
    assert cut["message"]["reasoning_content"] == message["reasoning_content"]
    assert cut["message"]["content"] == message["content"].partition(behind)[0]
    assert cut["finish_reason"] == "stop"
    details = server.post("/v1/messages", **body, messages=SAID, stop_sequences=[inside]).json()
    assert details["content"][1]["text"] == message["content"]
    assert details["usage"]["output_tokens_details"] == {"thinking_tokens": counted}
    given = {"model": "opened", "input": SAID, "max_output_tokens": 30, "temperature": 1, "seed": 3}
    usage = server.post("/v1/responses", **given).json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": counted}
    streamed = server.post(
        "/v1/chat/completions", **body, messages=SAID, stream=True,
        stream_options={"include_usage": True},
    ).text  # fmt: skip
    assert f'"reasoning_tokens":{counted}' in streamed


def test_results_that_are_errors(server: ServerProcess) -> None:
    """Anthropic's `is_error` is in the prompt, for which no template has a field."""
    count = "/v1/messages/count_tokens"

    def tokens(**result: Any) -> int:
        call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
        given = {"type": "tool_result", "tool_use_id": "c", "content": "no such file", **result}
        talk = [
            *SAID,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [given]},
        ]
        answer = server.post(count, model="opened", messages=talk)
        assert answer.status_code == 200, answer.text
        found: int = answer.json()["input_tokens"]
        return found

    plain = tokens()
    assert tokens(is_error=False) == plain
    assert tokens(is_error=True) == tokens(content="Error: no such file") > plain
    assert tokens(is_error=True, content="Error: no such file") == tokens(is_error=True)
    blocks = [{"type": "text", "text": "no such file"}]
    assert tokens(is_error=True, content=blocks) == tokens(is_error=True)
    assert tokens(is_error=True, content=None) > tokens(content=None)
