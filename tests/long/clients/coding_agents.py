"""Coding agents and chat programs as they are, with their own prompts and tools; see ../README.md.

The model gets their texts shortened, and is made to call one tool, because it is small.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asking import QUESTION, client, ran
from recorder import Recorder

READ = "Read notes.txt"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a file to read."""
    (tmp_path / "notes.txt").write_text("hello\n")
    return tmp_path


def called(server: Recorder) -> bool:
    """Whether the result of the call came back."""
    last = json.dumps([exchange.body for exchange in server.exchanges[-2:]])
    return server.calls == [] and ("hello" in last or "notes.txt" in last)


@client("Codex CLI", "@openai/codex")
def test_codex(server: Recorder, home: Path) -> None:
    config = (
        'model = "smol"\nmodel_provider = "sterna"\n'
        f'[model_providers.sterna]\nname = "Sterna"\nbase_url = "{server.url}/v1"\n'
        'wire_api = "responses"\n'
    )
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(config)
    server.calls = [("exec_command", {"cmd": "cat notes.txt"})]
    said = ran(
        server, home, "codex", "exec", "--skip-git-repo-check", "--sandbox", "read-only", READ
    )
    assert "Done." in said
    assert called(server)


@client("Claude Code", "@anthropic-ai/claude-code")
def test_claude_code(server: Recorder, home: Path) -> None:
    server.calls = [("Read", {"file_path": "notes.txt"})]
    said = ran(
        server, home, "claude", "-p", READ, "--model", "smol", "--allowedTools", "Read",
        ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )  # fmt: skip
    assert "Done." in said
    assert called(server)


@client("opencode", "opencode-ai")
def test_opencode(server: Recorder, home: Path) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible", "name": "Sterna",
        "options": {"baseURL": f"{server.url}/v1"},
        "models": {"smol": {"name": "smol", "limit": {"context": 32768, "output": 4096}}},
    }  # fmt: skip
    config = {"provider": {"sterna": provider}, "model": "sterna/smol", "autoupdate": False}
    (home / "opencode.json").write_text(json.dumps(config))
    server.calls = [("read", {"filePath": "notes.txt"})]
    assert "Done." in ran(server, home, "opencode", "run", "-m", "sterna/smol", READ)
    assert called(server)


@client("qwen-code", "@qwen-code/qwen-code")
def test_qwen_code(server: Recorder, home: Path) -> None:
    server.calls = [("read_file", {"file_path": str(home / "notes.txt")})]
    said = ran(server, home, "qwen", "--auth-type", "openai", "-p", READ, OPENAI_MODEL="smol")
    assert "Done." in said
    assert called(server)


@client("Cline", "cline")
def test_cline(server: Recorder, home: Path) -> None:
    provider = ["-p", "openai-compatible", "-k", "none", "-m", "smol", "-b", f"{server.url}/v1"]
    ran(server, home, "cline", "auth", *provider)
    server.calls = [("read_files", {"files": [{"path": str(home / "notes.txt")}]})]
    said = ran(server, home, "cline", "-P", "openai-compatible", "--thinking", "medium", READ)
    assert "Done." in said
    assert called(server)


@client("Continue", "@continuedev/cli")
def test_continue(server: Recorder, home: Path) -> None:
    model = {
        "name": "smol", "provider": "openai", "model": "smol", "apiBase": f"{server.url}/v1",
        "apiKey": "none", "roles": ["chat", "edit", "apply"], "capabilities": ["tool_use"],
    }  # fmt: skip
    config = {"name": "Sterna", "version": "1.0.0", "schema": "v1", "models": [model]}
    (home / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    server.calls = [("Read", {"filepath": "notes.txt"})]
    assert "Done." in ran(server, home, "cn", "-p", READ, "--config", "config.yaml", "--auto")
    assert called(server)


@client("pi", "@earendil-works/pi-coding-agent")
def test_pi(server: Recorder, home: Path) -> None:
    provider = {
        "baseUrl": f"{server.url}/v1", "api": "openai-completions", "apiKey": "none",
        "models": [{"id": "smol", "reasoning": True}],
    }  # fmt: skip
    (home / ".pi" / "agent").mkdir(parents=True)
    models = home / ".pi" / "agent" / "models.json"
    models.write_text(json.dumps({"providers": {"sterna": provider}}))
    server.calls = [("read", {"path": "notes.txt"})]
    asked = ["-p", "--provider", "sterna", "--model", "smol", "--thinking", "low", READ]
    assert "Done." in ran(server, home, "pi", *asked, PI_OFFLINE="1")
    assert called(server)


@client("aider", "aider")
def test_aider(server: Recorder, home: Path) -> None:
    server.calls = []  # it has no tools
    (home / "a.py").write_text("print('hello')\n")
    said = ran(
        server, home, "aider", "--model", "openai/smol", "--no-git", "--yes-always",
        "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--no-pretty",
        "--message", "Say goodbye.", "a.py",
    )  # fmt: skip
    assert "Done." in said


@client("mini-swe-agent", "mini-swe-agent")
def test_mini_swe_agent(server: Recorder, home: Path) -> None:
    done = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    server.calls = [("bash", {"command": "cat notes.txt"}), ("bash", {"command": done})]
    ran(
        server, home, "mini", "-t", READ, "-y", "--exit-immediately", "-m", "openai/smol",
        "-o", str(home / "trajectory.json"), MSWEA_CONFIGURED="true",
        MSWEA_COST_TRACKING="ignore_errors",
    )  # fmt: skip
    assert called(server)


@client("llm", "llm")
def test_llm(server: Recorder, expected: str, home: Path) -> None:
    """Simon Willison's program, by its file of models that are like OpenAI's."""
    model = {
        "model_id": "smol", "model_name": "smol", "api_base": f"{server.url}/v1",
        "supports_tools": True, "supports_schema": True,
    }  # fmt: skip
    (home / "extra-openai-models.yaml").write_text(json.dumps([model]))
    options = ["-m", "smol", "-o", "temperature", "0", "-o", "max_tokens", "80"]
    user = {"LLM_USER_PATH": str(home)}
    for more in (["--no-stream"], []):
        assert ran(server, home, "llm", *options, *more, QUESTION, **user).rstrip() == expected
    city = json.loads(
        ran(server, home, "llm", *options, "--schema", "city, country", QUESTION, **user)
    )
    assert {"city", "country"} <= {*city}
    ran(server, home, "llm", *options, "-T", "llm_version", QUESTION, **user)
