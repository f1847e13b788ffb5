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


@client("lm-eval", "lm-eval")
def test_lm_eval(server: Recorder, tmp_path: Path) -> None:
    """A text that is generated, in a chat and not, and log-probabilities of two choices."""
    row = {"question": QUESTION, "choices": [" Paris", " Rome"], "answer": "France", "gold": 0}
    (tmp_path / "questions.json").write_text(json.dumps([row, row]))
    files = {"test": str(tmp_path / "questions.json")}
    task = {
        "dataset_path": "json", "dataset_kwargs": {"data_files": files}, "test_split": "test",
        "doc_to_text": "{{question}}",
    }  # fmt: skip
    said = {
        "output_type": "generate_until", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 24},
        "metric_list": [{"metric": "exact_match"}],
    }  # fmt: skip
    chosen = {
        "output_type": "multiple_choice", "doc_to_target": "gold",
        "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    for name, how in (("said", said), ("chosen", chosen)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **task, **how}))
    at = f"model=smol,max_retries=1,tokenizer_backend={{}},base_url={server.url}/v1/{{}}"
    for model, tasks, args in (
        ("local-chat-completions", "said", at.format("None", "chat/completions")),
        ("local-completions", "said,chosen", at.format("remote", "completions")),
    ):
        chat = ["--apply_chat_template"] if "chat" in model else []
        found = ran(
            server, tmp_path, "lm_eval", "run", "--model", model, "--model_args", args,
            "--tasks", *tasks.split(","), "--include_path", str(tmp_path), *chat,
            HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1",
        )  # fmt: skip
        assert all(name in found for name in tasks.split(","))
