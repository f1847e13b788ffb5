"""Pages on disk: a new process has the bits of one that computed them; what is damaged, foreign or
of another model is a miss; the folder stays within its budget, and several may write it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ISAS, failure
from waits import HANGS_S

import sterna
from sterna import LLM, Completion
from sterna.engine import PAGE
from sterna.engine.kv_cache import page_file
from sterna.engine.kv_cache.disk_cache import PrefixDiskCache
from sterna.errors import RequestError

OPTIONS: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 5, "logprobs": 2}
PROMPT = random.Random(3).choices(range(200), k=4 * PAGE + 9)


def disk_of(llm: LLM) -> PrefixDiskCache:
    cache = llm.engine_loop.scheduler.cache
    assert cache is not None
    assert cache._disk is not None
    return cache._disk


def answer(
    folder: Path, disk: Path | None, prompt: list[int] = PROMPT, **options: Any
) -> Completion:
    """Of a new LLM, once all that it keeps is written."""
    llm = LLM(folder, threads=1, cache_disk=disk, **options)
    done = llm.generate(prompt, **OPTIONS)
    if disk:
        disk_of(llm).flush()
        assert not disk_of(llm)._waiting
    return done


def facts(done: Completion) -> tuple[Any, ...]:
    return done.tokens, done.logprobs


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


#: Models with states of recurrent layers, which cannot go back.
RECURRENT = ("qwen3_5", "lfm2", "granite-hybrid", "mamba2")


@pytest.mark.parametrize(
    "name",
    ["bitnet-multiply", *RECURRENT, "minicpm3", "deepseek-v3.2", "llama-bf16", "gemma3"],
)
@pytest.mark.parametrize("kv_dtype", ["i16", "i8", "k8v4"])
def test_after_a_restart(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, kv_dtype: str
) -> None:
    """The same tokens and log-probabilities, from the pages of before; on other units, too."""
    folder, options = checkpoint(name), {"kv_dtype": kv_dtype}
    expected = facts(answer(folder, None, **options))
    first = answer(folder, tmp_path, **options)
    assert first.stats.n_cached == 0
    assert len(files(tmp_path)) == 4
    for isa in ISAS[-2:] if name == "bitnet-multiply" else [None]:
        again = answer(folder, tmp_path, **options, isa=isa)
        assert again.stats.n_cached == 4 * PAGE
        assert facts(first) == facts(again) == expected
    longer = [*PROMPT[: 3 * PAGE], 7, *PROMPT]
    done = answer(folder, tmp_path, longer, **options)
    assert done.stats.n_cached == (0 if name in RECURRENT else 3 * PAGE)
    assert facts(done) == facts(answer(folder, None, longer, **options))


def test_what_is_not_whole_is_a_miss(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A changed byte anywhere, a cut, a longer file, another's, a link: never an answer."""
    folder, choose = checkpoint("bitnet-multiply"), random.Random(1)
    expected = facts(answer(folder, tmp_path))
    good = {path: path.read_bytes() for path in files(tmp_path)}
    size = len(next(iter(good.values())))
    places = [
        0,
        17,
        40,
        48,
        49,
        60,
        size - 33,
        size - 1,
        *(choose.randrange(size) for _ in range(8)),
    ]
    llm = LLM(folder, threads=1, cache_disk=tmp_path)
    cache = llm.engine_loop.scheduler.cache
    assert cache is not None

    def check() -> None:
        """Nothing is found; and each that is found to be damaged is written again."""
        for turn in range(5):
            cache.clear()
            done = llm.generate(PROMPT, **OPTIONS)
            assert facts(done) == expected
            assert done.stats.n_cached == turn * PAGE
            disk_of(llm).flush()
        for path, data in good.items():
            assert path.read_bytes() == data

    def damage(write: Callable[[Path, bytes], object]) -> None:
        for path, data in good.items():
            path.unlink()
            write(path, data)
        check()

    turns = iter(places)  # another place in each file

    def change_a_byte(path: Path, data: bytes) -> None:
        at = next(turns)
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])

    for _ in range(len(places) // len(good)):
        damage(change_a_byte)
    lengths = iter((0, 10, size // 2, size - 1))
    damage(lambda p, d: p.write_bytes(d[: next(lengths)]))
    damage(lambda p, d: p.write_bytes(d + b"x"))
    others = list(good.values())
    damage(lambda p, d: p.write_bytes(others[others.index(d) - 1]))
    outside = tmp_path / "outside"
    for path, data in good.items():
        path.unlink()
        outside.write_bytes(data)
        path.symlink_to(outside)
    check()


def test_other_models_and_settings_find_nothing(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("bitnet-multiply")
    answer(folder, tmp_path)
    for options in ({"kv_dtype": "i8"}, {"context": 400}, {"format": "i8"}):
        assert answer(folder, tmp_path, **options).stats.n_cached == 0
    assert answer(checkpoint("llama-bf16"), tmp_path).stats.n_cached == 0
    for place in ("sterna.engine.engine.NUMERICS", "sterna.engine.kv_cache.page_file.LAYOUT"):
        with monkeypatch.context() as patch:
            patch.setattr(place, 77)
            assert answer(folder, tmp_path).stats.n_cached == 0
    assert answer(folder, tmp_path).stats.n_cached == 4 * PAGE
    floats = [
        facts(answer(checkpoint("llama-bf16"), tmp_path, isa=isa, deterministic=True))
        for isa in ISAS
    ]
    assert all(one == floats[0] for one in floats)


def test_salts_share_nothing(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    llm = LLM(checkpoint("bitnet-multiply"), threads=1, cache_disk=tmp_path)
    for salt, cached in (("a", 0), ("b", 0), ("a", 4 * PAGE)):
        (request,) = llm.requests.make_several(PROMPT, 1, OPTIONS, salt=salt)
        list(llm.engine_loop.pieces(request))
        assert min(request.completion.stats.n_cached, 4 * PAGE) == cached
    disk_of(llm).flush()
    assert len(files(tmp_path)) == 8


def test_the_budget(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """The longest unused go, and what nobody finished; a page that is larger is not kept."""
    folder = checkpoint("bitnet-multiply")
    answer(folder, tmp_path)
    size = files(tmp_path)[0].stat().st_size
    budget, kept = 10 * size, PROMPT
    (tmp_path / "ab").mkdir(exist_ok=True)
    left = tmp_path / "ab" / ".1-2.part"
    left.write_bytes(b"x")
    os.utime(left, (1, 1))
    stranger = tmp_path / "notes.txt"
    stranger.write_text("mine")
    for i in range(8):
        for path in files(tmp_path):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
        answer(folder, tmp_path, kept, cache_disk_max=budget)  # used again and again
        answer(folder, tmp_path, [i, *PROMPT], cache_disk_max=budget)
        assert sum(p.stat().st_size for p in files(tmp_path) if p.suffix == ".page") <= budget
    assert answer(folder, tmp_path, kept).stats.n_cached == 4 * PAGE
    assert not left.exists()
    assert stranger.read_text() == "mine"
    small = tmp_path / "small"
    answer(folder, small, cache_disk_max=size - 1)
    assert files(small) == []


def test_processes_share_it(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Several that write the same pages at once, and end at once: no page is lost or damaged."""
    folder = checkpoint("bitnet-multiply")
    code = (
        "import sys; from sterna import LLM\n"
        "llm = LLM(sys.argv[1], threads=1, cache_disk=sys.argv[2])\n"
        f"print(llm.generate({PROMPT}, max_tokens=20, temperature=1.0, seed=5).tokens)"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(sterna.__file__).parent.parent)}
    command = [sys.executable, "-c", code, str(folder), str(tmp_path)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) for _ in range(2)
    ]
    outputs = {process.communicate(timeout=HANGS_S)[0] for process in running}
    assert [process.returncode for process in running] == [0, 0]
    done = answer(folder, tmp_path)
    assert outputs == {f"{done.tokens}\n"}
    assert done.stats.n_cached == 4 * PAGE
    assert {path.suffix for path in files(tmp_path)} == {".page"}
    assert (tmp_path.stat().st_mode & 0o077) == 0 or os.name == "nt" or tmp_path.exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in files(tmp_path))


def test_folders_that_cannot_be(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder, file = checkpoint("bitnet-multiply"), tmp_path / "file"
    file.write_text("x")
    for wrong in (file, file / "under", "", "a\0b", 5):
        failure(lambda w=wrong: LLM(folder, threads=1, cache_disk=w), RequestError, "cache_disk")
    failure(
        lambda: LLM(folder, threads=1, cache_disk=tmp_path, prefix_cache=False), RequestError,
        "prefix_cache",
    )  # fmt: skip
    failure(lambda: LLM(folder, cache_disk=tmp_path, cache_disk_max=-1), RequestError, "disk_max")


def test_a_full_disk_keeps_nothing(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers come all the same, and no file is left in the middle."""

    def fail(number: int, data: memoryview) -> None:
        os.write(number, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_file, "_write_whole", fail)
    folder = checkpoint("bitnet-multiply")
    assert facts(answer(folder, tmp_path)) == facts(answer(folder, None))
    assert files(tmp_path) == []
    monkeypatch.undo()
    llm = LLM(folder, threads=1, cache_disk=tmp_path, cache_disk_max=10)  # less than a page
    llm.generate(PROMPT, **OPTIONS)
    assert not disk_of(llm)._waiting
    page = llm.engine.kv_cache.read_page(0)
    llm.engine.kv_cache.write_page(3, page)
    assert (llm.engine.kv_cache.read_page(3) == page).all()
    assert page.dtype == np.uint8


def test_conversations_share_a_memory_that_holds_few(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A hundred take turns where ten fit: each goes on from its pages on disk, as if alone."""
    folder, count, turns = checkpoint("bitnet-multiply"), 100, 3
    begin, more, answered = 3 * PAGE + 5, PAGE, 8
    longest = begin + (turns - 1) * (more + answered) + answered
    page_bytes = LLM(folder, threads=1).engine.kv_cache.page_bytes
    pages = 10 * -(-longest // PAGE)
    alone = LLM(folder, threads=1, prefix_cache=False)
    shared = LLM(folder, threads=1, cache_disk=tmp_path, kv_bytes=pages * page_bytes)
    rng, options = random.Random(9), {**OPTIONS, "max_tokens": answered, "ignore_eos": True}
    talks = [[rng.randrange(200) for _ in range(begin)] for _ in range(count)]
    for turn in range(turns):
        for talk in talks:
            done = shared.generate(talk, **options)
            # Its full pages are there: what follows the last of them is computed again.
            expected = (len(talk) - more) // PAGE * PAGE if turn else 0
            assert done.stats.n_cached >= expected
            if talk is talks[turn]:  # computing all of them anew would take long
                assert facts(done) == facts(alone.generate(talk, **options))
            talk += [*done.tokens, *(rng.randrange(200) for _ in range(more))]
        disk_of(shared).flush()
    cache = shared.engine_loop.scheduler.cache
    assert cache is not None
    assert cache.pages <= pages


def test_pages_that_wait_for_the_disk_are_evicted_last(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others can be read again. One that had to go all the same is left out of the disk."""
    writes, held = PrefixDiskCache._write_all, threading.Event()

    def held_back(disk: PrefixDiskCache) -> None:
        held.wait(HANGS_S)
        writes(disk)

    folder = checkpoint("bitnet-multiply")
    llm = LLM(folder, threads=1, cache_disk=tmp_path)
    cache = llm.engine_loop.scheduler.cache
    assert cache is not None
    llm.generate(PROMPT, **OPTIONS)
    disk_of(llm).flush()
    monkeypatch.setattr(PrefixDiskCache, "_write_all", held_back)
    new = PROMPT[::-1]
    llm.generate(new, **OPTIONS)  # used last, but written by nobody yet
    pool = llm.engine.kv_cache.pool
    with pool.lock:
        cache.evict(2, pool._counted())
        kept = cache.known(np.array(new, np.int32))
        assert kept >= 4 * PAGE
        assert cache.known(np.array(PROMPT, np.int32)) < 4 * PAGE
        cache.evict(cache.pages, pool._counted())
        assert cache.known(np.array(new, np.int32)) == 0
    before = len(files(tmp_path))
    held.set()
    disk_of(llm).flush()
    assert len(files(tmp_path)) == before
