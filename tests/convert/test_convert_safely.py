"""Conversion in little memory, and whole or not at all: full disks, kills, large models."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_factory as factory
import numpy as np
import pytest
from waits import HANGS_S

from sterna import loading
from sterna.checkpoints.safetensors import write_safetensors
from sterna.convert import convert
from sterna.convert.verification import VERIFIED, verify
from sterna.errors import RequestError
from sterna.files import writing


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for name in ("bitnet-multiply", "llama-f32", "llama-256"):
        factory.write(root / name, factory.RECIPES[name])
    return root


# -------------------------------------------------------------------------- full disks and kills


class Full:
    """A file on a disk with so much room: writes end in ENOSPC, as the kernel ends them."""

    room = 0

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Full:
        self.file.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.file.__exit__(*details)

    def write(self, data: Any) -> int:
        nbytes = memoryview(data).nbytes
        Full.room -= nbytes
        if Full.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(self.file.write(data))


def test_a_full_disk_at_any_point_leaves_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst = sources / "bitnet-multiply", tmp_path / "m"
    convert(src, dst, "i8")
    total = sum(p.stat().st_size for p in dst.iterdir())
    old = {p.name: p.read_bytes() for p in dst.iterdir()}
    fdopen = os.fdopen
    monkeypatch.setattr(writing.os, "fdopen", lambda *a, **k: Full(fdopen(*a, **k)))
    points = int(os.environ.get("STERNA_DISK_FULL_POINTS", "50"))
    for point in range(points):
        Full.room = total * point // points
        with pytest.raises(RequestError, match=r"bytes.*free disk space") as info:
            convert(src, dst, "i8", force=True)
        assert str(tmp_path) in str(info.value)
        assert {p.name: p.read_bytes() for p in dst.iterdir()} == old  # the model that was there
        assert [p.name for p in tmp_path.iterdir()] == ["m"]
    Full.room = 1 << 40
    convert(src, dst, "t5", force=True)
    assert loading.load(dst).format == "t5"


def test_disk_space_is_looked_at_beforehand(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    monkeypatch.setattr(
        writing.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 12_345)
    )
    with pytest.raises(RequestError, match=r"\d+ bytes of disk space, but 12345 are free"):
        convert(sources / "llama-f32", tmp_path / "m", "i8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("total", "writable"), [(0, True), (10**9, False)])
@pytest.mark.parametrize(("name", "format"), [("x", "i8"), ("x.gguf", "gguf:F16")])
def test_a_place_for_no_files_is_not_called_full(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, format: str,
    total: int, writable: bool,
) -> None:  # fmt: skip
    """A place for others' files alone: the error is that of writing, not of no bytes free."""

    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    os_open, mkdir = os.open, Path.mkdir

    def refused_open(path: Any, *args: Any, **named: Any) -> int:
        if str(path).startswith(str(tmp_path)):
            raise denied
        return os_open(path, *args, **named)

    def refused_mkdir(path: Path, *args: Any, **named: Any) -> None:
        if path.is_relative_to(tmp_path):
            raise denied
        mkdir(path, *args, **named)

    monkeypatch.setattr(writing.shutil, "disk_usage", lambda _: (total, 0, 0))
    monkeypatch.setattr(writing.os, "access", lambda *_: writable)
    monkeypatch.setattr(writing.os, "open", refused_open)
    monkeypatch.setattr(Path, "mkdir", refused_mkdir)
    with pytest.raises(RequestError, match="must be writable") as info:
        convert(sources / "llama-256", tmp_path / name, format)
    assert "free" not in str(info.value)


KILLED = """
import os, signal, sys
from pathlib import Path
from sterna.convert import convert
left = int(sys.argv[3])
def deadly(module, name):
    real = getattr(module, name)
    def call(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    setattr(module, name, call)
for name in ("open", "fsync", "replace", "mkdir", "rename", "close"):
    deadly(os, name)
from sterna.checkpoints.safetensors import SafetensorsWriter
for name in ("add", "finish", "_write"):
    deadly(SafetensorsWriter, name)
from sterna.convert import gguf_export
for name in ("_write_rows", "_replace", "blocks_of"):
    deadly(gguf_export, name)
convert(sys.argv[1], sys.argv[2], sys.argv[4], force=True)
print(left)
"""


