"""Fixtures shared by all tests: checkpoints written once per session, and a clean environment."""

from __future__ import annotations

import gc
import os
import sys

# Before torch is imported: transformers compiles pieces of BitNet, and the first compiled forward
# takes 23 s; uncompiled, the tiny models here take milliseconds and give the same numbers.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
# No test may depend on the network (real/assets.py fetches, and skips where it cannot), on a user's
# cache, or on a tokenizer's own thread pool.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["STERNA_CACHE"] = "off"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Each core has a worker, so one thread serves a test that names no number. Two would wait for each
# other while another worker has the core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("STERNA_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hub_helpers import local_hub
from hub_server import Hub
from hypothesis import HealthCheck, settings
from sysfs_tree import Tree

from sterna.bench import random_codes
from sterna.bench.machine import OtherLoad
from sterna.calibration import bandwidth

# No test fails because the machine is busy: examples are counted, not timed.
settings.register_profile("counted", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("counted")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without the garbage collector, and hides from it what was imported, of torch and others.

    These are 700,000 objects. It looked through them again and again while they came, and then
    whenever an engine was asked for more pages than it had free: for 0.3 s each time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


_file: Path | None = None  # of the next test
_known_modules = 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Hide from the garbage collector what a file's tests have imported, as after collection.

    Libraries import most of their modules when a function first needs them.
    """
    global _file, _known_modules
    result = yield
    file = nextitem and nextitem.path
    if file != _file and len(sys.modules) > _known_modules + 50:
        _known_modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    _file = file
    return result


def recipe(folder: Path, name: str) -> Path:
    """Writes a checkpoint of a recipe, or of a row of `MODELS`, whose context is 512 positions.

    A test that needs neither does not wait for the import of torch.
    """
    from checkpoint_factory import RECIPES, write

    if name in RECIPES:
        return write(folder, RECIPES[name])
    import saved_models
    from model_configs import MODELS

    longer = {**MODELS[name].config, "max_position_embeddings": 512}
    saved_models.write(folder, replace(MODELS[name], config=longer))
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a named recipe, or row of `MODELS`.

    It is written once and shared, so tests must not change it.
    """
    root = tmp_path_factory.mktemp("checkpoints")

    def get(name: str) -> Path:
        folder = root / name
        return folder if folder.exists() else recipe(folder, name)

    return get


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fresh, sound checkpoint that a test may spoil."""
    return recipe(tmp_path / "model", "bitnet-multiply")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """An empty file tree in the place of /."""
    return Tree(tmp_path)


@pytest.fixture(autouse=True)
def _no_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks show their ratios although other tests run at the same time."""
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.0)


@pytest.fixture
def little_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte in place of the gigabytes that bandwidth is measured on, and that no cache holds;
    and random codes of a format that are drawn once."""
    monkeypatch.setattr(bandwidth, "BYTES", 1 << 20)
    monkeypatch.setattr(random_codes, "out_of_cache_bytes", lambda: 1 << 20)
    monkeypatch.setattr(random_codes, "random_pool", _random_pool)


_random_pool = cache(random_codes.random_pool.__wrapped__)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A Hub with the built-in model, and an empty cache."""
    with local_hub(monkeypatch, tmp_path) as running:
        yield running
