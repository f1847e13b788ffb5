"""The packed directory: round trips in every format, and damaged or hostile folders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_numbers import any_scales, number_of

from sterna import formats
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_config import LAYOUT_VERSION
from sterna.checkpoints.packed_directory import open_packed, read_packed
from sterna.checkpoints.packed_writer import write_packed
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.convert.verification import VERIFIED, verify
from sterna.errors import ModelFormatError
from sterna.formats import PackedWeight
from sterna.formats.codec import packed_scale

EDGES = [0, 1, -1, 2**31, 2**63, 2**64 - 1]
NORM = np.array([1.0, -0.0, 1e-34, 3.4e38], np.float32)  # a denormal is normal input


def weight(name: str, M: int, K: int, row: bool = False, seed: int = 0) -> PackedWeight:
    """Any bytes of the right size: here only their place matters, not their meaning."""
    layout, rng = formats.get(name), np.random.default_rng(seed)
    K += -K % (layout.scales.block)
    codes = rng.integers(0, 256, (layout.n_tiles(M), layout.tile_bytes(K)), np.uint8)
    if layout.codebook and layout.codebook.max_code == 2:
        codes &= ~(codes & (codes >> 1) & 0x55)  # no ternary code is 3
    if not layout.integer:
        codes &= 0xBF  # clears an exponent bit of every float: none is infinite or NaN
    if layout.scales.group:
        scale: Any = rng.integers(1, 16, layout.scales.shape(M, K))
        if layout.scales.single:
            scale = any_scales(number_of(layout), scale.shape, rng)
        return PackedWeight(layout, M, K, codes, packed_scale(layout, scale, M, K))
    scale = rng.random(M if row else ()) if row else rng.random()
    return PackedWeight(layout, M, K, codes, np.asarray(scale, np.float32))


def make(folder: Path, name: str = "i2") -> dict[str, PackedWeight]:
    modules = {"a.q": weight(name, 65, 70), "a.k": weight(name, 3, 64, row=True, seed=1)}
    write_packed(folder, {"model_type": "tiny"}, modules, {"norm.weight": NORM})
    return modules


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def edit_module(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["modules"]["a.q"].update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def read_one_by_one(folder: Path) -> None:
    model = open_packed(folder)
    for read in (model.modules, model.tensors):
        for name in read:
            read[name]


def refuse(folder: Path, part: str = "") -> ModelFormatError:
    for function in (read_packed, read_one_by_one):
        with pytest.raises(ModelFormatError) as caught:
            function(folder)
        assert part in str(caught.value)
        assert str(caught.value).isprintable()
    return caught.value


def hashes(folder: Path) -> list[str]:
    """What `verify` says of each tensor."""
    return [check.status for check in verify(folder) if check.tensor]


def assert_same(got: PackedWeight, expected: PackedWeight) -> None:
    assert (got.format, got.M, got.K) == (expected.format, expected.M, expected.K)
    np.testing.assert_array_equal(got.codes, expected.codes)
    assert got.scale.dtype == expected.scale.dtype
    assert got.scale.shape == expected.scale.shape
    np.testing.assert_array_equal(got.scale, expected.scale)


@pytest.mark.parametrize("name", [*sorted(formats.names()), "i2:g64"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    modules = make(tmp_path / "m", name)
    model = read_packed(tmp_path / "m")
    assert set(model.modules) == set(modules)
    for key, expected in modules.items():
        assert_same(model.modules[key], expected)
        assert model.modules[key].codes.ctypes.data % 64 == 0
    assert model.tensors["norm.weight"].tobytes() == NORM.tobytes()
    assert set(model.tensors) == {"norm.weight"}
    assert model.config["model_type"] == "tiny"
    assert Checkpoint.open(tmp_path / "m").is_packed
    assert hashes(tmp_path / "m") == [VERIFIED] * 5


def test_the_config_says_what_the_design_says(tmp_path: Path) -> None:
    config = {"a": 1, "quantization_config": {"quant_method": "bitnet"}}
    modules = {"q": weight("i2", 5, 6), "h": weight("bf16", 7, 8, row=True)}
    write_packed(tmp_path / "m", config, modules, {}, default_format="i2")
    assert json.loads((tmp_path / "m" / "config.json").read_text()) == {
        "a": 1,
        "quantization_config": {
            "quant_method": "sterna",
            "layout_version": LAYOUT_VERSION,
            "default_format": "i2",
            "modules": {
                "q": {"format": "i2", "M": 5, "K": 6, "scale": "tensor"},
                "h": {"format": "bf16", "M": 7, "K": 8, "scale": "row"},
            },
        },
    }
    assert config["quantization_config"] == {"quant_method": "bitnet"}
    shapes = {
        n: i.shape for n, i in SafetensorsFile(tmp_path / "m/model.safetensors").tensors.items()
    }
    assert set(shapes) == {"q.codes", "q.scale", "h.codes", "h.scale"}
    assert shapes["h.scale"] == (7,)
    assert shapes["q.scale"] == ()


def test_our_file_is_one_read_into_one_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "m")
    reads: list[int] = []
    read_into = SafetensorsFile.read_into

    def counting(self: SafetensorsFile, buffer: memoryview, spans: Any) -> None:
        reads.append(len(spans))
        read_into(self, buffer, spans)

    monkeypatch.setattr(SafetensorsFile, "read_into", counting)
    model = read_packed(tmp_path / "m")
    assert reads == [1]
    arrays = [w.codes for w in model.modules.values()] + list(model.tensors.values())
    starts = [a.ctypes.data for a in arrays]
    size = SafetensorsFile(tmp_path / "m/model.safetensors").data_nbytes
    assert max(starts) - min(starts) < size


def test_a_file_rewritten_by_the_package_reads_the_same(tmp_path: Path) -> None:
    modules = make(tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(path), path)  # f32 first, unaligned
    model = read_packed(tmp_path / "m")
    for key, expected in modules.items():
        assert_same(model.modules[key], expected)
        assert model.modules[key].codes.ctypes.data % 64 == 0
    assert model.tensors["norm.weight"].tobytes() == NORM.tobytes()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(formats.names())),
            st.integers(1, 200),
            st.integers(1, 200),
            st.booleans(),
        ),
        max_size=4,
    ),
    st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=4),
)
def test_any_mix_of_modules_and_tensors(
    tmp_path_factory: Any, shapes: list[tuple[str, int, int, bool]], tensors: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("mix") / "m"
    modules = {f"m{i}": weight(*shape, seed=i) for i, shape in enumerate(shapes)}
    plain = {
        f"t{i}": np.arange(math.prod(s), dtype=np.float32).reshape(s) for i, s in enumerate(tensors)
    }
    write_packed(folder, {}, modules, plain)
    model = read_packed(folder)
    assert set(model.modules) == set(modules)
    assert set(model.tensors) == set(plain)
    for key, expected in modules.items():
        assert_same(model.modules[key], expected)
    for key, array in plain.items():
        np.testing.assert_array_equal(model.tensors[key], array)
        assert model.tensors[key].shape == array.shape


def test_assets_are_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    copied = ("tokenizer.json", "generation_config.json", "chat_template.jinja", "LICENSE")
    for name in (*copied, "model.safetensors", "config.json", "modeling.py"):
        (source / name).write_text(f"text of {name}")
    write_packed(tmp_path / "m", {"x": 1}, {}, {"norm": NORM}, source=source)
    names = {path.name for path in (tmp_path / "m").iterdir()}
    assert names == {*copied, "config.json", "model.safetensors"}
    assert (tmp_path / "m/tokenizer.json").read_text() == "text of tokenizer.json"
