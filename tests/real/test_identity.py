"""Real files: identity is the same from the file and from the packed cache, so pages are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from sterna import LLM
from sterna.llm import receipt

PROMPT = "The rules of the game are long and many, and nobody has read them all. " * 20


def test_the_second_start(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fingerprint, and the prefix that the first start has written is there.

    tests/graph/test_identity.py has other architectures, Gemma's among them.
    """
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    seen, cached, answers = [], [], []
    for _ in range(2):
        llm = LLM(smollm2, cache_disk=tmp_path / "prefixes")
        done = llm.generate(PROMPT, max_tokens=4, temperature=0)
        cached.append(done.stats.n_cached)
        answers.append(done.tokens)
        seen.append(receipt.fingerprint(llm))
        if llm.engine.model.store is not None:
            assert llm.engine.model.store.wait() is not None
        cache = llm.engine_loop.scheduler.cache
        assert cache is not None
        assert cache._disk is not None
        cache._disk.flush()
    assert seen[0] == seen[1]
    assert cached[0] == 0
    assert cached[1] >= 256
    assert answers[0] == answers[1]
