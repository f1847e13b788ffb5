"""Some random histories of a scheduler, on each kind of model; tests/long/histories.py has more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from histories import Histories

from sterna import LLM


@pytest.mark.parametrize(
    "name",
    [
        "bitnet-multiply",
        "qwen3_5",
        "mamba2",
        "recurrent-gemma",
        "mistral-window",
        "qwen2-windows",
        "deepseek-v3.2",
    ],
)
def test_histories(checkpoint: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    llm = LLM(checkpoint(name), threads=1)
    pages = 6 + 7 * llm.engine.kv_cache.pool.state_pages
    histories = Histories(llm, pages, tmp_path / "disk")
    for seed in range(20):
        histories.run(seed)
    assert histories.answers > 40
    assert histories.preempted > 0 or llm.engine.kv_cache.needs_snapshots
    assert histories.cached > 500
    assert histories.accepted > 0
