"""Activations in two planes of int8: their arithmetic on every unit, and what it gains."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits
from oracle import reference_linear

from sterna import _native, ops
from sterna.formats import PackedWeight
from sterna.graph import Graph, Heads

#: One for each kind of scales, of codes and of kernels.
NAMES = ["i4", "i8", "pot4", "q4_0", "q4_1", "i4:g64", "mxfp4", "q8_0", "q4_k", "q6_k", "q3_k"]
#: Borders between ways to multiply, each token being two rows; more than are multiplied together.
TOKENS = [1, 2, 4, 8, 9, 40, 300]
M, K = 150, 512  # rests of tiles of 48 and 64 rows
#: Inputs with outliers: as many tokens as there are logits.
TABLE = np.random.default_rng(0).standard_normal((M, K)).astype(np.float32)
TABLE[:, 5] *= 60


def weight(name: str, seed: int = 0) -> PackedWeight:
    rng = np.random.default_rng(seed)
    return ops.quantize((rng.standard_normal((M, K)) / K**0.5).astype(np.float32), name)


def program(packed: PackedWeight, activations: str, bias: np.ndarray | None) -> _native.Program:
    """A row of `TABLE` for each token -> linear (+ bias)."""
    graph = Graph(Heads(1, 1, 16))
    x = graph.select(graph.embed(ops.pack(TABLE, format="f32")))
    graph.linear(x, packed, "layer", bias=bias)
    return graph.compile(activations=activations)


def run(p: _native.Program, tokens: np.ndarray, isa: str, threads: int) -> np.ndarray:
    """What the tokens' rows of `TABLE` become."""
    n = len(tokens)
    pages = np.arange(-(-n // 64), dtype=np.int32)
    cache = _native.KvCache([(1, 16)], len(pages), "f32")
    return p.run(cache, tokens, [(0, n, n, pages)], isa, threads)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_adds_the_results_of_both_planes(name: str) -> None:
    """On every unit, for few tokens and many: (high + low), then the bias."""
    packed = weight(name)
    bias = np.random.default_rng(1).standard_normal(M).astype(np.float32)
    plain, biased = program(packed, "int8x2", None), program(packed, "int8x2", bias)
    for n in TOKENS:
        tokens = np.arange(n, dtype=np.int32) % M
        x = TABLE[tokens]
        both = reference_linear(x, packed) + reference_linear(x, packed, low=True)
        for isa in ISAS:
            for threads in (1, 3):
                assert_same_bits(run(plain, tokens, isa, threads), both)
                assert_same_bits(run(biased, tokens, isa, threads), both + bias)
