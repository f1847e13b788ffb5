"""Conversion and quantisation: the same model as a direct load, in little memory, whole or not."""

from __future__ import annotations

import math
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest

from sterna import LLM, formats, loading, ops
from sterna.convert import convert, with_scales
from sterna.convert.verification import VERIFIED, verify
from sterna.errors import RequestError, UnsupportedModelError
from sterna.formats.weighted import rounded
from sterna.gguf.file import GgufFile
from sterna.weights.rounding import Rows, has_levels_of, row_chunks
from sterna.weights.sources import WeightSource

SOURCES = ("bitnet-multiply", "bitnet-online", "falcon-e", "llama-bf16", "llama-f32", "llama-256")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        factory.write(root / name, factory.RECIPES[name])
    return root


def assert_same(got: WeightSource, want: WeightSource) -> None:
    assert got.modules.keys() == want.modules.keys()
    for name, weight in want.modules.items():
        other = got.modules[name]
        assert (other.format, other.shape) == (weight.format, weight.shape), name
        np.testing.assert_array_equal(other.codes, weight.codes, err_msg=name)
        np.testing.assert_array_equal(other.scale, weight.scale, err_msg=name, strict=True)
    assert got.tensors.keys() == want.tensors.keys()
    for name, tensor in want.tensors.items():
        np.testing.assert_array_equal(got.tensors[name], tensor, err_msg=name)


TERNARY = [("t5", None), ("i2", "int8"), ("t5:row", "f16"), ("i8", None), ("pot4z", None)]
FLOAT = [("i4", None), ("bf16", "q8_0"), ("i2p", "i8"), ("i1", None), ("i2", "f32")]
GROUPS = [("q4_0", "q6_k"), ("q4_k", None), ("tq2_0", None), ("i2:g64", "i4:g32"), ("mxfp4", None)]


@pytest.mark.parametrize(
    ("source", "format", "head"),
    [(name, None, None) for name in SOURCES]
    + [(name, *pair) for name in SOURCES[:3] for pair in TERNARY]
    + [("llama-bf16", *pair) for pair in FLOAT[:3]]
    + [("llama-f32", *pair) for pair in FLOAT[3:]]
    + [("llama-256", *pair) for pair in GROUPS],
)
def test_the_same_model_as_a_direct_load(
    sources: Path, tmp_path: Path, source: str, format: str | None, head: str | None
) -> None:
    if head == "q8_0":  # its 80 columns are no whole groups
        head = "i8"
    convert(sources / source, tmp_path / "m", format, head, threads=1)
    want = loading.load(sources / source, format=format, head=head, cached=False)
    got = loading.load(tmp_path / "m")
    assert_same(got.weights, want.weights)
    assert {check.status for check in verify(tmp_path / "m")} == {VERIFIED}


@pytest.mark.parametrize(
    ("source", "format", "head"),
    [
        ("llama-256", "i2:tensor", "i2"),
        ("llama-256", "q4_k", "q8_0"),
        ("bitnet-multiply", "pot4z", "i4"),
        ("bitnet-multiply", "t5", "f16"),
    ],
)
def test_a_packed_model_is_loaded_as_it_is_converted(
    sources: Path, tmp_path: Path, source: str, format: str, head: str
) -> None:
    convert(sources / source, tmp_path / "own")
    convert(tmp_path / "own", tmp_path / "m", format, head)
    got = loading.load(tmp_path / "own", format=format, head=head)
    assert_same(got.weights, loading.load(tmp_path / "m").weights)


def test_levels_in_groups_of_powers_of_two_are_kept() -> None:
    """The scales of mxfp4 are f16 values, and its levels some of q8_0's: nothing is lost."""
    weight = ops.quantize(np.random.default_rng(4).standard_normal((70, 256)), "mxfp4")
    rows = Rows(formats.get("q8_0"), 70, 256, "row", 1)
    assert rows.add(weight, "w").exact
    np.testing.assert_array_equal(ops.dequantize(rows.finish()), ops.dequantize(weight))
    assert not has_levels_of(formats.get("mxfp4"), formats.get("i2:g32"))


@pytest.mark.parametrize("format", ["i4", "i2:g64", "q4_k", "t5", None])
def test_bytes_are_those_of_codes_and_scales(
    sources: Path, tmp_path: Path, format: str | None
) -> None:
    """Parts of a weight share its bytes."""
    losses = convert(sources / "llama-256", tmp_path / "m", format, "q8_0")
    want = loading.load(tmp_path / "m").weights.modules
    assert sum(loss.nbytes for loss in losses) == sum(weight.nbytes for weight in want.values())
    by_name = {loss.name: loss.row()["bytes"] for loss in losses}
    assert by_name["model.embed_tokens"] == want["model.embed_tokens"].nbytes
    assert by_name["model.layers.0.mlp.down_proj"] == want["model.layers.0.mlp.down_proj"].nbytes
    gate, up = (by_name[f"model.layers.0.mlp.{name}_proj"] for name in ("gate", "up"))
    assert gate == up > 0
    q, k = (by_name[f"model.layers.0.self_attn.{name}_proj"] for name in "qk")
    assert q == pytest.approx(2 * k, abs=2)


