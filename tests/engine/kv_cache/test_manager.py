"""How keys and values are stored: their precision, their size, and pages without memory."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest
from checkpoint_factory import RECIPES, write
from safetensors.torch import load_file, save_file

from sterna import _native, loading
from sterna.bench.shapes import Shape
from sterna.cli.generate import command
from sterna.engine import KV_DTYPES, Engine
from sterna.engine.engine import SMALL

LLAMA = replace(RECIPES["llama-f32"], heads=5, kv_heads=1, max_positions=1024)
# Bytes of a key and a value of head_dim features.
BOTH = {
    "i16": lambda d: 2 * (2 * d + 4),
    "i8": lambda d: 2 * (d + 4),
    "k8v4": lambda d: d + 4 + d // 2 + 4,
    "f16": lambda d: 2 * 2 * d,
    "f32": lambda d: 2 * 4 * d,
}


def logits(engine: Engine, tokens: list[int], chunk: int | None = None) -> np.ndarray:
    """The logits of one sequence."""
    return engine.logits([tokens], chunk=chunk)[0]


def spread(rounded: np.ndarray, exact: np.ndarray) -> float:
    """Root of the mean square of what rounding moves, as a fraction of the logits' deviation."""
    return float(np.sqrt(np.mean((rounded - exact) ** 2)) / exact.std())


@pytest.mark.parametrize("head_dim", [16, 48, 64, 100, 128, 256])
def test_rounding(head_dim: int, tmp_path: Path) -> None:
    """Rounded pages move the logits of a float model by less than a thousandth of their spread.

    600 positions are three chunks of attention; with f16, and with 13-bit integers. Eight bits
    have 32 times fewer levels than those, and values of four bits eight times fewer again.
    """
    model = loading.load(write(tmp_path / "model", replace(LLAMA, head_dim=head_dim)))
    tokens = np.random.default_rng(3).integers(0, 256, 600).tolist()
    exact = logits(Engine(model, threads=2, kv_dtype="f32"), tokens)
    for dtype, most in (("f16", 1e-3), ("i16", 1e-3), ("i8", 2e-2), ("k8v4", 0.2)):
        rounded = logits(Engine(model, threads=2, kv_dtype=dtype), tokens)
        assert 0 < spread(rounded, exact) < most, dtype


def test_outliers(tmp_path: Path) -> None:
    """One large channel of the keys does not take the levels of the others: they are rotated.

    Without that, the logits move by 0.057 of their spread.
    """
    recipe = replace(LLAMA, heads=4, kv_heads=2, head_dim=128, config={"attention_bias": True})
    folder = write(tmp_path / "model", recipe)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith("k_proj.bias"):
            tensor[37], tensor[128 + 90] = 50, -50
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model = loading.load(folder)
    tokens = np.random.default_rng(3).integers(0, 256, 600).tolist()
    exact, i8 = (
        logits(Engine(model, threads=2, kv_dtype=dtype), tokens) for dtype in ("f32", "i8")
    )
    assert spread(i8, exact) < 0.025


def test_a_sharp_softmax(tmp_path: Path) -> None:
    """A few large weights do not make the many small ones vanish: within 3 times f16's error."""
    folder = write(tmp_path / "model", replace(LLAMA, head_dim=64))
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        if "q_proj" in name:
            weights[name] = 8 * tensor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model = loading.load(folder)
    tokens = np.random.default_rng(6).integers(0, 256, 300).tolist()
    exact, f16, i16 = (
        logits(Engine(model, threads=2, kv_dtype=dtype), tokens) for dtype in ("f32", "f16", "i16")
    )
    assert np.square(i16 - exact).mean() < 9 * np.square(f16 - exact).mean()


#: Of integer pages, (dtype, head_dim); 100: heads are padded.
PAGES = [
    *(("i16", d) for d in (16, 80, 100, 128, 256)),
    *((dtype, d) for dtype in ("i8", "k8v4") for d in (80, 128)),
]
#: Query heads of one KV head: two tokens of 128 are one whole call of 256 rows, of 130 a token is a
#: call, and 260 are more than one call takes.
MANY_HEADS = (128, 130, 260)