def run_killed(src: Path, dst: Path, after: int, format: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(src), str(dst), str(after), format],
        capture_output=True, text=True, check=False, timeout=HANGS_S,
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("source", "name", "formats_"),
    [("bitnet-multiply", "m", ("i8", "t5")), ("llama-256", "m.gguf", ("gguf:Q8_0", "gguf:F16"))],
)
def test_a_kill_at_any_point_leaves_no_half_model(
    sources: Path, tmp_path: Path, source: str, name: str, formats_: tuple[str, str]
) -> None:
    """STERNA_KILLS: how many."""
    src, dst = sources / source, tmp_path / name
    budget = 1 << 30
    done = run_killed(src, dst, budget, formats_[0])
    assert done.returncode == 0, done.stderr
    events = budget - int(done.stdout)
    kills = int(os.environ.get("STERNA_KILLS", "4"))
    rng = np.random.default_rng(0)
    # The last events are those of renaming, where most could go wrong.
    points = [*range(max(0, events - kills // 2), events), *rng.integers(0, events, kills)]
    killed = 0
    for point in points[:kills]:
        done = run_killed(src, dst, int(point), formats_[killed % 2])
        killed += done.returncode == -9
        if dst.exists():  # for a moment of a replacement there is no model, but never half of one
            assert {check.status for check in verify(dst)} == {VERIFIED}
    assert killed >= kills // 2
    convert(src, dst, formats_[1], force=True)
    assert {check.status for check in verify(dst)} == {VERIFIED}
    assert [p.name for p in tmp_path.iterdir()] == [name], "what the killed left is swept"


# --------------------------------------------------------------------------------------- memory

BIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 4096,
    "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128,
    "vocab_size": 4096, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
}  # fmt: skip

# Less what imports take; VmHWM and not ru_maxrss, which a child has from its parent.
MEASURED = """
import re, sys
from sterna.convert import convert
def kilobytes(what):
    return int(re.search(what + r":\\s+(\\d+) kB", open("/proc/self/status").read()).group(1))
before = kilobytes("VmRSS")
convert(sys.argv[1], sys.argv[2], sys.argv[3] or None, threads=1)
print(kilobytes("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nine matrices of 17 MB in bf16 and more: 0.2 GB, the random bits of one."""
    folder = tmp_path_factory.mktemp("big")
    values = np.random.default_rng(0).standard_normal((4096, 2048), np.float32) * np.float32(0.02)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    tensors: dict[str, Any] = {"model.norm.weight": np.ones(2048, np.float32)}
    tensors["model.embed_tokens.weight"] = ("BF16", bits)
    for i in range(3):
        layer = f"model.layers.{i}"
        for name in ("gate", "up"):
            tensors[f"{layer}.mlp.{name}_proj.weight"] = ("BF16", bits)
        tensors[f"{layer}.mlp.down_proj.weight"] = ("BF16", bits.reshape(2048, 4096))
        for name, rows in (("q", 2048), ("k", 256), ("v", 256), ("o", 2048)):
            tensors[f"{layer}.self_attn.{name}_proj.weight"] = ("BF16", bits[:rows])
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = np.ones(2048, np.float32)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(BIG))
    factory.tokenizer().save(str(folder / "tokenizer.json"))
    yield folder
    (folder / "model.safetensors").unlink()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("format", ["", "gguf:F16"])
def test_memory_is_that_of_a_tensor_not_of_the_model(
    big: Path, tmp_path: Path, format: str
) -> None:
    """At most three times the largest tensor and 100 MB, of a model of 0.2 GB."""
    suffix = ".gguf" if format.startswith("gguf:") else ""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(big), str(tmp_path / f"m{suffix}"), format],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    limit = 3 * 4096 * 2048 * 2 + 100_000_000
    assert 1024 * int(done.stdout) <= limit
    assert limit < 0.75 * (big / "model.safetensors").stat().st_size
    assert sum(p.stat().st_size for p in tmp_path.rglob("*")) > 0.1 * limit
