"""stq1_0: one of each four weights 16 apart is 0, exact on every unit."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits, failure
from oracle import reference_linear

from sterna import formats, ops
from sterna.errors import RequestError


def sparse(M: int, K: int, rng: np.random.Generator) -> np.ndarray:
    """Any levels that the format holds."""
    signs = rng.choice([-1, 1], (M, K // 64, 4, 16))
    zero = rng.integers(0, 4, (M, K // 64, 1, 16))
    return np.where(np.arange(4)[:, None] == zero, 0, signs).reshape(M, K)


@pytest.mark.parametrize("isa", ISAS)
def test_linear_equals_the_reference(isa: str) -> None:
    """The bits are numpy's, for few tokens and for many; weights and levels come back."""
    rng = np.random.default_rng(0)
    for M, K, n in ((1, 256, 1), (70, 768, 2), (130, 512, 7), (65, 256, 9), (130, 512, 17)):
        levels, scales = sparse(M, K, rng), rng.standard_normal((M, K // 256)).astype(np.float16)
        packed = ops.pack(levels, scales, format="stq1_0")
        x = 3 * rng.standard_normal((n, K)).astype(np.float32)
        assert_same_bits(ops.linear(x, packed, isa=isa), reference_linear(x, packed))
        np.testing.assert_array_equal(ops.unpack(packed)[0], levels)


@pytest.mark.parametrize("isa", ISAS)
def test_the_greatest_sums(isa: str) -> None:
    """Runs of pair sums end before they pass int16, with the largest codes and activations."""
    levels = np.ones((64, 64, 4, 16), np.int8)
    levels[:, :, 3] = 0
    packed = ops.pack(levels.reshape(64, -1), np.float32(1), format="stq1_0")
    x = np.full((9, packed.K), 127, np.float32)
    for rows in (x, -x):
        for n in (1, 9):
            assert_same_bits(
                ops.linear(rows[:n], packed, isa=isa), reference_linear(rows[:n], packed)
            )


def test_a_tile_by_its_definition() -> None:
    """The bit map of the layout's header, written out with plain indexing."""
    rng = np.random.default_rng(1)
    levels = sparse(64, 256, rng)
    packed = ops.pack(levels, np.float32(1), format="stq1_0")
    blocks = packed.codes.reshape(8, 5, 64)  # of five lines
    w = levels.reshape(64, 4, 4, 16)
    for row in range(64):
        for group in range(64):
            four = w[row, group // 16, :, group % 16]
            first, middle, last = four[four != 0]
            code = 4 * int(np.flatnonzero(four == 0)[0]) + 2 * (middle != first) + (last != first)
            block, i, at = blocks[group // 8], group % 8, 4 * (row % 16) + row // 16
            assert block[i // 2, at] >> 4 * (i % 2) & 15 == code
            assert block[4, at] >> i & 1 == (first < 0)


def test_levels_that_do_not_fit() -> None:
    """They are refused by place; rounding makes the least of four 0, and is not offered."""
    levels = sparse(2, 256, np.random.default_rng(2))
    levels[1, 64 + 5] = levels[1, 64 + 5 + 16] = 0
    failure(
        lambda: ops.pack(levels, np.float32(1), format="stq1_0"),
        RequestError, "stq1_0", "row 1", "column 69", "tq1_0",
    )  # fmt: skip
    w = np.random.default_rng(3).standard_normal((3, 512)).astype(np.float32)
    got = ops.unpack(ops.quantize(w, "stq1_0"))[0].reshape(3, 8, 4, 16)
    assert ((got == 0).sum(axis=2) == 1).all()
    np.testing.assert_array_equal(
        (got == 0).argmax(axis=2), np.abs(w.reshape(got.shape)).argmin(axis=2)
    )
    assert "stq1_0" not in formats.names()