def test_bytes_in_a_gguf_file(sources: Path, tmp_path: Path) -> None:
    losses = convert(sources / "llama-256", tmp_path / "m.gguf", "gguf:Q4_0", "q8_0")
    tensors = GgufFile(tmp_path / "m.gguf").tensors.values()
    stored = sum(info.nbytes for info in tensors if len(info.shape) == 2)
    assert sum(loss.nbytes for loss in losses) == stored


def test_losses_are_those_of_the_weights(sources: Path, tmp_path: Path) -> None:
    losses = convert(sources / "llama-f32", tmp_path / "m", "i4", "f16")
    want = loading.load(sources / "llama-f32", cached=False).weights
    got = loading.load(tmp_path / "m").weights
    by_name = {loss.name: loss for loss in losses}
    for name in ("model.embed_tokens", "model.layers.1.mlp.down_proj"):
        before, after = ops.dequantize(want.modules[name]), ops.dequantize(got.modules[name])
        error = (after - before).astype(np.float64)
        relative = math.sqrt((error**2).sum() / (before.astype(np.float64) ** 2).sum())
        loss = by_name[name]
        assert not loss.exact
        assert loss.max_error == np.abs(error).max()
        assert loss.relative_rms == pytest.approx(relative, rel=1e-12)
        assert loss.snr_db == pytest.approx(-20 * math.log10(relative), rel=1e-9)
    assert by_name["model.layers.0.self_attn.q_proj"].format == "i4"
    assert {"model.layers.0.self_attn.k_proj", "lm_head"} <= by_name.keys()


@pytest.mark.parametrize("format", ["t5", "i8", "i4"])
def test_a_packed_model_is_converted_without_loss(tmp_path: Path, format: str) -> None:
    losses = convert("nano", tmp_path / "m", format)
    assert all(loss.exact for loss in losses)
    prompt = "def read_file(path):"
    want, got = LLM("nano"), LLM(tmp_path / "m")
    tokens = [llm.generate(prompt, max_tokens=16, temperature=0).tokens for llm in (want, got)]
    assert tokens[0] == tokens[1]
    if format in ("i4", "i8"):  # that the levels are ternary is no longer known
        return
    # and back: the same bytes of every tensor
    convert(tmp_path / "m", tmp_path / "back", "i2")
    back = loading.load(tmp_path / "back").weights
    assert_same(back, loading.load(Path(loading.__file__).parent.parent / "data" / "nano").weights)


def test_ternary_in_blocks_rounds_its_scale_alone(tmp_path: Path) -> None:
    losses = convert("nano", tmp_path / "m", "tq2_0")
    rounded = [loss for loss in losses if not loss.exact]
    assert rounded, "nano's scales should be no f16 values"
    assert all(loss.relative_rms <= 2.0**-11 for loss in rounded)  # half a step of f16
    assert loading.load(tmp_path / "m").format == "tq2_0"


@pytest.mark.parametrize("old", formats.names())
def test_formats_that_hold_another_keep_its_weights(old: str) -> None:
    """If `has_levels_of` is true, weights stay exact, except for scales that become f16."""
    rng = np.random.default_rng(0)
    weight = ops.quantize(rng.standard_normal((70, 256)), old)
    book = formats.get(old).codebook
    if book and book.ends == (-1, 1) and formats.get(old).scales.group:
        weight = ops.pack(ops.unpack(weight)[0], 0.5, format=old)  # other groups then keep it
    before = ops.dequantize(weight)
    for new in [*formats.names(), "i8:g64"]:
        f = formats.get(new)
        if not (formats.get(old).integer and f.integer and has_levels_of(f, formats.get(old))):
            continue
        rows = Rows(f, 70, 256, "row", 1)
        loss = rows.add(weight, "w")
        after = ops.dequantize(rows.finish())
        if f.scales.group:
            np.testing.assert_allclose(after, before, rtol=2.0**-11, atol=2.0**-25)
        else:
            assert loss.exact
            np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("new", ["t5", "i2", "i2:tensor", "t5:row", "i2:g384", "t5:g96", "i2:g128"])
