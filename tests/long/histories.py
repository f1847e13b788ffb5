"""Random histories of a scheduler, many of them: each answer is that of the request alone.

STERNA_HISTORIES says how many (10,000 take about 40 minutes on one core), over models of all
kinds, kernel units and numbers of threads. One that fails names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ISAS
from histories import Histories

from sterna import LLM

COUNT = int(os.environ.get("STERNA_HISTORIES", "10000"))
MODELS = (
    "bitnet-multiply", "qwen3_5", "mistral-window", "qwen2-windows", "llama-bf16", "llama-f32",
    "falcon-e",
)  # fmt: skip
CASES = [(name, isa, threads) for name in MODELS for isa in ISAS[-2:] for threads in (1, 2)]


@pytest.mark.parametrize(("name", "isa", "threads"), CASES)
def test_histories(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, isa: str, threads: int
) -> None:
    llm = LLM(checkpoint(name), threads=threads, isa=isa)
    histories = Histories(llm, 6 + 7 * llm.engine.kv_cache.pool.state_pages, tmp_path / "disk")
    first = 1000 * CASES.index((name, isa, threads))
    for seed in range(first, first + -(-COUNT // len(CASES))):
        try:
            histories.run(seed)
        except Exception as error:
            raise AssertionError(f"history {seed}: {error!r}") from error
    assert histories.answers > COUNT // len(CASES)
