"""Hadamard-folded weights: the transform's bits, the contract of GGUF files, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure

from sterna import LLM, _native, loading, ops
from sterna.convert import convert
from sterna.errors import ModelFormatError, SternaError, UnsupportedModelError
from sterna.graph import GraphBuilder, Heads, Rotation
from sterna.graph.ops import EmbedOp, RowwiseOp

gguf_factory: Any = pytest.importorskip("gguf_factory", reason="needs the gguf package")


def butterflies(x: np.ndarray, block: int) -> np.ndarray:
    """H x in blocks, float32: of each stage, in the order of its distance, sums and differences."""
    y = x.reshape(-1, block).astype(np.float32)
    half = 1
    while half < block:
        pairs = y.reshape(len(y), -1, 2, half)
        sums, differences = pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]
        y = np.stack([sums, differences], axis=2).reshape(len(y), block)
        half *= 2
    return y.reshape(x.shape)


@cache
def sylvester(n: int) -> np.ndarray:
    """The matrix by its definition: the parity of the common bits of row and column."""
    i = np.arange(n)
    return np.array([[(-1.0) ** bin(a & b).count("1") for b in i] for a in i])


def rotated_rows(table: np.ndarray, rotation: Rotation, inverse: bool, isa: str) -> np.ndarray:
    """The rows of a table of 16, rotated: a head that is the identity shows them.

    It has as many rows as the vocabulary, so the table is filled up with others.
    """
    width = table.shape[1]
    rows = np.resize(table, (width, width))
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.add(
        RowwiseOp(
            name="rotate",
            x=g.add(EmbedOp(weight=ops.pack(rows, format="f32"))),
            rotation=rotation,
            inverse=inverse,
        )
    )
    identity = ops.pack(np.eye(width, dtype=np.float32), format="f32")
    g.linear(g.select(x), identity, "lm_head")
    cache = _native.KvCache([(1, 16)], 1, "f32")
    tokens = np.arange(len(table), dtype=np.int32)
    spans = [(0, len(table), len(table), np.zeros(1, np.int32))]
    return g.graph.compile().run(cache, tokens, spans, isa, 2)[0][: len(table), :width]


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize(("width", "block"), [(48, 2), (64, 8), (96, 32), (512, 128), (2048, 1024)])
def test_bits(isa: str, width: int, block: int) -> None:
    """Every unit adds and subtracts in the reference's order, whatever its vectors hold."""
    rng = np.random.default_rng(block)
    table = rng.standard_normal((16, width)).astype(np.float32)
    signs = np.where(rng.integers(0, 2, width) == 1, 1, -1).astype(np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(block))
    rotation = Rotation(block, signs)
    # The head adds zeros, which make +0 of -0.
    forward = butterflies(table * signs, block) * scale + np.float32(0)
    assert_same_bits(rotated_rows(table, rotation, False, isa), forward)
    back = butterflies(table, block) * signs * scale + np.float32(0)
    assert_same_bits(rotated_rows(table, rotation, True, isa), back)
    assert_same_bits(
        rotated_rows(table, Rotation(block), False, isa),
        butterflies(table, block) * scale + np.float32(0),
    )


def test_the_matrix() -> None:
    """The butterflies are Sylvester's matrix; twice is the identity."""
    x = np.random.default_rng(0).standard_normal((3, 64))
    np.testing.assert_allclose(butterflies(x, 64), x @ sylvester(64), rtol=1e-4, atol=1e-5)
    rotation = Rotation(64, np.where(np.arange(64) % 3, 1, -1).astype(np.float32))
    table = np.random.default_rng(1).standard_normal((16, 64)).astype(np.float32)
    there = rotated_rows(table, rotation, False, "scalar")
    np.testing.assert_allclose(rotated_rows(there, rotation, True, "scalar"), table, atol=1e-6)


# ----------------------------------------------------------------------------- files

