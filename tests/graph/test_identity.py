"""A model's digest: of what it computes, from whatever files; another where bits are others."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_factory import RECIPES
from gguf_factory import Tiny, write

from sterna import loading
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.graph import identity
from sterna.graph.ops import CopyOp, Value

#: One of each architecture and way to store weights.
KINDS = {(r.architecture, r.weights, r.tied): name for name, r in RECIPES.items()}.values()
GGUF = {
    "llama": Tiny(types={"": "Q4_1"}),
    "qwen2": Tiny(arch="qwen2", types={"": "Q4_K", "attn_v": "Q6_K"}, table="Q8_0"),
    "qwen3": Tiny(arch="qwen3", types={"": "Q8_0"}, table="F16", tied=False),
}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))


def digests(path: Path, folder: Path) -> list[str]:
    """Of the first start, which packs; of the second, from the cache; of a packed folder."""
    first = loading.load(path)
    assert first.cache_key is not None
    first.keep()
    assert first.store is not None
    assert first.store.wait() is not None
    second = loading.load(path)
    assert second.cache_key is None
    loading.save(first, folder / "packed")
    return [first.digest, second.digest, loading.load(folder / "packed").digest]


@pytest.mark.parametrize("name", KINDS)
def test_one_digest_however_it_is_read(
    name: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    assert len(set(digests(checkpoint(name), tmp_path))) == 1


@pytest.mark.parametrize("name", GGUF)
def test_one_digest_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", GGUF[name])
    found = digests(tmp_path / "a.gguf", tmp_path)
    assert len(set(found)) == 1
    write(tmp_path / "b.gguf", replace(GGUF[name], seed=1))
    assert loading.load(tmp_path / "b.gguf", cached=False).digest not in found


CONFIG: dict[str, Any] = {
    "rms_norm_eps": 2e-5, "rope_theta": 20000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 3.0},
}  # fmt: skip


def test_what_changes_bits_changes_it(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A field of config.json, the format, one weight of any tensor; not a field without use."""
    source = checkpoint("llama-f32")
    config = json.loads((source / "config.json").read_text())
    plain = loading.load(source, cached=False).digest
    seen = {plain, *(loading.load(source, cached=False, format=f).digest for f in ("i8", "i4"))}
    for number, (key, value) in enumerate(CONFIG.items()):
        folder = copied(source, tmp_path / str(number))
        (folder / "config.json").write_text(json.dumps({**config, key: value}))
        seen.add(loading.load(folder, cached=False).digest)
    file = SafetensorsFile(source / "model.safetensors")
    for name in file.tensors:
        folder = copied(source, tmp_path / name)
        raise_first_value(folder / "model.safetensors", name)
        seen.add(loading.load(folder, cached=False).digest)
    assert len(seen) == 3 + len(CONFIG) + len(file.tensors)
    folder = copied(source, tmp_path / "unread")
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "x", "author": 1}))
    assert loading.load(folder, cached=False).digest == plain


def copied(source: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def raise_first_value(path: Path, name: str) -> None:
    """The next float32 of a tensor's first."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    start = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
    value = np.frombuffer(data, "<f4", 1, start)[0]
    data[start : start + 4] = np.nextafter(value, np.float32(9), dtype=np.float32).tobytes()
    path.write_bytes(data)


def test_a_field_of_an_unknown_type_is_an_error(checkpoint: Callable[[str], Path]) -> None:
    """Something that the digest would not cover cannot slip into an operation."""
    graph = loading.load(checkpoint("llama-f32"), cached=False).graph
    spoiled = replace(graph, ops=[*graph.ops, CopyOp(name="x", output=Value(1), x=object())])
    with pytest.raises(TypeError, match="object"):
        identity.digest(spoiled)
