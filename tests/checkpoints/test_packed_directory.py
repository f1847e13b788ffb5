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
from lookup_tiles import lookup_tiles
from scale_numbers import any_scales, number_of

from sterna import formats, ops
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_config import EARLIER_VERSIONS, LAYOUT_VERSION
from sterna.checkpoints.packed_directory import open_packed, read_packed
from sterna.checkpoints.packed_writer import write_packed
from sterna.checkpoints.safetensors import SafetensorsFile, SafetensorsWriter, write_safetensors
from sterna.convert.verification import DAMAGED, VERIFIED, verify
from sterna.errors import ModelFormatError, NonFiniteError, RequestError
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


def test_an_earlier_layout_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read where it packs the folder's formats in the same way."""
    make(tmp_path)
    edit_config(tmp_path, layout_version=2)
    formats = {module.format.name for module in read_packed(tmp_path).modules.values()}
    assert formats.isdisjoint(EARLIER_VERSIONS[2])
    monkeypatch.setitem(EARLIER_VERSIONS, 2, frozenset(formats))
    refuse(tmp_path, "layout_version: expected 3")


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
