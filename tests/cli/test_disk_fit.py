"""What `sterna info` says of models that do not fit, and what an answer says of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoint_factory import QWEN3_MOE, RECIPES, Recipe, write
from helpers import command

from sterna import LLM, loading, runtime
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import packed_bytes
from sterna.cli import disk_fit
from sterna.cli.disk_use import disk_use
from sterna.loading import weights_on_disk


def packed(folder: Path, recipe: Recipe = QWEN3_MOE) -> Path:
    """Make a packed folder."""
    source = write(folder / "source", recipe)
    loading.save(loading.load(source, format="q4_0", cached=False), folder / "packed")
    return folder / "packed"


@pytest.mark.usefixtures("little_bandwidth")
def test_info_of_a_model_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are those of the files; a budget is what a start without one would choose."""
    folder = packed(tmp_path)
    sizes = packed_bytes(Checkpoint.open(folder))
    (row,) = json.loads(command("info", str(folder), "--json").stdout)
    assert row["on_disk"] is None
    assert row["bytes_per_token"] == round(sizes.in_memory + sizes.on_disk * 3 / 7)
    assert row["kv_bytes_per_1000"] > 0
    for module in (runtime, weights_on_disk):
        monkeypatch.setattr(module, "available_bytes", lambda: sizes.all - 1)
    monkeypatch.setattr(weights_on_disk, "HEADROOM_BYTES", 0)
    (row,) = json.loads(command("info", str(folder), "--json").stdout)
    budget = weights_on_disk.default_weights_ram()
    assert row["on_disk"]["weights_ram"] == budget
    assert row["on_disk"]["cache_ram"] == budget - sizes.in_memory
    words = command("info", str(folder)).stdout
    assert ("experts stay on disk" if budget > sizes.in_memory else "too little memory") in words


@pytest.mark.usefixtures("little_bandwidth")
def test_info_of_a_dense_model_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token reads what memory lacks, so the disk bounds its speed."""
    folder = packed(tmp_path, RECIPES["llama-256"])
    sizes = packed_bytes(Checkpoint.open(folder))
    for module in (runtime, weights_on_disk):
        monkeypatch.setattr(module, "available_bytes", lambda: sizes.all - 1)
    monkeypatch.setattr(weights_on_disk, "HEADROOM_BYTES", 0)
    monkeypatch.setattr(disk_fit, "_disk_speed", lambda _: 1e-6)  # 1 kB a second
    (row,) = json.loads(command("info", str(folder), "--json").stdout)
    found = row["on_disk"]
    lacks = sizes.on_disk - found["cache_ram"]
    assert lacks > 0
    if found["tokens_per_s"] is not None:  # the memory's speed is known
        assert found["tokens_per_s"] == pytest.approx(1e3 / lacks, rel=0.01)
    words = command("info", str(folder)).stdout
    assert "layers stay on disk" in words
    assert "chosen alike" not in words


def test_an_answer_says_how_often_experts_were_in_memory(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    sizes = packed_bytes(Checkpoint.open(folder))
    assert disk_use(LLM(folder, threads=2, context=64)) == ""
    llm = LLM(folder, threads=2, context=64, weights_ram=sizes.all - 1)
    llm.generate([[1, 2, 3]], max_tokens=2)
    assert "weights from memory" in disk_use(llm)
    counts = llm.info()["weight_cache"]
    assert counts["bytes"] > 0
    assert counts["misses"] <= counts["parts"]