@pytest.mark.parametrize("old", ["tq2_0", "i2:g128", "i1:g64", "q1_0"])
def test_ternary_in_groups_keeps_its_levels(old: str, new: str) -> None:
    """A new scale is the one of least square error, so exact where the old ones are one."""
    rng = np.random.default_rng(2)
    f, g = formats.get(new), formats.get(old)
    levels = rng.choice([-1, 1] if g.codebook.step == 2 else [-1, 0, 1], (50, 768)).astype(np.int8)
    for scales in (np.float32(0.3), rng.uniform(0.1, 2, (50, 768 // g.scales.group))):
        weight = ops.pack(levels, scales, format=old)
        rows = Rows(f, 50, 768, None if ":" in new else "row", 1)
        loss = rows.add(weight, "w")
        got = rows.finish()
        np.testing.assert_array_equal(ops.unpack(got)[0], levels)
        w, q = ops.dequantize(weight).astype(np.float64), levels.astype(np.float64)
        to = (
            (50, 768 // f.scales.group, -1)
            if f.scales.group
            else (1 if new == "i2:tensor" else 50, -1)
        )
        best = (w * q).reshape(to).sum(axis=-1) / np.square(q).reshape(to).sum(axis=-1)
        scale = np.broadcast_to(got.scales, best.shape) if best.size > 1 else got.scales
        np.testing.assert_allclose(scale, np.reshape(best, scale.shape), rtol=2.0**-10)
        if np.ndim(scales) == 0:
            assert loss.exact


def test_rows_come_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from sterna.weights import rounding

    monkeypatch.setattr(rounding, "CHUNK_WEIGHTS", 1)  # a tile at a time
    rng = np.random.default_rng(1)
    pieces = [rng.standard_normal((m, 64)).astype(np.float32) for m in (1, 47, 100, 130, 3)]
    whole = np.concatenate(pieces)
    for old, new in [
        ("f32", "t5"),
        ("bf16", "i8"),
        ("i2:row", "t5"),
        ("i8", "i1"),
        ("f32", "q4_0"),
    ]:
        packed = [ops.quantize(p, old) for p in pieces]
        rows = Rows(formats.get(new), len(whole), 64, "row", 1)
        for piece in packed:
            assert sum(chunk.M for chunk in row_chunks(piece)) == piece.M
            rows.add(piece, "w")
        got = rows.finish()
        f = formats.get(new)
        want = Rows(f, len(whole), 64, "row", 1)
        monkeypatch.setattr(rounding, "CHUNK_WEIGHTS", 1 << 20)
        for piece in packed:
            want.add(piece, "w")
        monkeypatch.setattr(rounding, "CHUNK_WEIGHTS", 1)
        np.testing.assert_array_equal(got.codes, want.finish().codes)
        expected = np.concatenate([ops.dequantize(p) for p in packed])
        if (old, new) == ("i2:row", "t5"):
            np.testing.assert_array_equal(ops.dequantize(got), expected)
        else:
            levels, _ = rounded(f, expected, None if f.scales.group else "row")
            np.testing.assert_array_equal(ops.unpack(got)[0], levels)


def test_scales_have_names() -> None:
    assert with_scales("i2", None) == "i2"
    assert with_scales("i2", "tensor") == "i2:tensor"
    assert with_scales("i4", "group:128") == "i4:g128"
    for scales in ("groups", "group:", "group:x", "group:100", "row:2", ""):
        with pytest.raises(RequestError):
            with_scales("i2", scales)
    with pytest.raises(RequestError, match="fixed scales"):
        with_scales("q4_0", "row")


@pytest.mark.parametrize("scales", ["tensor", "row", "group:32"])
def test_scales_of_a_quantised_model(sources: Path, tmp_path: Path, scales: str) -> None:
    losses = convert(sources / "llama-256", tmp_path / "m", with_scales("i4", scales))
    down = loading.load(tmp_path / "m").weights.modules["model.layers.0.mlp.down_proj"]
    shape = {"tensor": (), "row": (256,), "group:32": (256, 16)}[scales]
    assert down.scales.shape == shape
    assert len(LLM(tmp_path / "m").generate("def", max_tokens=4).tokens) == 4
    assert all(loss.snr_db > 5 for loss in losses)


# ------------------------------------------------------------------------------ places and force


def test_what_is_there_is_not_replaced_unless_asked(sources: Path, tmp_path: Path) -> None:
    src, dst = sources / "llama-f32", tmp_path / "m"
    dst.mkdir()
    convert(src, dst, "i8")  # an empty folder is none
    before = {p.name: p.read_bytes() for p in dst.iterdir()}
    with pytest.raises(RequestError, match="--force"):
        convert(src, dst, "i4")
    assert {p.name: p.read_bytes() for p in dst.iterdir()} == before
    convert(src, dst, "i4", force=True)
    assert loading.load(dst).format == "i4"
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(RequestError, match=r"no config\.json"):
        convert(src, tmp_path / "home", "i4", force=True)
    assert (tmp_path / "home" / "thesis.txt").exists()
    for place in (dst, tmp_path):
        with pytest.raises(RequestError, match="another place"):
            convert(dst, place, "i8", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="something else"):
        convert(src, tmp_path / "file", "i8", force=True)
    with pytest.raises(RequestError, match="format"):
        convert(src, tmp_path / "x", "i3")
    with pytest.raises(RequestError, match="must keep an integer format"):
        convert("nano", tmp_path / "x", "bf16")
    with pytest.raises(RequestError, match="K must be a multiple of 32"):
        convert(src, tmp_path / "x", "q4_0")
    assert not (tmp_path / "x").exists()


def test_a_tensor_that_no_layer_reads_is_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    src = factory.write(tmp_path / "m", factory.RECIPES["llama-f32"])
    path = src / "model.safetensors"
    extra = {"model.layers.0.self_attn.secret_norm.weight": torch.ones(80)}
    save_file({**load_file(path), **extra}, path)
    for dst, format in (("x", "i8"), ("x.gguf", "gguf:F16")):
        with pytest.raises(UnsupportedModelError, match="secret_norm"):
            convert(src, tmp_path / dst, format)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
