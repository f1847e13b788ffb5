"""What `sterna info` says of models of experts, and what an answer says of those on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_factory import QWEN3_MOE, write
from helpers import command

from sterna import LLM, loading, runtime
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import packed_bytes
from sterna.cli.expert_use import expert_use
from sterna.loading import experts_on_disk


def packed(folder: Path) -> Path:
    """Make a packed folder."""
    source = write(folder / "source", QWEN3_MOE)
    loading.save(loading.load(source, format="q4_0", cached=False), folder / "packed")
    return folder / "packed"


def test_info_of_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are those of the files; a budget is what a start without one would choose."""
    folder = packed(tmp_path)
    resident, experts = packed_bytes(Checkpoint.open(folder))
    (row,) = json.loads(command("info", str(folder), "--json").stdout)
    assert row["on_disk"] is None
    assert row["bytes_per_token"] == resident + round(experts * 3 / 7)
    assert row["kv_bytes_per_1000"] > 0
    for module in (runtime, experts_on_disk):
        monkeypatch.setattr(module, "available_bytes", lambda: resident + experts - 1)
    monkeypatch.setattr(experts_on_disk, "HEADROOM_BYTES", 0)
    (row,) = json.loads(command("info", str(folder), "--json").stdout)
    budget = experts_on_disk.default_weights_ram()
    assert row["on_disk"]["weights_ram"] == budget
    assert row["on_disk"]["expert_ram"] == budget - resident
    words = command("info", str(folder)).stdout
    assert ("experts stay on disk" if budget > resident else "too little memory") in words


def test_an_answer_says_how_often_experts_were_in_memory(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    resident, experts = packed_bytes(Checkpoint.open(folder))
    assert expert_use(LLM(folder, threads=2, context=64)) == ""
    llm = LLM(folder, threads=2, context=64, weights_ram=resident + experts - 1)
    llm.generate([[1, 2, 3]], max_tokens=2)
    assert "experts from memory" in expert_use(llm)
    counts = llm.info()["experts"]
    assert counts["bytes"] > 0
    assert counts["misses"] <= counts["units"]