BLOCK = 64
WIDTHS = (256, 512)  # of a Tiny: hidden, attention and the FFN
SIGNS = {
    w: np.where(np.random.default_rng(w).integers(0, 2, w) == 1, 1, -1).astype(np.int64)
    for w in WIDTHS
}


def folded(w: np.ndarray) -> np.ndarray:
    """W S H / sqrt(block): rows as training leaves them, before rounding."""
    blocks = (w.astype(np.float64) * SIGNS[w.shape[1]]).reshape(-1, BLOCK)
    return (blocks @ sylvester(BLOCK) / BLOCK**0.5).reshape(w.shape).astype(np.float32)


def contract(names: list[str], **changes: Any) -> dict[str, Any]:
    """The metadata of such a file, with other values, or without those that are None."""
    keys = {
        "version": 1, "block_size": BLOCK, "transform": "normalized-sylvester-walsh-hadamard",
        "axis": "input-last-dimension", "sign_mode": "explicit", "sign_widths": list(WIDTHS),
        "sign_values": [int(s) for w in WIDTHS for s in SIGNS[w]],
        "weight_names": [n for n in names if n != "token_embd.weight"],
        "inverse_weight_names": ["token_embd.weight"],
        **changes,
    }  # fmt: skip
    return {f"prism.hadamard.{k}": v for k, v in keys.items() if v is not None}


def write(
    path: Path, tiny: Any, fold: Callable[[str], bool] = lambda _: True, **changes: Any
) -> tuple[dict[str, np.ndarray], list[str]]:
    """A file whose matrices that `fold` chooses are folded; (the floats before, those names)."""
    build = gguf_factory.build
    file, floats = build(tiny)
    names = [name for name, (w, _) in file.items() if w.ndim == 2 and fold(name)]
    file |= {name: (folded(file[name][0]), file[name][1]) for name in names}
    gguf_factory.build = lambda _: (file, floats)
    try:
        keys = contract(names, **changes)
        gguf_factory.write(path, replace(tiny, keys={**tiny.keys, **keys}))
    finally:
        gguf_factory.build = build
    return floats, names


TINY = gguf_factory.Tiny("qwen3", types={"": "F32"}, tied=False, seed=60)
TOKENS = list(range(70, 100))


def close(got: np.ndarray, expected: np.ndarray) -> None:
    """Folding rounds each weight once and each input in ten additions more."""
    assert np.abs(got - expected).max() < 2e-5 * np.abs(expected).max()


SECOND = {"version": 2, "tied_output": True}


@pytest.mark.parametrize(
    ("tiny", "fold", "changes"),
    [
        (TINY, lambda _: True, {}),
        (replace(TINY, tied=True), lambda _: True, {}),
        (replace(TINY, tied=True), lambda _: True, SECOND),
        (replace(TINY, arch="llama"), lambda _: True, {"gdn_v_grouped": True}),
        (
            TINY,
            lambda name: "attn_k" not in name and "ffn_up" not in name and "output." not in name,
            {},
        ),
    ],
    ids=["all", "tied", "second", "llama", "some"],
)
def test_a_folded_file_is_its_float_model(
    tiny: Any, fold: Callable[[str], bool], changes: dict[str, Any], tmp_path: Path
) -> None:
    """The same logits to rounding: rotations of inputs and rows undo what was done to weights."""
    floats, _ = write(tmp_path / "x.gguf", tiny, fold, **changes)
    plain = gguf_factory.checkpoint(tmp_path / "hf", tiny, floats)
    options: Any = {"threads": 1, "kv_dtype": "f32", "deterministic": True, "head": "f32"}
    expected = LLM(plain, format="f32", **options).logits(TOKENS)
    close(LLM(tmp_path / "x.gguf", **options).logits(TOKENS), expected)


