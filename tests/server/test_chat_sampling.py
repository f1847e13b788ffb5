"""Sampling of chats where neither the request nor the model's files set a temperature."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, serving

import sterna
from sterna import LLM

SAID = [{"role": "user", "content": "import os, sys"}]
#: Each protocol's request for a short answer, besides the model.
CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 12},
    "/v1/responses": {"input": "import os, sys", "max_output_tokens": 12},
    "/v1/messages": {"messages": SAID, "max_tokens": 12},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """nano, whose files set a temperature, and `bare`, whose files do not."""
    folder = tmp_path_factory.mktemp("models") / "bare"
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder)
    (folder / "generation_config.json").unlink()
    with serving(tmp_path_factory.mktemp("sampling"), str(folder), "nano") as running:
        yield running


def sampling(server: ServerProcess, path: str, **body: Any) -> dict[str, Any]:
    answer = server.post(path, model="bare", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["receipt"]["sampling"]
    return found


@pytest.mark.parametrize("path", CHATS)
def test_a_chat_is_sampled(server: ServerProcess, path: str) -> None:
    """As `sterna chat` samples; a temperature of the request replaces all of it."""
    found = sampling(server, path, **CHATS[path])
    assert (found["temperature"], found["min_p"]) == (0.8, 0.05)
    found = sampling(server, path, **CHATS[path], temperature=0)
    assert (found["temperature"], found["min_p"]) == (0, 0)


def test_chat_with_other_options(server: ServerProcess) -> None:
    found = sampling(server, "/v1/chat/completions", messages=SAID, max_tokens=2, min_p=0.2)
    assert (found["temperature"], found["min_p"]) == (0.8, 0.2)


def test_the_models_own_come_first(server: ServerProcess) -> None:
    own = LLM("nano").defaults
    answer = server.post("/v1/chat/completions", model="nano", messages=SAID, max_tokens=2).json()
    assert answer["receipt"]["sampling"].items() >= own.items()
    metas = {row["id"]: row["meta"] for row in server.http.get("/v1/models").json()["data"]}
    assert metas["nano"]["chat_sampling"] == own
    assert metas["bare"]["sampling"] == {}
    assert metas["bare"]["chat_sampling"] == {"temperature": 0.8, "min_p": 0.05}


def test_another_answer_is_another_text(server: ServerProcess) -> None:
    """Unless it has the seed of the first; a completion without a temperature stays greedy."""
    asked = {"model": "bare", "messages": SAID, "max_tokens": 24}
    answers = [server.post("/v1/chat/completions", **asked).json() for _ in range(4)]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert len({*texts}) > 1
    seed = answers[0]["receipt"]["seed"]
    again = server.post("/v1/chat/completions", **asked, seed=seed).json()
    assert again["choices"][0]["message"]["content"] == texts[0]
    body = {"model": "bare", "prompt": "import os, sys", "max_tokens": 4}
    greedy = server.post("/v1/completions", **body).json()["receipt"]["sampling"]
    assert (greedy["temperature"], greedy["min_p"]) == (0, 0)


def test_ollamas_chat_is_sampled(server: ServerProcess) -> None:
    """Its answers have no receipt: several differ."""
    body = {"model": "bare", "messages": SAID, "stream": False, "options": {"num_predict": 24}}
    said = {server.post("/api/chat", **body).json()["message"]["content"] for _ in range(4)}
    assert len(said) > 1
