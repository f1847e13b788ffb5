"""Servers in front of the server: what they pass on of their own clients' requests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from asking import CALLING, QUESTION, SAID, SAME, TOOLS, client
from recorder import Recorder

START_S = 120.0


@contextmanager
def started(folder: Path, check: str, *command: str, **variables: str) -> Iterator[httpx.Client]:
    """A program that listens on the port in `{port}`, once a path of it answers."""
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    arguments = [argument.format(port=port) for argument in command[1:]]
    environment = {**os.environ, "HOME": str(folder), "PWD": str(folder), **variables}
    environment.pop("PYTHONPATH", None)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program, *arguments], env=environment, cwd=folder, stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as http:
            until = time.monotonic() + START_S
            while True:
                try:
                    if http.get(check).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.5)
            yield http
    finally:
        process.terminate()
        process.wait()


@client("litellm proxy", "litellm")
def test_litellm_proxy(server: Recorder, expected: str, tmp_path: Path) -> None:
    """Chat, streams, tools; and Anthropic's and OpenAI's newer protocol, which it translates."""
    command = ["litellm", "--host", "127.0.0.1", "--port", "{port}", "--model", "openai/smol"]
    api = ["--api_base", f"{server.url}/v1"]
    settings = {
        "OPENAI_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }  # fmt: skip
    with started(tmp_path, "/health/liveliness", *command, *api, **settings) as http:
        asked = {"model": "openai/smol", "messages": SAID, **SAME}
        answer = http.post("/v1/chat/completions", json=asked).json()
        assert answer["choices"][0]["message"]["content"] == expected
        options = {"stream": True, "stream_options": {"include_usage": True}}
        assert "[DONE]" in http.post("/v1/chat/completions", json={**asked, **options}).text
        forced = {**asked, **CALLING, "tools": TOOLS, "tool_choice": "required"}
        answer = http.post("/v1/chat/completions", json=forced).json()
        call = answer["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["name"] == "get_weather"
        said = http.post("/v1/messages", json=asked).json()
        assert said["content"][0]["text"] == expected
        body = {"model": "openai/smol", "input": QUESTION, "max_output_tokens": 24}
        assert http.post("/v1/responses", json=body).json()["output"]


@client("Open WebUI", "open-webui")
def test_open_webui(server: Recorder, expected: str, tmp_path: Path) -> None:
    """The list of models, chat, streams, tools, and the title that it asks for after an answer."""
    command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", "{port}"]
    settings = {
        "OPENAI_API_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none",
        "ENABLE_OLLAMA_API": "False", "WEBUI_AUTH": "False", "DATA_DIR": str(tmp_path),
        "WEBUI_SECRET_KEY": "none", "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1",
        "USE_SLIM_DOCKER": "true", "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
    }  # fmt: skip
    with started(tmp_path, "/health", *command, **settings) as http:
        user = http.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()
        http.headers["Authorization"] = f"Bearer {user['token']}"
        assert [model["id"] for model in http.get("/api/models").json()["data"]] == ["smol"]
        asked = {"model": "smol", "messages": SAID, **SAME}
        answer = http.post("/api/chat/completions", json={**asked, "stream": False}).json()
        assert answer["choices"][0]["message"]["content"] == expected
        options = {"stream": True, "stream_options": {"include_usage": True}}
        assert "[DONE]" in http.post("/api/chat/completions", json={**asked, **options}).text
        forced = {**asked, **CALLING, "tools": TOOLS, "tool_choice": "required", "stream": False}
        answer = http.post("/api/chat/completions", json=forced).json()
        call = answer["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["name"] == "get_weather"
        told = [*SAID, {"role": "assistant", "content": expected}]
        title = http.post(
            "/api/v1/tasks/title/completions", json={"model": "smol", "messages": told}
        )
        assert title.json()["choices"], title.text
