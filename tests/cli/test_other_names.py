"""What people type who know other tools: errors say Sterna's name for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import command, failed, failure

from sterna import LLM, RequestError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("chat smollm2", ("smollm2", "--model smollm2")),
        ("generate nano", ("nano", "--model nano")),
        ("serve --model nano", ("the model is an argument", "serve MODEL")),
        ("verify -m nano", ("the model is an argument", "verify MODEL")),
        ("serve --max-model-len 9", ("did you mean --context",)),
        ("generate --temp 1 x", ("did you mean --temperature",)),
        ("generate --n-predict 1 x", ("did you mean --max-tokens",)),
        ("generate --model smolm2 x", ("did you mean smollm2?",)),
    ],
)
def test_commands(line: str, words: tuple[str, ...]) -> None:
    failed(command(*line.split()), *words)


def test_a_file_as_a_message(tmp_path: Path) -> None:
    """A GGUF file or a model's folder is refused as a message; any other text is one."""
    file = tmp_path / "model.gguf"
    file.touch()
    failed(command("chat", str(file)), "is a model", "--model")
    assert command("generate", str(tmp_path), "--max-tokens", "1").exit_code == 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("n", "LLM.choices"),
        ("stream", "LLM.chat_stream"),
        ("max_new_tokens", "did you mean max_tokens"),
        ("temp", "did you mean temperature"),
        ("sampling_params", "second argument"),
    ],
)
def test_options_of_other_libraries(option: str, words: str) -> None:
    llm = LLM("nano")
    failure(lambda: llm.generate("a", **{option: 1}), RequestError, option, words)
