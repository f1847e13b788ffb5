"""Packed folders that are refused, by name; and what a writer leaves after a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from lookup_tiles import lookup_tiles
from test_packed_directory import (
    EDGES,
    NORM,
    assert_same,
    edit_config,
    edit_module,
    hashes,
    make,
    refuse,
    weight,
)

from sterna import formats, ops
from sterna.checkpoints.packed_config import EARLIER_VERSIONS, LAYOUT_VERSION
from sterna.checkpoints.packed_directory import open_packed, read_packed
from sterna.checkpoints.packed_writer import write_packed
from sterna.checkpoints.safetensors import SafetensorsFile, SafetensorsWriter, write_safetensors
from sterna.convert.verification import DAMAGED, VERIFIED, verify
from sterna.errors import NonFiniteError, RequestError
from sterna.formats import PackedWeight

# --- refusals ---------------------------------------------------------------------------------


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    write_packed(tmp_path, {}, {"q": weight("i2", 1, 1)}, {"norm": NORM})
    for name in ("model.safetensors", "config.json"):
        data = (tmp_path / name).read_bytes()
        whole = len(data.rstrip()) if name.endswith("json") else len(data)
        for length in range(whole):
            (tmp_path / name).write_bytes(data[:length])
            refuse(tmp_path, name)
        (tmp_path / name).write_bytes(data)
    assert hashes(tmp_path) == [VERIFIED] * 3


READ = {LAYOUT_VERSION, *EARLIER_VERSIONS}


@pytest.mark.parametrize("value", [v for v in EDGES if v not in READ] + [None, "1", True])
def test_layout_version(tmp_path: Path, value: Any) -> None:
    make(tmp_path)
    edit_config(tmp_path, layout_version=value)
    refuse(tmp_path, "layout_version")


@pytest.mark.parametrize("version", EARLIER_VERSIONS)
def test_an_earlier_layout_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """It is read where it packs the folder's formats in the same way."""
    make(tmp_path)
    edit_config(tmp_path, layout_version=version)
    formats = {module.format.name for module in read_packed(tmp_path).modules.values()}
    assert formats.isdisjoint(EARLIER_VERSIONS[version])
    monkeypatch.setitem(EARLIER_VERSIONS, version, frozenset(formats))
    refuse(tmp_path, f"layout_version: expected {LAYOUT_VERSION}")


#: A lookup-table format in files -> the levels of its codes, and the format that has them.
LOOKUP_LEVELS = {
    **dict.fromkeys(("tl1_0", "tl1_1", "tmac2_0", "tmac2_1"), (range(-1, 2), "i2")),
    **dict.fromkeys(("tl2_0", "tl2_1"), (range(-1, 2), "t5")),
    "elut4": (range(-3, 4, 2), "i2p"),
    "elut5": (range(-2, 3), "i4"),
}


