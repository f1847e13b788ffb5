"""Prefixes that are saved by name: restored with the bits of before, or refused with a reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure

from sterna import LLM
from sterna.engine import PAGE, PrefixCache
from sterna.engine.kv_cache.prefix_files import Prefix, restore_prefix, save_prefix
from sterna.errors import RequestError

OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 1.0, "seed": 5, "ignore_eos": True}
PROMPT = random.Random(3).choices(range(200), k=4 * PAGE + 9)


def cache_of(llm: LLM) -> PrefixCache:
    assert llm.prefix_cache is not None
    return llm.prefix_cache


def begun(folder: Path, disk: Path) -> tuple[LLM, Prefix, list[int]]:
    """An LLM that has answered the prompt, the prompt with its answer, and the answer."""
    llm = LLM(folder, threads=1, cache_disk=disk)
    tokens = llm.generate(PROMPT, **OPTIONS).tokens
    return llm, Prefix(np.array([*PROMPT, *tokens], np.int32), ""), tokens


@pytest.mark.parametrize("name", ["bitnet-multiply", "qwen3_5", "gemma3", "deepseek-v3.2"])
def test_another_process_has_them(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """Whole pages, with states and windows; and those that the disk has lost are written again."""
    folder = checkpoint(name)
    llm, prefix, tokens = begun(folder, tmp_path)
    cache = cache_of(llm)
    cache.disk.flush()
    lost = list(tmp_path.glob("??/*.page"))
    for path in lost[::2]:
        path.unlink()
    saved = save_prefix(cache, "me", "a.bin", prefix)
    assert saved.n_tokens == 4 * PAGE
    assert saved.nbytes >= sum(path.stat().st_size for path in lost)
    other = LLM(folder, threads=1, cache_disk=tmp_path)
    restored = restore_prefix(cache_of(other), "me", "a.bin")
    assert (restored.n_tokens, restored.nbytes) == (saved.n_tokens, saved.nbytes)
    assert restored.prefix.tokens.tolist() == PROMPT[: 4 * PAGE]
    for path in tmp_path.glob("??/*.page"):
        path.unlink()  # they are in memory
    done = other.generate(PROMPT, **OPTIONS)
    assert (done.tokens, done.stats.n_cached) == (tokens, 4 * PAGE)
    words = ["filename", "pages"]
    fresh = LLM(folder, threads=1, cache_disk=tmp_path)
    failure(lambda: restore_prefix(cache_of(fresh), "me", "a.bin"), RequestError, *words)


def test_saving_writes_what_others_removed(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk that takes nothing it ends, and has nothing."""
    from sterna.engine.kv_cache import page_file

    llm, prefix, _ = begun(checkpoint("bitnet-multiply"), tmp_path)
    cache = cache_of(llm)
    cache.disk.flush()
    for path in tmp_path.glob("??/*.page"):
        path.unlink()
    assert save_prefix(cache, "me", "a", prefix).n_tokens == 4 * PAGE
    for path in tmp_path.glob("??/*.page"):
        path.unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_file.PageFiles, "write", full)
    assert cache.save(*prefix)[0] == 0


def test_forgetting(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Pages of one prefix alone; others keep what they share."""
    llm, prefix, _ = begun(checkpoint("bitnet-multiply"), tmp_path)
    other = [*PROMPT[: 2 * PAGE], *range(2 * PAGE)]
    llm.generate(other, **OPTIONS)
    cache = cache_of(llm)
    assert cache.forget(*prefix) > 2 * PAGE
    assert cache.known(prefix.tokens) == cache.known(np.array(other, np.int32)[: 2 * PAGE + 1])
    assert cache.known(np.array([*other, 1], np.int32)) == 4 * PAGE
    assert cache.forget(*prefix) == 0


def test_what_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Files of another owner or model, or damaged; images; a cache without a disk."""
    llm, prefix, _ = begun(checkpoint("bitnet-multiply"), tmp_path)
    cache = cache_of(llm)
    save_prefix(cache, "me", "a", prefix)
    failure(lambda: restore_prefix(cache, "you", "a"), RequestError, "filename", "saved")
    other = LLM(checkpoint("llama-bf16"), threads=1, cache_disk=tmp_path)
    failure(lambda: restore_prefix(cache_of(other), "me", "a"), RequestError, "of this model")
    (file,) = (tmp_path / "slots").glob("*/a")
    good = file.read_bytes()
    for at in (0, 20, 60, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        failure(lambda: restore_prefix(cache, "me", "a"), RequestError, "damaged")
    for size in (0, 1, 31, 100, len(good) - 1):
        file.write_bytes(good[:size])
        failure(lambda: restore_prefix(cache, "me", "a"), RequestError, "damaged")
    seen = Prefix(np.array([1, -1, 2], np.int32), "")
    failure(lambda: save_prefix(cache, "me", "a", seen), RequestError, "images")
    plain = cache_of(LLM(checkpoint("bitnet-multiply"), threads=1))
    failure(lambda: save_prefix(plain, "me", "a", prefix), RequestError, "cache_disk")
