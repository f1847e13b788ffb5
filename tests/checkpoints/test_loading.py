"""Reading a model: what is told of its progress, what its memory is, and how it ends."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits import HANGS_S

import sterna.cli.progress
from sterna import LLM, _native
from sterna.checkpoints.resolve import BUILT_IN
from sterna.files import reading
from sterna.files.reading import Span, read_spans


@pytest.mark.parametrize("start", ["published", "from the cache", "packed"])
def test_small_files_are_read_once(
    start: str,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks for settings asks those that were read; a second reading may say something else.

    A start from the cache reads the copy's config.json as well.
    """
    path = BUILT_IN["nano"] if start == "packed" else checkpoint("bitnet-multiply")
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    if start == "from the cache":
        store = LLM(path, threads=1).engine.model.store
        assert store is not None
        assert store.wait(HANGS_S) is not None
    opened: list[str] = []
    os_open = os.open

    def noted(file: Any, *args: Any, **named: Any) -> int:
        opened.append(str(file))
        return os_open(file, *args, **named)

    monkeypatch.setattr(os, "open", noted)
    LLM(path, threads=1, cache=start == "from the cache")
    read = Counter(file for file in opened if file.startswith(str(path)))
    small = [f.name for f in path.iterdir() if f.suffix in (".json", ".jinja")]
    assert {"config.json", "generation_config.json", "tokenizer_config.json"} <= {*small}
    for name in small:
        assert read[str(path / name)] <= 1, name
    assert read[str(path / "config.json")] == read[str(path / "tokenizer_config.json")] == 1


@pytest.mark.parametrize("source", ["nano", "bitnet-multiply", "llama-f32"])
def test_progress_counts_bytes(
    source: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never falls, and ends at the bytes of all tensors, which the model asks for."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 4096)  # several threads
    path = BUILT_IN["nano"] if source == "nano" else checkpoint(source)
    told: list[tuple[int, int]] = []
    LLM(path, threads=1, cache=False, progress=lambda done, total: told.append((done, total)))
    totals = {total for _, total in told}
    assert len(told) > 10
    assert len(totals) == 1
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (max(totals), max(totals))
    assert 0.9 < max(totals) / (path / "model.safetensors").stat().st_size < 1


def test_what_progress_raises_ends_the_reading(checkpoint: Callable[[str], Path]) -> None:
    """Ctrl-C is an exception there, too; the model loads the next time."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for path in (BUILT_IN["nano"], checkpoint("bitnet-multiply")):
        with pytest.raises(KeyboardInterrupt):
            LLM(path, threads=1, cache=False, progress=stop)
        assert LLM(path, threads=1, cache=False).generate("def", max_tokens=1).tokens


def test_chunks_of_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte goes where it belongs, whoever reads it, and is counted once."""
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1000)
    data = np.random.default_rng(0).integers(0, 256, 100_001, np.uint8)
    (tmp_path / "x").write_bytes(data.tobytes())
    into, counted = np.zeros(70_000, np.uint8), []
    spans = [Span(5, 0, 1), Span(100, 1, 60_999), Span(9000, 1, 0), Span(91_001, 61_000, 9000)]
    with reading.open_regular(tmp_path / "x") as (descriptor, _):
        read_spans(tmp_path / "x", descriptor, into.data, spans, counted.append)
    expected = np.concatenate([data[5:6], data[100:61_099], data[91_001:100_001]])
    np.testing.assert_array_equal(into, expected)
    assert sum(counted) == 70_000
    assert max(counted) == 1000


def test_memory_is_taken_again() -> None:
    """Memory of an array whose last view is gone serves one about as large, until it is closed."""
    scratch = _native.Scratch()
    size = 8 << 20

    def place(nbytes: int) -> int:
        array = scratch.alloc(nbytes)
        assert array.nbytes == nbytes
        view = array[::2].view(np.int8)
        del array
        view[:] = 1
        return view.__array_interface__["data"][0]

    first = place(size)
    assert place(size) == place(size - 100) == first
    kept = scratch.alloc(size)[5:]
    assert place(size) != first  # someone has it
    del kept
    held = scratch.alloc(1 << 10)  # far too small for it
    assert held.__array_interface__["data"][0] != first
    both = [scratch.alloc(size), scratch.alloc(size)]
    assert first in [array.__array_interface__["data"][0] for array in both]
    del both
    held = scratch.alloc(size)
    scratch.close()
    held[:] = 3
    assert (held == 3).all()
    del held
    second = scratch.alloc(size)
    assert not second.any()  # fresh


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short load shows nothing; a longer one shows bytes of the total."""
    now = 100.0
    monkeypatch.setattr(sterna.cli.progress.time, "monotonic", lambda: now)
    for elapsed, shown in ((0.9, False), (1.1, True)):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        with sterna.cli.progress.loading("[/]m") as progress:
            progress(1_000_000, 340_000_000)
            assert terminal.getvalue() == ""
            now += elapsed
            progress(12_000_000, 340_000_000)
        assert ("loading [/]m" in terminal.getvalue()) == shown
        assert ("12 of 340 MB" in terminal.getvalue()) == shown


def test_a_library_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even on a terminal."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    LLM("nano", threads=1)
    assert (terminal.getvalue(), capsys.readouterr().out) == ("", "")
