"""Values of four bits: which levels, in which order of nibbles, for which of i8's integers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_factory import RECIPES, write

from sterna import loading
from sterna.engine import PAGE, Engine, Sequence

LEVELS = np.array([-127, -96, -75, -58, -43, -30, -18, -6, 6, 18, 30, 43, 58, 75, 96, 127])


def lloyd(width: int, vectors: int) -> np.ndarray:
    """The 16 symmetric levels of least squared error for normal vectors, the outer ones fixed."""
    x = np.random.default_rng(1).standard_normal((vectors, width))
    x = np.sort((x / np.abs(x).max(axis=1, keepdims=True)).ravel())
    sums = np.concatenate([[0], np.cumsum(x)])
    levels = np.linspace(-1, 1, 16)
    for _ in range(300):
        ends = np.searchsorted(x, (levels[1:] + levels[:-1]) / 2)
        ends = np.concatenate([[0], ends, [len(x)]])
        levels = (sums[ends[1:]] - sums[ends[:-1]]) / np.diff(ends)
        levels = (levels - levels[::-1]) / 2
        levels[[0, -1]] = -1, 1
    return levels * 127


def test_levels() -> None:
    """They are what Lloyd's algorithm finds for heads of 128."""
    np.testing.assert_allclose(LEVELS, lloyd(128, 20_000), atol=1)


def heads_of(page: np.ndarray, count: int, nbytes: int) -> np.ndarray:
    return page[: count * nbytes].reshape(count, nbytes)


@pytest.mark.parametrize("head_dim", [16, 48, 128])
def test_pages(head_dim: int, tmp_path: Path) -> None:
    """Keys are those of i8, and each value is the level nearest to i8's integer."""
    heads = 2
    recipe = replace(RECIPES["llama-f32"], heads=4, kv_heads=heads, head_dim=head_dim, layers=1)
    model = loading.load(write(tmp_path / "model", recipe))
    tokens = np.random.default_rng(3).integers(0, 256, PAGE).tolist()
    pages = {}
    for dtype in ("i8", "k8v4"):
        engine = Engine(model, threads=1, kv_dtype=dtype)
        sequence = Sequence()
        for part in (tokens[:5], tokens[5:6], tokens[6:]):  # odd and even positions, alone and not
            engine.step([(sequence, part, 0)])
        pages[dtype] = engine.kv_cache.read_page(int(sequence.pages[0]))
    nbytes = PAGE * (head_dim + 4)
    keys = slice(0, heads * nbytes)
    np.testing.assert_array_equal(pages["k8v4"][keys], pages["i8"][keys])
    eight = heads_of(pages["i8"][heads * nbytes :], heads, nbytes)
    four = heads_of(pages["k8v4"][heads * nbytes :], heads, PAGE * (head_dim // 2 + 4))
    np.testing.assert_array_equal(four[:, -4 * PAGE :], eight[:, -4 * PAGE :])  # factors
    integers = eight[:, : -4 * PAGE].view(np.int8).reshape(heads, -1, 32).astype(int)
    codes = four[:, : -4 * PAGE].reshape(heads, -1, 16)
    stored = LEVELS[np.concatenate([codes & 15, codes >> 4], axis=-1)]
    nearest = np.abs(integers[..., None] - LEVELS).min(axis=-1)
    np.testing.assert_array_equal(np.abs(integers - stored), nearest)
