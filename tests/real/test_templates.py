"""The chat templates that llama.cpp publishes render as transformers renders them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from rendering import CONVERSATIONS, OPTIONS, load, oracle, rendered

from sterna.errors import RequestError

# Whether the name of a template's file is even, so that two workers share the work.
HALVES = (0, 1)
#: The ends of reasoning in families that a template has no switch for.
CLOSES = ("</think>", "<|END_THINKING|>", "<|close|>think<|sep|>", "[BEGIN FINAL RESPONSE]")


def closed(ours: str, text: str, options: dict[str, Any]) -> bool:
    """Whether ours has one thing more: an end of reasoning that a template has no switch for."""
    off = options.get("variables", {}).get("enable_thinking") is False
    return off and ours.startswith(text) and ours.removeprefix(text).strip() in CLOSES


@pytest.mark.parametrize("half", HALVES)
def test_same_text_as_transformers(llama_cpp: Path, tmp_path: Path, half: int) -> None:
    """Each template, conversation and set of options: one text, or refused by the template.

    A few render here alone: transformers' code refuses a last message that is to be continued and
    was said before, and what its `tojson` does not write.
    """
    paths = sorted((llama_cpp / "models" / "templates").glob("*.jinja"))[half::2]
    renderer, equal, refused, ours_alone = oracle(), 0, 0, 0
    wrong = []
    for path in paths:
        source = path.read_text(encoding="utf-8")
        template = load(tmp_path, source)
        for name, messages in CONVERSATIONS.items():
            for options in OPTIONS:
                try:
                    text = rendered(renderer, source, messages, options)
                except SecurityError:  # lists that grow, in Kimi K2's
                    template.render(messages, **options)
                    ours_alone += 1
                except TemplateError:
                    refused += 1
                    with pytest.raises(RequestError):
                        template.render(messages, **options)
                except (TypeError, ValueError):
                    with contextlib.suppress(RequestError):
                        template.render(messages, **options)
                        ours_alone += 1
                else:
                    equal += 1
                    ours = template.render(messages, **options)
                    if ours != text and not closed(ours, text, options):
                        wrong.append((path.name, name, options))
    print(len(paths), equal, refused, ours_alone)
    assert not wrong
    assert len(paths) >= 35
    assert equal > 1200
    assert ours_alone < 40
