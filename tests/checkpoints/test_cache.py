"""The cache of packed models: keys, writing behind, and failures that are never fatal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from children import spawn
from waits import HANGS_S

import sterna
from sterna.checkpoints import cache
from sterna.errors import RequestError


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "a model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def write_entry(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def store(key: str, writer: Callable[[Path], None] = write_entry) -> Path | None:
    return cache.store_behind(key, writer).wait()


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.name.startswith(".")]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    for sterna_cache, xdg, expected in [
        (str(tmp_path / "x"), "/xdg", tmp_path / "x"),
        ("~/y", "/xdg", tmp_path / "home" / "y"),
        ("", str(tmp_path), tmp_path / "sterna"),
        ("", "relative", tmp_path / "home" / ".cache" / "sterna"),
        ("", "", tmp_path / "home" / ".cache" / "sterna"),
        ("off", str(tmp_path), None),
        ("OFF", "", None),
    ]:
        monkeypatch.setenv("STERNA_CACHE", sterna_cache)
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache.cache_dir() == expected
    monkeypatch.setenv("STERNA_CACHE", "relative")
    monkeypatch.chdir(tmp_path)
    assert cache.cache_dir() == tmp_path / "relative"


def test_the_key_follows_what_matters(source: Path, tmp_path: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    assert key == cache.cache_key(str(source) + os.sep, "i2", "bf16")
    seen = {key, cache.cache_key(source, "i2", "int8"), cache.cache_key(source, None, None)}
    (source / "README.md").write_text("no matter")
    assert cache.cache_key(source, "i2", "bf16") == key
    weights = source / "model.safetensors"
    for change in (
        lambda: os.utime(weights, ns=(0, 10**18)),
        lambda: os.utime(weights, ns=(0, 10**18 + 1000)),
        lambda: weights.write_text("{} "),
        lambda: (source / "chat_template.jinja").touch(),
        lambda: (source / "tokenizer.json").unlink(),
        lambda: source.rename(source.with_name("b")),
    ):
        change()
        folder = source if source.exists() else source.with_name("b")
        seen.add(cache.cache_key(folder, "i2", "bf16"))
    assert len(seen) == 9
    seen.add(cache.cache_key(tmp_path / "b" / "model.safetensors", "i2", "bf16"))
    assert len(seen) == 10


def test_the_key_follows_the_layout(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.cache_key(source, "i2", "bf16")
    monkeypatch.setattr(cache, "LAYOUT_VERSION", cache.LAYOUT_VERSION + 1)
    assert cache.cache_key(source, "i2", "bf16") != before


def test_a_missing_source_and_a_foreign_key(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="must be readable"):
        cache.cache_key(tmp_path / "missing", "i2", "bf16")
    good = "m-" + "0" * 20 + "-" + "1" * 20
    assert cache.lookup(good) is None
    for key in ("", "..", "../" + good, "/" + good, "." + good, good + "/x", good + "\n"):
        with pytest.raises(ValueError, match="cache key"):
            cache.lookup(key)


@pytest.mark.parametrize("name", ["...", "-", "модель", "x" * 200, "a b;c"])
def test_any_folder_name_makes_a_key(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    key = cache.cache_key(tmp_path / name, "i2", "bf16")
    assert cache.lookup(key) is None
    assert store(key) is not None


def test_store_then_lookup(source: Path, root: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    assert cache.lookup(key) is None
    started, go_on = threading.Event(), threading.Event()

    def writer(folder: Path) -> None:
        started.set()
        assert go_on.wait(HANGS_S)
        write_entry(folder)

    handle = cache.store_behind(key, writer)
    assert started.wait(HANGS_S)
    assert not handle.done
    assert cache.lookup(key) is None  # nothing to be seen before it is whole
    assert handle.wait(0.01) is None
    go_on.set()
    assert handle.wait() == cache.lookup(key) == root / key
    assert handle.done
    assert leftovers(root) == []
    assert cache.entries() == [(root / key, 9)]


def test_a_stored_entry_is_not_written_again(source: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    assert store(key) is not None
    assert store(key, lambda folder: pytest.fail("written twice")) is not None


def test_an_incomplete_entry_is_replaced(source: Path, root: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    (root / key).mkdir(parents=True)
    (root / key / "config.json").write_text("{}")
    assert cache.lookup(key) is None
    assert store(key) == root / key
    assert leftovers(root) == []


def test_two_writers_of_one_key(source: Path, root: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    both = threading.Barrier(2)

    def writer(folder: Path) -> None:
        both.wait(HANGS_S)
        write_entry(folder)
        both.wait(HANGS_S)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handles = [cache.store_behind(key, writer) for _ in range(2)]
        assert [handle.wait() for handle in handles] == [root / key] * 2
    assert [path.name for path in root.iterdir()] == [key]


def test_a_newer_state_replaces_the_older_and_nothing_else(source: Path, root: Path) -> None:
    other = cache.cache_key(source, "i8", "bf16")
    old = cache.cache_key(source, "i2", "bf16")
    assert store(other) is not None
    assert store(old) is not None
    (source / "model.safetensors").write_text("changed")
    new = cache.cache_key(source, "i2", "bf16")
    assert store(new) is not None
    assert sorted(path.name for path in root.iterdir()) == sorted([other, new])


def test_discard(source: Path, root: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    cache.discard(key)
    assert store(key) is not None
    cache.discard(key)
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RequestError("x: no"), MemoryError()]
)
def test_a_failing_writer_is_a_warning(source: Path, root: Path, error: Exception) -> None:
    key = cache.cache_key(source, "i2", "bf16")

    def writer(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise error

    with pytest.warns(RuntimeWarning, match="cache not written"):
        assert store(key, writer) is None
    assert list(root.iterdir()) == []


def test_an_unusable_place_is_a_warning(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "file" / "cache"))
    key = cache.cache_key(source, "i2", "bf16")
    with pytest.warns(RuntimeWarning, match="cache not written"):
        assert store(key) is None
    assert cache.lookup(key) is None
    assert cache.entries() == []
    cache.discard(key)


def test_warnings_as_errors_do_not_end_in_a_traceback(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caught: list[object] = []
    monkeypatch.setattr(threading, "excepthook", caught.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store(cache.cache_key(source, None, None), lambda folder: None) is None
        assert store(cache.cache_key(source, "i2", None), lambda folder: 1 / 0) is None  # type: ignore[arg-type,return-value]
    assert caught == []


def test_off(source: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_CACHE", "off")
    key = cache.cache_key(source, "i2", "bf16")
    assert store(key, lambda folder: pytest.fail("written")) is None
    assert cache.lookup(key) is None
    assert cache.entries() == []
    cache.discard(key)
    assert not root.exists()


def test_what_is_locked_is_somebodys(root: Path) -> None:
    """A folder of a writer that lives stays, however old; one without is swept after a minute."""
    (root / ".mine.tmp").mkdir(parents=True)
    (root / ".left.tmp").mkdir()
    with cache._claimed(root / ".mine.tmp"):
        for name, age in ((".mine.tmp", 7200), (".left.tmp", 120)):
            os.utime(root / name, (time.time() - age,) * 2)
        cache.lookup(f"x-{'0' * 20}-{'0' * 20}")
        assert leftovers(root) == [root / ".mine.tmp"]
    os.utime(root / ".mine.tmp", (time.time() - 120,) * 2)
    cache.lookup(f"x-{'0' * 20}-{'0' * 20}")
    assert leftovers(root) == []


def test_what_a_killed_process_left_is_swept(source: Path, root: Path) -> None:
    for name in (".old.tmp", ".young.tmp", "foreign"):
        (root / name).mkdir(parents=True)
        (root / name / "x").touch()
    os.utime(root / ".old.tmp", (0, 0))
    os.utime(root / ".young.tmp", (time.time() + HANGS_S,) * 2)
    os.utime(root / "foreign", (0, 0))
    assert store(cache.cache_key(source, "i2", "bf16")) is not None
    assert not (root / ".old.tmp").exists()
    assert (root / ".young.tmp").exists()
    assert (root / "foreign").exists()


def _leaving(key: str, writer: str) -> subprocess.Popen[str]:
    """A process that stores an entry behind its back, says so at its end and waits."""
    script = f"""
