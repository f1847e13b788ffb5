"""Templates in the published styles render as transformers' apply_chat_template renders them."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_factory import EOS
from published_templates import PUBLISHED
from rendering import BOT, CONVERSATIONS, OPTIONS, SYSTEM, USER, expected, load, oracle

from sterna.errors import RequestError


@pytest.mark.parametrize("name", PUBLISHED)
def test_same_text_as_transformers(tmp_path: Path, name: str) -> None:
    template = load(tmp_path, PUBLISHED[name])
    equal = 0
    for messages in CONVERSATIONS.values():
        for options in OPTIONS:
            text = expected(oracle(), PUBLISHED[name], messages, options)
            if text is None:
                with pytest.raises(RequestError):
                    template.render(messages, **options)
            else:
                assert template.render(messages, **options) == text, (messages, options)
                equal += 1
    assert equal >= 15  # of 48: some refuse tools or parts


def test_the_end_of_a_turn(tmp_path: Path) -> None:
    ends = {
        "llama3": "<|eot_id|>",
        "qwen3": "<|im_end|>",
        "chatml": "<|im_end|>",
        "bitnet": "<|eot_id|>",
        "mistral": EOS,
        "zephyr": EOS,
        "falcon3": EOS,
    }
    for name, end in ends.items():
        template = load(tmp_path, PUBLISHED[name])
        assert template.after_answer().startswith(end), name


def test_a_long_conversation_fits_the_sandbox(tmp_path: Path) -> None:
    """400 exchanges of a page each: what real conversations need is far from the limits."""
    messages = [SYSTEM, *[{**USER, "content": "word " * 500}, {**BOT, "content": "y " * 500}] * 400]
    for name, source in PUBLISHED.items():
        template = load(tmp_path, source)
        assert len(template.render(messages)) > (1_000_000 if name != "features" else 10_000)