def lookup_folder(folder: Path, name: str, suffix: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Write a packed folder as earlier versions did; return its levels and scales."""
    rng = np.random.default_rng(3)
    levels, _ = LOOKUP_LEVELS[name]
    codes = rng.integers(0, len(levels), (70, 250)).astype(np.uint8)
    scale = rng.random(70).astype(np.float32)
    entry = {"format": name + suffix, "M": 70, "K": 250, "scale": "row"}
    quantization = {"quant_method": "sterna", "layout_version": LAYOUT_VERSION,
                    "default_format": name + suffix, "modules": {"a.q": entry}}  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))
    tiles = lookup_tiles(name, codes)
    write_safetensors(folder / "model.safetensors", {"a.q.codes": tiles, "a.q.scale": scale})
    return np.array(levels, np.int8)[codes], scale


@pytest.mark.parametrize("name", LOOKUP_LEVELS)
def test_lookup_tables_of_earlier_versions(tmp_path: Path, name: str) -> None:
    """Their weights are read into a format of the same levels, with a warning."""
    levels, scale = lookup_folder(tmp_path / "m", name)
    becomes = LOOKUP_LEVELS[name][1]
    with pytest.warns(RuntimeWarning, match=f"{name} are read into {becomes}"):
        (weight,) = read_packed(tmp_path / "m").modules.values()
    assert weight.format == becomes
    assert_same(weight, ops.pack(levels, scale, format=becomes))
    with pytest.warns(RuntimeWarning, match="sterna convert"):
        assert_same(open_packed(tmp_path / "m").modules["a.q"], weight)


def test_lookup_tables_with_a_suffix(tmp_path: Path) -> None:
    lookup_folder(tmp_path / "m", "tl1_1", ":row")
    with pytest.warns(RuntimeWarning, match="tl1_1:row are read into i2:row"):
        assert read_packed(tmp_path / "m").modules["a.q"].format == "i2:row"


@pytest.mark.filterwarnings("ignore:.* are read into:RuntimeWarning")
def test_damaged_lookup_tables(tmp_path: Path) -> None:
    """A code that is no level, and too few bytes, are refused."""
    lookup_folder(tmp_path / "m", "tmac2_1")
    file = SafetensorsFile(tmp_path / "m/model.safetensors")
    tensors = {name: np.array(file.read(name)) for name in file.tensors}
    tensors["a.q.codes"][0, 77] |= 0x11
    write_safetensors(tmp_path / "m/model.safetensors", tensors)
    refuse(tmp_path / "m", "a code that it does not have")
    tensors["a.q.codes"] = tensors["a.q.codes"][:, :-64]
    write_safetensors(tmp_path / "m/model.safetensors", tensors)
    refuse(tmp_path / "m", "a.q.codes")


@pytest.mark.parametrize("value", [*EDGES, None, "64", True, 64.0])
@pytest.mark.parametrize("key", ["M", "K"])
def test_dimensions_at_edges(tmp_path: Path, key: str, value: Any) -> None:
    make(tmp_path)  # M=65, K=70: two tiles of two k-blocks, so 1 does not fit either
    edit_module(tmp_path, **{key: value})
    refuse(tmp_path, "a.q")


def test_dimensions_that_round_up_to_the_same_tiles_are_sound(tmp_path: Path) -> None:
    make(tmp_path)
    edit_module(tmp_path, M=128, K=128)
    model = read_packed(tmp_path)
    assert (model.modules["a.q"].M, model.modules["a.q"].K) == (128, 128)


def test_a_k_that_overflows_int32_sums_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    edit_module(tmp_path, K=2**30)
    assert "at most" in str(refuse(tmp_path, "modules.a.q").remedy)


@pytest.mark.parametrize("key", ["format", "scale"])
@pytest.mark.parametrize("value", [None, "", "group:32", "row", "i7", 2, [], {}])
def test_format_and_scale_of_a_module(tmp_path: Path, key: str, value: Any) -> None:
    make(tmp_path)
    edit_module(tmp_path, **{key: value})
    refuse(tmp_path, "a.q")


@pytest.mark.parametrize(
    ("format", "why"),
    [
        ("lut2-7f000000", "-8..7"),
        ("lut4-00", "32 hexadecimal digits"),
        ("i4:g33", "multiple of 32"),
    ],
)
def test_scales_and_levels_that_no_format_has(tmp_path: Path, format: str, why: str) -> None:
    make(tmp_path)
    edit_module(tmp_path, format=format)
    assert why in str(refuse(tmp_path, "modules.a.q.format").remedy)


@pytest.mark.parametrize(
    "changes",
    [
        {"quant_method": "bitnet"},
        {"default_format": "i7"},
        {"default_format": None},
        {"modules": None},
        {"modules": []},
        {"modules": {"a.q": None}},
        {"modules": {"a.q": 1}},
        {"modules": {}},
        {"modules": {"b": {"format": "i2", "M": 1, "K": 1, "scale": "row"}}},
    ],
)
def test_bad_quantization_configs_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    make(tmp_path)
    edit_config(tmp_path, **changes)
    refuse(tmp_path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a.q.codes", np.zeros((2, 1024), np.uint8)),
        ("a.q.codes", np.zeros((1, 2048), np.int8)),
        ("a.q.codes", None),
        ("a.q.scale", np.zeros(65, np.float32)),
        ("a.q.scale", np.zeros((), np.float16)),
        ("a.k.scale", np.zeros((3, 1), np.float32)),
        ("a.k.scale", None),
        ("norm.weight", np.zeros(4, np.float16)),
        ("extra.codes", np.zeros((1, 64), np.uint8)),
    ],
)
def test_missing_and_misshapen_tensors_are_refused(
    tmp_path: Path, name: str, array: np.ndarray | None
) -> None:
    make(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    tensors.pop(name, None)
    write_safetensors(path, tensors if array is None else {**tensors, name: array})
    assert refuse(tmp_path, "model.safetensors").field == name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["a.q.scale", "a.k.scale", "norm.weight"])
def test_non_finite_floats_are_refused(tmp_path: Path, name: str, value: float) -> None:
    make(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {n: a.copy() for n, a in safetensors.numpy.load_file(path).items()}
    tensors[name].reshape(-1)[-1] = value
    write_safetensors(path, tensors)
    with pytest.raises(NonFiniteError, match=name):
        read_packed(tmp_path)


def test_verify_finds_one_flipped_bit(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    info = SafetensorsFile(path).tensors["a.k.codes"]
    at = next(i for i in range(info.offset, len(data)) if not data[i] & 2)
    data[at] ^= 1  # the code 0 becomes 1, or 1 becomes 0: still a valid file
    path.write_bytes(data)
    read_packed(tmp_path)  # loading checks the structure only
    (bad,) = [check for check in verify(tmp_path) if check.status == DAMAGED]
    assert (bad.tensor, "SHA-256" in str(bad.problem)) == ("a.k.codes", True)


def test_the_writer_refuses_what_does_not_fit(tmp_path: Path) -> None:
    good = weight("i2", 65, 70)
    bad = [
        PackedWeight(formats.get("i2"), 65, 700, good.codes, good.scale),
        PackedWeight(formats.get("i2"), 65, 70, good.codes.astype(np.int8), good.scale),
        PackedWeight(formats.get("i2"), 65, 70, good.codes, np.zeros(64, np.float32)),
        PackedWeight(formats.get("i2"), 65, 70, good.codes, np.zeros((), np.float64)),
        PackedWeight("i7", 65, 70, good.codes, good.scale),
    ]
    for module in bad:
        with pytest.raises(RequestError):
            write_packed(tmp_path / "m", {}, {"q": module}, {})
    for tensors in ({"q.codes": NORM}, {"n": NORM.astype(np.float64)}):
        with pytest.raises(RequestError):
            write_packed(tmp_path / "m", {}, {"q": good}, tensors)
    for config in ({"a": float("nan")}, {"a": object()}):
        with pytest.raises(RequestError, match="finite numbers"):
            write_packed(tmp_path / "m", config, {"q": good}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_writer_overwrites_nothing_and_fills_an_empty_folder(tmp_path: Path) -> None:
    make(tmp_path)  # pytest's own empty folder
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RequestError, match="empty folder"):
        make(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(RequestError, match="empty folder"):
        make(tmp_path / "config.json")
    make(tmp_path / "new" / "parents")
    assert len(read_packed(tmp_path / "new" / "parents").modules) == 2


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SafetensorsWriter, "add", fail)
    with pytest.raises(RequestError, match="free disk space"):
        make(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