import os, time
from sterna.checkpoints import cache
from sterna.cli import _leave_in_order
_leave_in_order()
said, join = [], cache.BackgroundWrite.join
def writer(folder):
    {writer}
    (folder / "config.json").write_text("{{}}")
    (folder / "model.safetensors").touch()
cache.store_behind({key!r}, writer)
def told(self, timeout_s=None):
    if not said:
        said.append(os.write(1, b"leaves\\n"))
    join(self, timeout_s)
cache.BackgroundWrite.join = told
"""
    paths = [*sterna.__path__, *sys.path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(paths[0]).parent), *sys.path]),
    }
    return spawn(
        [sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_process_waits_at_its_exit(source: Path, root: Path) -> None:
    key = cache.cache_key(source, "i2", "bf16")
    process = _leaving(key, "while not said: time.sleep(0.01)")
    assert process.communicate(timeout=HANGS_S) == ("leaves\n", "")
    assert process.returncode == 0
    assert cache.lookup(key) == root / key


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(source: Path, root: Path, number: signal.Signals) -> None:
    """A signal removes what is half written, whether the writer listens or not."""
    key = cache.cache_key(source, "i2", "bf16")
    writer = """
    (folder / "a").write_bytes(b"x" * 1_000_000)
    from sterna.files.writing import replacing_directory
    with replacing_directory(folder / "b", 1) as half:
        (half / "c").write_bytes(b"x")
        os.write(1, b"writes\\n")
        time.sleep(1000)
"""
    process = _leaving(key, writer)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"leaves\n", "writes\n"}
    assert leftovers(root)
    process.send_signal(number)
    assert process.communicate(timeout=HANGS_S) == ("", "")  # no traceback
    assert process.returncode == 0
    assert list(root.iterdir()) == []


def test_a_wait_says_why(source: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it takes a while; it ends, and what is half written is removed."""
    monkeypatch.setattr(cache, "EXIT_WAIT_S", 0.0)
    monkeypatch.setattr(cache, "_SILENT_S", 0.0)
    writing, over = threading.Event(), threading.Event()
    said: list[str] = []

    def writer(folder: Path) -> None:
        (folder / "half").touch()
        writing.set()
        over.wait()
        (folder / "more").touch()

    running = cache.store_behind(cache.cache_key(source, "i2", "bf16"), writer)
    writing.wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.finish(said.append)
        assert list(root.iterdir()) == []
        cache.finish(said.append)  # nothing is left to wait for
        over.set()
        assert running.wait(HANGS_S) is None
    assert not caught  # why it was not written is known
    (text,) = said
    assert "Ctrl-C" in text
