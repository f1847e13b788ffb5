"""Templates by name, against published ones of the same family; templates given in place of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import assets
import pytest

from sterna import LLM, RequestError
from sterna.chat import ChatTemplate
from sterna.chat.named import NAMED

SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "And?"},
]
PUBLISHED = {
    "chatml": "Qwen-Qwen2.5-7B-Instruct",
    "gemma": "google-gemma-2-2b-it",
    "phi3": "microsoft-Phi-3.5-mini-instruct",
}
TOKENS: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_name_writes_what_its_family_publishes(name: str) -> None:
    path = assets.llama_cpp() / "models" / "templates" / f"{PUBLISHED[name]}.jinja"
    theirs, ours = (
        ChatTemplate.from_name_or_file(path, TOKENS),
        ChatTemplate.from_name_or_file(name, TOKENS),
    )
    for messages in (SAID[1:], SAID) if theirs.takes_system else (SAID[1:],):
        if name == "chatml" and messages is not SAID:
            continue  # theirs has a system prompt of its own
        assert ours.render(messages) == theirs.render(messages)


@pytest.mark.parametrize("name", NAMED)
def test_every_name_writes_all_messages(name: str) -> None:
    """And ends an answer with a mark of its own, or the model's."""
    made = ChatTemplate.from_name_or_file(name, TOKENS)
    text = made.render(SAID)
    assert all(message["content"] in text for message in SAID)
    assert made.after_answer()


def test_a_model_takes_another_template(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    llm = LLM(assets.smollm2(), threads=1, chat_template=file)
    assert llm.chat_prompt(SAID[1:]) == "[Hello][Hi.][And?]"
    with pytest.raises(RequestError, match="chatml"):
        LLM("nano", chat_template="nothing-such")
