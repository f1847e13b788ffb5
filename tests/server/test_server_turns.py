"""A conversation over HTTP finds in the cache what the library finds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import saved_models
from model_configs import MODELS
from server_process import serving

from sterna import LLM

#: The generation prompt has text that history lacks, as in templates of models that reason.
TEMPLATE = (
    "{% for m in messages %}<{{m.role}}>{{m.content}}</{{m.role}}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>[think: none, closed at once][/think]{% endif %}"
)
OPTIONS: dict[str, Any] = {"max_tokens": 2, "temperature": 0}


def turns() -> Iterator[list[dict[str, str]]]:
    messages: list[dict[str, str]] = []
    for i in range(4):
        messages = [*messages, {"role": "user", "content": f"turn {i} " + "x" * 90}]
        yield messages
        messages = [*messages, {"role": "assistant", "content": "fine " + "y" * 30}]


@pytest.mark.parametrize("name", ["lfm2", "qwen3.5"])
def test_turns_of_a_hybrid(name: str, tmp_path: Path) -> None:
    """Its states can go back only to snapshots, which both take at the end of the user's turn."""
    folder, spec = tmp_path / "model", MODELS[name]
    config = {**spec.config, "max_position_embeddings": 1024}
    saved_models.write(folder, replace(spec, config=config))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    llm = LLM(folder, cache=False, threads=1)
    here = [llm.chat(messages, **OPTIONS).stats.n_cached for messages in turns()]
    assert here == sorted(here)
    assert here[1] > 90  # the first turn
    with serving(tmp_path, str(folder)) as server:
        there = [
            server.post("/v1/chat/completions", messages=messages, **OPTIONS).json()["usage"]
            for messages in turns()
        ]
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in there] == here