@pytest.mark.parametrize(
    ("heads", "dtype", "head_dim"),
    [
        *((heads, *page) for heads in ((2, 2), (5, 1), (40, 1)) for page in PAGES),
        *(((n, 1), *page) for n in MANY_HEADS for page in (*PAGES[:3:2], ("i8", 80), ("k8v4", 80))),
    ],
)
def test_one_arithmetic(heads: tuple[int, int], dtype: str, head_dim: int, tmp_path: Path) -> None:
    """Integer pages: the same bits whether few rows or many, whole tiles or parts, see them.

    A query head is a row. The scalar unit takes thirty times as long as others, so it leaves
    models of many heads to them; how tokens become rows is no unit's business.
    """
    recipe = replace(
        RECIPES["falcon-e"], heads=heads[0], kv_heads=heads[1], head_dim=head_dim, layers=1
    )
    model = loading.load(write(tmp_path / "model", recipe))
    many = heads[0] >= 40
    tokens = np.random.default_rng(4).integers(0, 256, 270 if many else 330).tolist()
    isas = _native.isas()[1 if many and len(_native.isas()) > 1 else 0 :]
    expected = logits(Engine(model, threads=1, isa=isas[0], kv_dtype=dtype), tokens)
    for isa in isas:
        engine = Engine(model, threads=2, isa=isa, kv_dtype=dtype)
        for chunk in (None, 100, 3) if isa != "scalar" else (3,):
            np.testing.assert_array_equal(logits(engine, tokens, chunk), expected, f"{isa} {chunk}")


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_pages_forget(dtype: str, tmp_path: Path) -> None:
    """Positions beyond a sequence's end count for nothing, where its own values are all zero."""
    folder = write(tmp_path / "model", LLAMA)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7] = 0  # so that its keys and values are zeros
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    engine = Engine(loading.load(folder), threads=2, kv_dtype=dtype)
    zeros = [7] * 5
    fresh = logits(engine, zeros)
    logits(engine, np.random.default_rng(5).integers(0, 256, 300).tolist())
    np.testing.assert_array_equal(logits(engine, zeros), fresh)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_bytes(dtype: str) -> None:
    """The engine, the shapes of the benchmarks and the core count the same bytes."""
    shape = Shape("LlamaForCausalLM", 256, 256, 3, 4, 2, 64, True)
    expected = 3 * 2 * BOTH[dtype](64)
    assert _native.kv_bytes(3, 2, 64, dtype) == shape.kv_bytes(dtype) == expected


def test_command_line() -> None:
    """It names the types once more, so as not to load the engine for --help."""
    option = next(p for p in command.params if p.name == "kv_dtype")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == (*KV_DTYPES, *SMALL)


def test_unknown_dtype() -> None:
    """The core refuses what it does not know."""
    with pytest.raises(ValueError, match="i16, i8, k8v4, f16 or f32"):
        _native.KvCache([(1, 16)], 1, "f8")


def test_pages_of_layers_with_windows() -> None:
    """Their part lies apart, and is read, written, copied and given to the system by itself."""
    pages, heads = 64, [(2, 64), (4, 32), (1, 128), (2, 16)]
    cache = _native.KvCache(heads, pages, "f16", [True, False, True, False])
    both, rest = cache.page_nbytes(), cache.page_nbytes(whole=False)
    assert both == _native.KvCache(heads, 1, "f16").page_nbytes() == 256 * 2 * 64 * 2 + 160 * 256
    assert rest == 160 * 256
    choose = np.random.default_rng(1)
    data = choose.integers(0, 256, (pages, both), np.uint8)
    for page in range(pages):
        cache.write_page(page, data[page])

    def read(page: int, whole: bool = True) -> np.ndarray:
        out = np.empty(both if whole else rest, np.uint8)
        cache.read_page(page, out, whole)
        return out

    assert all((read(page) == data[page]).all() for page in range(pages))
    cache.copy_page(3, 5)
    assert (read(5) == data[3]).all()
    ends = np.cumsum([2 * 64 * k * d * 2 for k, d in heads])
    others = np.r_[ends[0] : ends[1], ends[2] : ends[3]]
    assert (read(7, whole=False) == data[7][others]).all()
    cache.write_page(8, data[9][others], whole=False)
    mixed = data[8].copy()
    mixed[others] = data[9][others]
    assert (read(8) == mixed).all()
    cache.release(10, 40, windowed=True)
    cache.release(50, 60, windowed=False)
    assert all((read(p, whole=False) == data[p][others]).all() for p in range(10, 41))
    assert all((read(p) == data[p]).all() for p in (9, 41, 49, 61))
    if sys.platform == "linux":
        assert all(not np.delete(read(page), others).any() for page in range(10, 41))
        assert not read(55, whole=False).any()
    for wrong in ((-1, 3), (4, 3), (0, pages)):
        with pytest.raises(ValueError, match="pages: the first and the last"):
            cache.release(*wrong, windowed=True)
    with pytest.raises(ValueError, match="windowed, keys_alone: must be one for each layer"):
        _native.KvCache(heads, 1, "f16", [True])


@pytest.mark.skipif(
    sys.platform != "linux", reason="what a process takes is read from /proc, which is Linux's"
)
def test_released_memory_is_the_systems() -> None:
    """The memory of a page's part leaves the process at once."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    cache = _native.KvCache([(8, 128), (8, 128)], 128, "f16", [True, False])
    data = np.ones(cache.page_nbytes(), np.uint8)
    before = resident()
    for page in range(128):
        cache.write_page(page, data)
    full = resident() - before
    cache.release(0, 127, windowed=True)
    assert full - (resident() - before) > 0.4 * 128 * len(data)
    cache.release(0, 127, windowed=False)
    assert resident() - before < 0.1 * 128 * len(data)