def test_levels_and_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated inputs are rounded to int8 like others; every unit, chunk and copy has the bits."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "x.gguf"
    floats, _ = write(path, TINY)
    first = LLM(path, format="i8", head="i8", threads=1)
    expected = first.logits(TOKENS)
    plain = gguf_factory.checkpoint(tmp_path / "hf", TINY, floats)
    error = expected - LLM(plain, format="f32", head="f32", threads=1).logits(TOKENS)
    assert np.median(np.abs(error)) < 0.05 * expected.std()
    for isa in _native.isas():
        for threads in (1, 2):
            assert_same_bits(
                LLM(path, format="i8", head="i8", threads=threads, isa=isa).logits(TOKENS), expected
            )
    convert(path, tmp_path / "packed", "i8", head="i8")
    assert_same_bits(LLM(tmp_path / "packed", threads=1).logits(TOKENS), expected)
    failure(
        lambda: convert(path, tmp_path / "y.gguf", "gguf:F16"), UnsupportedModelError, "Hadamard"
    )


def test_without_signs(tmp_path: Path) -> None:
    """sign_mode identity: no signs, and no keys of them."""
    for w in WIDTHS:
        np.testing.assert_array_equal(np.abs(SIGNS[w]), 1)
    none = {"sign_mode": "identity", "sign_widths": None, "sign_values": None}
    write(tmp_path / "x.gguf", TINY, **none)
    c = loading.load(tmp_path / "x.gguf", cached=False).config
    assert c.hadamard is not None
    rotation = c.hadamard.of_input("lm_head", 256)
    assert rotation is not None
    assert (rotation.block, rotation.signs) == (BLOCK, None)


@pytest.mark.parametrize(
    ("changes", "kind", "word"),
    [
        ({"version": 3}, UnsupportedModelError, "version"),
        ({"version": 2}, UnsupportedModelError, "tied_output"),
        ({"tied_output": True}, UnsupportedModelError, "tied_output"),
        ({"version": 2, "tied_output": True}, ModelFormatError, "output.weight"),
        ({"version": None}, ModelFormatError, "version"),
        ({"transform": "hadamard"}, UnsupportedModelError, "transform"),
        ({"axis": "output"}, UnsupportedModelError, "axis"),
        ({"sign_mode": "random"}, UnsupportedModelError, "sign_mode"),
        ({"sign_mode": None}, ModelFormatError, "sign_mode"),
        ({"sign_mode": "identity"}, ModelFormatError, "sign_widths"),
        ({"sign_widths": [256, 256]}, ModelFormatError, "sign_widths"),
        ({"sign_widths": [256.0, 512.0]}, ModelFormatError, "sign_widths"),
        ({"sign_values": [1, -1]}, ModelFormatError, "sign_values"),
        ({"sign_values": [2] * sum(WIDTHS)}, ModelFormatError, "sign_values"),
        ({"sign_widths": [768]}, ModelFormatError, "width 256"),
        ({"block_size": 48}, ModelFormatError, "block_size"),
        ({"block_size": 0}, ModelFormatError, "block_size"),
        ({"block_size": 1024}, ModelFormatError, "1024"),
        ({"weight_names": ["blk.0.attn_norm.weight"]}, UnsupportedModelError, "attn_norm"),
        ({"weight_names": ["blk.9.attn_q.weight"]}, UnsupportedModelError, "blk.9"),
        ({"weight_names": ["token_embd.weight"]}, UnsupportedModelError, "token_embd"),
        ({"weight_names": ["output.weight", "output.weight"]}, ModelFormatError, "once"),
        ({"inverse_weight_names": ["output.weight"]}, UnsupportedModelError, "output"),
        ({"gdn_v_grouped": 1}, ModelFormatError, "gdn_v_grouped"),
        ({"more": 1}, UnsupportedModelError, "prism.hadamard.more"),
    ],
)
def test_refused(
    changes: dict[str, Any], kind: type[SternaError], word: str, tmp_path: Path
) -> None:
    """A deviation from the contract is never ignored."""
    write(tmp_path / "x.gguf", TINY, lambda name: name == "output.weight", **changes)
    failure(lambda: loading.load(tmp_path / "x.gguf"), kind, "x.gguf", "prism.hadamard", word)
