"""Weights that stay on disk: the bits of the model in memory, whatever the budget; what fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_factory import QWEN3_MOE, RECIPES, write
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from waits import wait_until

from sterna import LLM, _native, loading
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import packed_bytes
from sterna.engine import Engine
from sterna.engine.scheduling.scheduler import Scheduler
from sterna.errors import DiskError, ModelFormatError, RequestError
from sterna.graph.guesses import with_guesses
from sterna.loading import weights_on_disk

EXPERTS = [name for name, recipe in RECIPES.items() if recipe.experts]
#: Without experts: biases, norms before residuals, hybrids, factors.
DENSE = ["llama-256", "qwen2", "qwen3", "gemma3", "gemma4", "qwen3_5", "minicpm", "phi3"]
PROMPTS = [[int(t) for t in np.random.default_rng(seed).integers(0, 256, 60)] for seed in range(3)]


def packed(folder: Path, name: str = "qwen3_moe", format: str | None = "q4_0") -> Path:
    """Make the packed folder of a small model with experts."""
    source = write(folder / "source", RECIPES[name])
    loading.save(loading.load(source, format=format, cached=False), folder / "packed")
    return folder / "packed"


def sizes(folder: Path) -> tuple[int, int]:
    """Bytes of what cannot stay on disk and a part of each size of the rest, and of all weights."""
    found = packed_bytes(Checkpoint.open(folder))
    load = partial(loading.load, folder, weights_ram=found.in_memory)
    error = failure(load, RequestError, "cannot stay on disk")
    least = int(error.partition(" bytes for")[0].rpartition(" ")[2])
    assert found.in_memory < least < found.all
    return least, found.all


def logits(model: loading.Model, threads: int = 2, **options: Any) -> list[np.ndarray]:
    """Logits of a prompt, of prompts in one batch, and of tokens one by one."""
    engine = Engine(model, threads=threads, **options)
    return [
        *engine.logits(PROMPTS[:1]),
        *engine.logits(PROMPTS, chunk=17),
        *engine.logits([PROMPTS[0][:20]], chunk=1),
    ]


@pytest.mark.parametrize("format", ["q4_0", "t5", "bf16"])
@pytest.mark.parametrize("name", EXPERTS + DENSE)
def test_the_bits_of_the_model_in_memory(
    name: str, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one part of each size, every use of another one reads it again."""
    monkeypatch.setattr(weights_on_disk, "PART_BYTES", 4096)  # of matrices of these models, some
    folder = packed(tmp_path, name, format)
    least, most = sizes(folder)
    expected = logits(loading.load(folder))
    for budget, threads in ((least, 3), (least + (most - least) // 3, 2), (most - 1, 1)):
        model = loading.load(folder, weights_ram=budget)
        assert model.weight_cache is not None
        for got, wanted in zip(logits(model, threads), expected, strict=True):
            assert_same_bits(got, wanted)
        assert model.weight_cache.counts["misses"] > 0
    assert loading.load(folder, weights_ram=most).weight_cache is None


def test_a_prompt_reads_each_expert_once(tmp_path: Path) -> None:
    """Whatever the memory, since all of its tokens are computed while an expert is there."""
    folder = packed(tmp_path)
    least, most = sizes(folder)
    for budget in (least, (least + most) // 2):
        model = loading.load(folder, weights_ram=budget)
        Engine(model, threads=2).logits(PROMPTS[:1])
        assert model.weight_cache is not None
        counts = model.weight_cache.counts
        assert counts["hits"] + counts["misses"] == counts["parts"]  # each was chosen
        read = sum(experts_of(model))
        assert read // 2 < counts["bytes"] <= read


def experts_of(model: loading.Model) -> Iterator[int]:
    """Yield the bytes of each matrix of experts."""
    for op in model.graph.linears:
        if op.kind == "expert_linear":
            yield op.weight.codes.nbytes + op.weight.scale.nbytes


def test_a_token_reads_what_memory_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model without experts most of what memory holds stays there, for all tokens: if the part
    that was used longest ago left, it would be the next that is needed."""
    monkeypatch.setattr(weights_on_disk, "PART_BYTES", 2048)
    folder = packed(tmp_path, "llama-256")
    least, most = sizes(folder)
    model = loading.load(folder, weights_ram=(least + most) // 2)
    engine = Engine(model, threads=2)
    engine.logits([PROMPTS[0][:20]], chunk=1)
    assert model.weight_cache is not None
    before = dict(model.weight_cache.counts)
    engine.logits([PROMPTS[0][:20]], chunk=1)
    after = model.weight_cache.counts
    missed = (after["misses"] - before["misses"]) / 20
    lacked = after["parts"] - after["slots"]
    assert (
        lacked <= missed <= lacked + 8 * 4
    )  # of four sizes of parts, eight slots are used in turn
    assert missed < after["parts"]


# ---------------------------------------------------------------------- guesses of the next router


def in_layers(folder: Path, factor: float) -> loading.Model:
    """Open a model of experts, of which each layer adds `factor` times as much to the residual
    stream as the one before it; a cache holds half of its experts."""
    experts = {"num_experts": 16, "num_experts_per_tok": 2}
    recipe = replace(QWEN3_MOE, layers=5, config=QWEN3_MOE.config | experts)
    source = write(folder / "source", recipe)
    tensors = load_file(source / "model.safetensors")
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= factor ** (1 + int(name.split(".")[2]))
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    loading.save(loading.load(source, format="bf16", cached=False), folder / "packed")
    least, most = sizes(folder / "packed")
    return loading.load(folder / "packed", weights_ram=(least + most) // 2)


def counted(model: loading.Model) -> dict[str, float]:
    """Counts of the last of three texts that are decoded token by token."""
    engine, cache = Engine(model, threads=2), model.weight_cache
    assert cache is not None
    for prompt in PROMPTS[1:]:
        engine.logits([prompt], chunk=1)
    before = dict(cache.counts)
    engine.logits(PROMPTS[:1], chunk=1)
    return {name: value - before[name] for name, value in cache.counts.items()}


def test_guesses_where_layers_add_nothing(tmp_path: Path) -> None:
    """The stream is the same in all layers, so the next router chooses what was guessed."""
    counts = counted(in_layers(tmp_path, 0))
    assert counts["guessed_right"] == counts["guessed"] > 0


def test_guesses_that_are_wrong(tmp_path: Path) -> None:
    """Where a layer's output hides the stream, guesses are soon not followed: what is read is what
    was needed and absent."""
    model = in_layers(tmp_path, 100)
    counts = counted(model)
    assert 0 < counts["guessed_right"] < counts["guessed"] / 2
    largest = max(op.one_weight.nbytes for op in model.graph.linears if op.kind == "expert_linear")
    assert counts["bytes"] <= counts["misses"] * largest


@pytest.mark.parametrize("name", EXPERTS)
def test_routers_that_are_guessed(name: str, tmp_path: Path) -> None:
    """All but the first, in every family."""
    ops = loading.load(write(tmp_path, RECIPES[name]), cached=False).graph.ops
    kinds = Counter(op.kind for op in with_guesses(ops))
    assert kinds["guess"] == kinds["route"] - 1


# ------------------------------------------------------------------------------- what goes wrong


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """Put a file whose first bytes cannot be read in the place of all descriptors of `file`."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this folder has gone
            if os.path.samefile(f"/proc/self/fd/{name}", file):
                found.append(int(name))
    kept = {descriptor: os.dup(descriptor) for descriptor in found}
    bad = os.open("/proc/self/mem", os.O_RDONLY)
    assert kept
    try:
        for descriptor in kept:
            os.dup2(bad, descriptor)
        yield
    finally:
        for descriptor, original in kept.items():
            os.dup2(original, descriptor)
            os.close(original)
        os.close(bad)


@pytest.mark.skipif(sys.platform != "linux", reason="puts other files into descriptors by /proc")
def test_a_disk_that_fails(tmp_path: Path) -> None:
    """The step that needs it fails with a typed error; once the disk reads again, the next runs."""
    folder = packed(tmp_path)
    least, _ = sizes(folder)
    expected = Engine(loading.load(folder), threads=2).logits(PROMPTS[:1])[0]
    engine = Engine(loading.load(folder, weights_ram=least), threads=2)
    with unreadable(folder / "model.safetensors"):
        for _ in range(3):
            error = failure(lambda: engine.logits(PROMPTS[:1]), DiskError, "must be readable")
            assert "model.safetensors" in error
    assert_same_bits(engine.logits(PROMPTS[:1])[0], expected)


@pytest.mark.skipif(sys.platform != "linux", reason="puts other files into descriptors by /proc")
def test_others_go_on_when_a_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two requests in a batch, one that finds its experts in memory is not ended.

    One thread reads, so that the one free slot is enough for reads that fail: with four, those of
    the other request may take the slots of this one's experts first, and it would read again.
    """
    monkeypatch.setattr(_native, "WeightCache", partial(_native.WeightCache, readers=1))
    folder = packed(tmp_path)
    _, most = sizes(folder)
    llm = LLM(folder, weights_ram=most - 1, threads=2, context=256, prefix_cache=False)
    options = {"max_tokens": 1, "temperature": 0}
    first = llm.generate([PROMPTS[0][:1]], **options)[0]
    good = llm.requests.make(PROMPTS[0][:1], options)
    bad = llm.requests.make(PROMPTS[1], options)
    scheduler = Scheduler(llm.engine)
    scheduler.add(good)
    scheduler.add(bad)
    with unreadable(folder / "model.safetensors"):
        while scheduler.busy:
            scheduler.step()
    assert isinstance(bad.error, DiskError)
    assert good.error is None
    assert list(good.tokens[1:]) == first.tokens


def test_a_file_that_is_cut(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    least, _ = sizes(folder)
    engine = Engine(loading.load(folder, weights_ram=least), threads=2)
    engine.logits(PROMPTS[:1])
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    failure(lambda: engine.logits(PROMPTS[:1]), ModelFormatError, "truncated, changed")
    failure(lambda: engine.logits(PROMPTS[1:2]), ModelFormatError, "truncated, changed")


KILLED = """
import sys, threading, time
from sterna import loading
from sterna.engine import Engine
engine = Engine(loading.load(sys.argv[1], weights_ram=int(sys.argv[2])), threads=2)
print("reading", flush=True)
while True:
    engine.logits([[1, 2, 3, 4, 5, 6, 7, 8]])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_process_that_is_killed_while_it_reads(tmp_path: Path) -> None:
    """Nothing is written, so the next process finds the model as it was."""
    folder = packed(tmp_path)
    least, _ = sizes(folder)
    expected = Engine(loading.load(folder), threads=2).logits(PROMPTS[:1])[0]
    before = {file: file.read_bytes() for file in folder.iterdir()}
    command = [sys.executable, "-c", KILLED, str(folder), str(least)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert first == b"reading\n"
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    engine = Engine(loading.load(folder, weights_ram=least), threads=2)
    assert_same_bits(engine.logits(PROMPTS[:1])[0], expected)


# ------------------------------------------------------------------------------------ the budget


def test_without_a_budget_what_fits_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts stay on disk only where the weights are more than the memory that is free."""
    folder = packed(tmp_path)
    _, most = sizes(folder)
    monkeypatch.setattr(weights_on_disk, "HEADROOM_BYTES", 1000)
    monkeypatch.setattr(weights_on_disk, "available_bytes", lambda: most + 1000)
    assert loading.load(folder).weight_cache is None
    monkeypatch.setattr(weights_on_disk, "available_bytes", lambda: most + 999)
    model = loading.load(folder)
    assert model.weight_cache is not None
    counts = model.weight_cache.counts
    assert 0 < counts["slots"] < counts["parts"]
    assert loading.load(folder, mmap=True).weight_cache is None  # the user chose


def test_another_format_needs_all_weights(tmp_path: Path) -> None:
    folder = packed(tmp_path)
    least, most = sizes(folder)
    for wrong in (0, "8G", 1.5):
        failure(lambda w=wrong: loading.load(folder, weights_ram=w), RequestError, "weights_ram")
    failure(lambda: loading.load(folder, weights_ram=7), RequestError, f"{least} bytes", "got 7;")
    load = partial(loading.load, folder, weights_ram=least, format="i8")
    failure(load, RequestError, "another format needs them", str(most))


def test_what_is_not_packed_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that its files exceed is refused with what to do; a packed copy is kept."""
    source, cache = write(tmp_path / "source", RECIPES["qwen3_moe"]), tmp_path / "cache"
    monkeypatch.setenv("STERNA_CACHE", str(cache))
    nbytes = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    load = partial(loading.load, source, format="q4_0", cached=True)
    words = ("weights_ram", str(nbytes), "sterna convert")
    failure(lambda: load(weights_ram=nbytes - 1), RequestError, *words)
    model = load(weights_ram=nbytes)
    model.keep()
    wait_until(lambda: any(cache.glob("*/model.safetensors")))
    assert load().weight_cache is None
    failure(lambda: load(weights_ram=1), RequestError, "cannot stay on disk")
    assert any(cache.glob("*/model.safetensors"))  # nothing is wrong with it
