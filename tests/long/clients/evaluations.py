"""Programs that measure and evaluate."""

from __future__ import annotations

import json
from pathlib import Path

from asking import QUESTION, client, ran
from recorder import Recorder


@client("guidellm", "guidellm")
def test_guidellm(server: Recorder, tmp_path: Path) -> None:
    """It asks for the usage in every chunk."""
    (tmp_path / "questions.jsonl").write_text(3 * (json.dumps({"text": QUESTION}) + "\n"))
    said = ran(
        server, tmp_path, "guidellm", "run", "--profile", "kind=synchronous",
        "--backend", f"kind=openai_http,target={server.url},model=smol,max_tokens=8",
        "--constraint", "kind=max_requests,count=3",
        "--data", f"kind=json_file,path={tmp_path / 'questions.jsonl'}",
        "--disable-console-interactive", HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert "Benchmarking complete" in said


@client("inspect-ai", "inspect-ai")
def test_inspect(server: Recorder, tmp_path: Path) -> None:
    """A task of one sample, graded by whether the answer has a word."""
    (tmp_path / "capital.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n"
        "@task\n"
        "def capital():\n"
        f"    return Task([Sample(input={QUESTION!r}, target='France')], scorer=includes())\n"
    )
    said = ran(
        server, tmp_path, "inspect", "eval", "capital.py", "--model", "openai-api/sterna/smol",
        "--temperature", "0", "--max-tokens", "24", "--display", "plain",
        STERNA_API_KEY="none", STERNA_BASE_URL=f"{server.url}/v1",
    )  # fmt: skip
    assert "accuracy" in said
