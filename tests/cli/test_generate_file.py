"""`sterna generate --file`: rows in the order of the lines, also of a run that was cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import command, failed

from sterna import LLM

LINES: list[dict[str, Any]] = [
    {"prompt": "def read(", "id": "a", "max_tokens": 30},
    {"prompt": "x = 1\n", "max_tokens": 2},
    {"prompt": [5, 6, 7], "temperature": 1.0, "seed": 4, "id": 7},
    {"prompt": "class A:", "stop": "\n"},
]
OPTIONS = ("--max-tokens", "9", "--threads", "1", "--temperature", "0")


def written(path: Path, *lines: object) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "\n")
    return str(path)


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def expected() -> list[dict[str, Any]]:
    llm, found = LLM("nano", threads=1), []
    for i, line in enumerate(LINES):
        options = {"max_tokens": 9, "temperature": 0} | line
        number, prompt = options.pop("id", None), options.pop("prompt")
        done = llm.generate(prompt, **options)
        row = {"index": i} | ({"id": number} if number is not None else {})
        found.append(row | {
            "text": done.text, "finish_reason": done.finish_reason,
            "prompt_tokens": done.stats.n_prompt, "generated_tokens": done.stats.n_generated,
        })  # fmt: skip
    return found


def test_rows_in_order(tmp_path: Path) -> None:
    """Each as alone; the options of a line count before those of the command."""
    file = written(tmp_path / "in.jsonl", *LINES)
    result = command("generate", "--file", file, *OPTIONS)
    assert rows(result.output) == expected()


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """Editors and shells on Windows write one."""
    file = tmp_path / "in.jsonl"
    written(file, *LINES)
    file.write_text(file.read_text("utf-8"), "utf-8-sig")
    result = command("generate", "--file", str(file), *OPTIONS)
    assert rows(result.output) == expected()


def test_rows_of_conversations_have_their_parts(tmp_path: Path) -> None:
    """Reasoning, content and calls, as `Completion` has them."""
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n"
        "{% if enable_thinking is false %}</think>{% endif %}"
    )
    asked = {"max_tokens": 30, "ignore_eos": True, "reasoning_budget": 5, "temperature": 0}
    messages = [{"role": "user", "content": "def f(x):"}]
    file = written(tmp_path / "in.jsonl", {"messages": messages, **asked})
    result = command("generate", "--file", file, "--chat-template", str(template), *OPTIONS)
    done = LLM("nano", threads=1, chat_template=str(template)).chat(messages, **asked)
    (row,) = rows(result.output)
    assert done.reasoning
    assert (row["text"], row["content"], row["reasoning"]) == (
        done.text, done.content, done.reasoning,
    )  # fmt: skip
    assert "tool_calls" not in row


@pytest.mark.parametrize("cut", [0, 1, 25, -3])
def test_a_run_that_was_cut_goes_on(tmp_path: Path, cut: int) -> None:
    """Whole rows stay, half of one goes, and the file is that of a run in one."""
    file, out = written(tmp_path / "in.jsonl", *LINES), tmp_path / "out.jsonl"
    command("generate", "--file", file, "--output", str(out), *OPTIONS)
    whole = out.read_bytes()
    assert rows(whole.decode()) == expected()
    out.write_bytes(whole[:cut] if cut else b"")
    command("generate", "--file", file, "--output", str(out), *OPTIONS)
    assert out.read_bytes() == whole
    command("generate", "--file", file, "--output", str(out), *OPTIONS)
    assert out.read_bytes() == whole


def test_lines_with_errors(tmp_path: Path) -> None:
    """They have a row each, the others are answered, and the command fails at the end."""
    wrong: list[object] = [
        {"prompt": ""}, 5, {"id": 1}, {"prompt": "a", "top_p": 7}, {"prompt": "a", "messages": []},
        {"messages": 7, "id": 6},
    ]  # fmt: skip
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    written(file, *LINES[:1], *wrong, *LINES[1:])
    file.write_text(file.read_text() + "{no json\n")
    result = command("generate", "--file", str(file), "--output", str(out), *OPTIONS)
    failed(result, f"{len(wrong) + 1} have errors")
    found = rows(out.read_text())
    assert [row["index"] for row in found] == list(range(len(LINES) + len(wrong) + 1))
    texts = [row["text"] for row in found if "text" in row]
    assert texts == [row["text"] for row in expected()]
    assert "top_p" in found[4]["error"]
    assert (found[3]["id"], found[6]["id"]) == (1, 6)
    assert "JSON" in found[-1]["error"]


def test_refusals(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", *LINES)
    for words in (("--output", "x", "prompt"), ("--file", file, "prompt")):
        result = command("generate", *words)
        assert (result.exit_code, "--file" in result.stderr) == (2, True)
    other = tmp_path / "other"
    other.write_text("mine\n")
    failed(command("generate", "--file", file, "--output", str(other), *OPTIONS), "rows")
    assert other.read_text() == "mine\n"
    missing = str(tmp_path / "no" / "out")
    failed(command("generate", "--file", file, "--output", missing, *OPTIONS), "output")
