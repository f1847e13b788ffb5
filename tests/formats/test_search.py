"""The sums of a search for scales: the core's, line after line of numpy."""

import numpy as np
import pytest

from sterna import formats
from sterna.formats import search
from sterna.formats.arithmetic import inverse_or_zero

SHAPES = [(32, 1), (32, 63), (16, 130), (256, 64), (4097, 3)]


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "i1", "i2", "t5", "mxfp4", "iq4_nl"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shared", [False, True])
def test_sums_are_those_of_the_nearest_levels(name, shape, shared):
    codebook = formats.get(name).codebook
    rng = np.random.default_rng(len(name) + sum(shape))
    n, G = shape
    # Halves are ties, of levels that are whole numbers; far ones are beyond the ends.
    x = (rng.integers(-300, 300, shape) / 2).astype(np.float32)
    e = rng.random((n, 1) if shared else shape, np.float32)
    d = rng.choice(np.array([0, 0.5, 1, -1, 2, 1e-45, 3.7], np.float32), G)
    m = rng.integers(-3, 3, G).astype(np.float32) if codebook.low == 0 else None
    nearest, weighted = search.Nearest(codebook), search.Weighted(x, e)

    q = nearest((x if m is None else x - m) * inverse_or_zero(d))
    assert set(q.ravel().tolist()) <= set(codebook.levels)
    precise = np.float64 if n > search.PRECISE else np.float32
    sums = np.zeros((3, G), precise)
    for line, counts, weights in zip(q, e, x * e, strict=True):
        sums += np.stack([weights * line, line * line * counts, counts * line]).astype(precise)
    for made, expected in zip(nearest.sums(weighted, d, m), sums, strict=True):
        assert made.dtype == precise
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("name", ["iq4_nl", "mxfp4", "q4_1"])
def test_nearest_level_of_any_number(name):
    codebook = formats.get(name).codebook
    rng = np.random.default_rng(0)
    for ratios in (rng.normal(0, 60, 5000), np.arange(-600, 600) / 4, np.array([np.inf, -np.inf])):
        apart = np.abs(ratios[:, None] - codebook.array.astype(float))
        with np.errstate(invalid="ignore"):
            lower = codebook.array[np.nanargmin(apart, axis=1)]
        expected = np.where(
            np.isinf(ratios), np.where(ratios > 0, codebook.high, codebook.low), lower
        )
        np.testing.assert_array_equal(codebook.nearest(ratios), expected)
