"""Mapped weights: the same bits as those that are read, and errors where files vanish."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_same_bits, command, failure
from safetensors.numpy import load_file, save_file
from waits import HANGS_S

from sterna import LLM, _native, loading, ops
from sterna.checkpoints.packed_directory import read_packed
from sterna.checkpoints.resolve import BUILT_IN
from sterna.errors import ModelFormatError, RequestError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="mappings and signals are POSIX's")

TOKENS = [1, 2, 3, 4, 5]
WEIGHTS = "model.safetensors"


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    """A packed folder that a test may spoil."""
    return Path(shutil.copytree(BUILT_IN["nano"], tmp_path / "nano"))


def maps_of(path: Path) -> int:
    """How often this process has mapped a file."""
    return Path("/proc/self/maps").read_text().count(str(path))


def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, which may be killed."""
    head = "import os, signal, sys\nfrom sterna import LLM, ModelFormatError, _native\n"
    return subprocess.run(
        [sys.executable, "-c", head + code, *map(str, args)],
        capture_output=True, text=True, timeout=HANGS_S, check=False,
    )  # fmt: skip


# ---------------------------------------------------------------------------- the same as reading


def test_nano_has_the_same_bits(nano: Path) -> None:
    """Mapped or read, also with a part that is repacked."""
    for options in ({}, {"format": "i4"}, {"head": "int8"}):
        read, mapped = (LLM(nano, threads=2, mmap=m, **options) for m in (False, True))
        assert (read.info()["mmap"], mapped.info()["mmap"]) == (False, True)
        assert_same_bits(mapped.logits(TOKENS), read.logits(TOKENS))
        texts = [llm.generate("def", max_tokens=8, seed=1).tokens for llm in (mapped, read)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("format", ["i2", "q8_0", "bf16", "q4_0"])
def test_a_packed_checkpoint_has_the_same_bits(
    format: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """With a scale, with groups, with floats and a screened head."""
    source = checkpoint("bitnet-multiply" if format == "i2" else "llama-256")
    model = loading.load(source, format=format, cached=False)
    loading.save(model, tmp_path / "packed")
    expected = LLM(source, format=format, threads=1, cache=False).logits(TOKENS)
    llm = LLM(tmp_path / "packed", threads=2, mmap=True)
    assert llm.info()["mmap"]
    assert_same_bits(llm.logits(TOKENS), expected)
    weights = [w for w in llm.engine.model.weights.modules.values() if w.format == format]
    assert weights
    for weight in weights:
        assert not weight.codes.flags.writeable
        copied = replace(weight, codes=weight.codes.copy(), scale=weight.scale.copy())
        assert_same_bits(ops.dequantize(weight), ops.dequantize(copied))


def test_a_file_of_another_program(nano: Path) -> None:
    """Its tensors may begin anywhere: those that kernels cannot read there are read."""
    tensors = load_file(nano / WEIGHTS)
    expected = LLM(nano, threads=1).logits(TOKENS)
    for odd in (1, 7):  # a header of another length
        save_file(tensors, nano / WEIGHTS, {"format": "pt", "x": "y" * 8 * odd})
        llm = LLM(nano, threads=1, mmap=True)
        assert_same_bits(llm.logits(TOKENS), expected)


def test_the_cache_is_mapped_from_the_second_start_on(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first packs into memory. Where there is no cache, so do all."""
    source = checkpoint("bitnet-multiply")
    assert not LLM(source, threads=1, mmap=True).info()["mmap"]
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = LLM(source, threads=1, mmap=True)
    assert first.engine.model.store is not None
    assert first.engine.model.store.wait() is not None
    second = LLM(source, threads=1, mmap=True)
    assert (first.info()["mmap"], second.info()["mmap"]) == (False, True)
    assert_same_bits(second.logits(TOKENS), first.logits(TOKENS))


def test_where_nothing_can_be_mapped(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read."""

    def refuse(*_: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(_native, "map_file", refuse)
    llm = LLM(nano, threads=1, mmap=True)
    assert not llm.info()["mmap"]
    assert llm.generate("def", max_tokens=2).tokens


def test_options() -> None:
    """The flag is one, and the command line has it."""
    failure(lambda: LLM("nano", mmap=1), RequestError, "mmap", "True or False")  # type: ignore
    assert command("generate", "def", "--mmap", "--max-tokens", "2").exit_code == 0
    assert "--mmap" in command("chat", "--help").output


def test_progress_counts_what_is_mapped(nano: Path) -> None:
    """Progress reaches the total, as where a file is read."""
    told: list[tuple[int, int]] = []
    LLM(nano, threads=1, mmap=True, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] > 0.9 * (nano / WEIGHTS).stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_last_view_unmaps(nano: Path) -> None:
    """The mapping outlives the model: a weight may be kept."""
    llm = LLM(nano, threads=1, mmap=True)
    assert maps_of(nano) == 1
    kept = next(iter(llm.engine.model.weights.modules.values())).codes[1:]
    del llm
    gc.collect()
    assert maps_of(nano) == 1
    assert kept.any()
    del kept
    gc.collect()
    assert maps_of(nano) == 0


# ------------------------------------------------------------------------------- files that change


@pytest.mark.parametrize("mmap", [False, True])
def test_truncated_before_it_is_loaded(nano: Path, mmap: bool) -> None:
    """The header says how long the file must be."""
    os.truncate(nano / WEIGHTS, (nano / WEIGHTS).stat().st_size - 1)
    failure(lambda: LLM(nano, threads=1, mmap=mmap), ModelFormatError, WEIGHTS, "data")


TRUNCATED = """
path, left = sys.argv[1], int(sys.argv[2])
llm, other = LLM(path, threads=2, mmap=True), LLM("nano", threads=2, mmap=True)
before = llm.generate("def", max_tokens=4, temperature=0).tokens
size = os.stat(path + "/model.safetensors").st_size
os.truncate(path + "/model.safetensors", left if left >= 0 else size + left)
for again in range(3):
    if again == 2:
        os.truncate(path + "/model.safetensors", size)  # it has its length again, and zeros
    try:
        llm.generate("def", max_tokens=4, temperature=0)
        sys.exit("no error")
    except ModelFormatError as error:
        assert error.file == path + "/model.safetensors", error
        print(error)
weight = next(w for w in llm.engine.model.weights.modules.values() if w.codes.size > 1 << 16)
from sterna import ops
x = __import__("numpy").ones((2, weight.K), "f4")
for use in (ops.dequantize, lambda w: ops.linear(x, w), ops.unpack):
    try:
        use(weight)
        sys.exit("no error")
    except ModelFormatError:
        pass
assert other.generate("def", max_tokens=4, temperature=0).tokens == before
weight.codes.sum()  # zeros, or what is left of them, but no signal
print("alive")
"""


@pytest.mark.parametrize("left", [0, 5000, 1 << 20, -1])
def test_truncated_in_use(nano: Path, left: int) -> None:
    """Each step after it is an error with the file's name, and the process lives.

    The last byte gone leaves a page that reads as zeros without a signal: the length tells.
    """
    done = run(TRUNCATED, nano, left)
    assert done.returncode == 0, done.stderr
    *errors, last = done.stdout.splitlines()
    assert last == "alive"
    assert len(errors) == 3
    assert all(str(nano / WEIGHTS) in e and "truncated" in e for e in errors)


MEANWHILE = """
import threading, time
path, delay = sys.argv[1], float(sys.argv[2])
llm = LLM(path, threads=2, mmap=True)
prompt = list(range(1, 300))
expected = llm.generate(prompt, max_tokens=8, temperature=0).tokens
def cut():
    time.sleep(delay)
    os.truncate(path + "/model.safetensors", 0)
threading.Thread(target=cut).start()
for _ in range(100_000):
    try:
        assert llm.generate(prompt, max_tokens=8, temperature=0).tokens == expected
    except ModelFormatError as error:
        print(error)
        break
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.05, 0.1])
def test_truncated_while_it_is_read(nano: Path, delay: float) -> None:
    """Threads in the middle of a step go on, and what they made of zeros is seen by nobody."""
    done = run(MEANWHILE, nano, delay)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(nano / WEIGHTS) in done.stdout


def test_truncated_while_it_is_loaded(nano: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of its length and the end of loading: codes are looked at there."""
    original = _native.map_file

    def cut(descriptor: int, nbytes: int, path: bytes) -> np.ndarray:
        mapped = original(descriptor, nbytes, path)
        os.truncate(path, nbytes - 4096)
        return mapped

    monkeypatch.setattr(_native, "map_file", cut)
    failure(lambda: read_packed(nano, 1, mmap=True), ModelFormatError, WEIGHTS, "truncated")
    monkeypatch.setattr(
        _native, "map_file", lambda descriptor, nbytes, path: original(descriptor, nbytes - 1, path)
    )
    failure(lambda: read_packed(BUILT_IN["nano"], 1, mmap=True), ModelFormatError, WEIGHTS)


def test_written_to_in_use(nano: Path) -> None:
    """Other weights of the same length would be answers of another model."""
    llm = LLM(nano, threads=1, mmap=True)
    llm.generate("def", max_tokens=2)
    with (nano / WEIGHTS).open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(byte)
    failure(lambda: llm.generate("def", max_tokens=2), ModelFormatError, WEIGHTS, "changed")


def test_replaced_or_removed_in_use(nano: Path) -> None:
    """Mapped files stay valid: packed folders are replaced in this way."""
    llm = LLM(nano, threads=1, mmap=True)
    expected = llm.logits(TOKENS)
    shutil.copyfile(nano / WEIGHTS, nano / "new")
    os.replace(nano / "new", nano / WEIGHTS)
    assert_same_bits(llm.logits(TOKENS), expected)
    shutil.rmtree(nano)
    assert_same_bits(llm.logits(TOKENS), expected)


def test_scales_of_a_truncated_file(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """They are taken apart in Python, from what is mapped."""
    loading.save(loading.load(checkpoint("llama-256"), format="q8_0", cached=False), tmp_path / "m")
    packed = read_packed(tmp_path / "m", 1, mmap=True)
    weight = next(w for w in packed.modules.values() if w.format == "q8_0")
    assert weight.scales.any()
    os.truncate(tmp_path / "m" / WEIGHTS, 0)
    failure(lambda: weight.scales, ModelFormatError, WEIGHTS)
