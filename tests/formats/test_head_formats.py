"""Embeddings and heads in any weight format: rows looked up exactly, logits through `linear`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_factory import RECIPES, write
from helpers import GROUPED, assert_same_bits, failure

import sterna.ops as ops
from sterna import LLM, _native, formats, loading
from sterna.errors import RequestError
from sterna.graph import GraphBuilder, Heads
from sterna.graph.ops import EmbedOp

# A format of every layout, with odd and even zero_x2, minima and powers of two.
TABLES = [*GROUPED, "i1:g32", "i2p:g32", "t5:g96", "i4:row", "i8", "bf16"]


def embedded(table: ops.PackedWeight, tokens: list[int], isa: str) -> np.ndarray:
    """The rows float32 [tokens, K] that a program looks up, of a table [K, K]."""
    g = GraphBuilder(Heads(1, 1, 16))
    identity = ops.pack(np.eye(table.K, dtype=np.float32), format="f32")
    g.linear(
        g.select(g.add(EmbedOp(weight=table))), identity, "lm_head"
    )  # all products but one are 0
    cache = _native.KvCache([(1, 16)], 1, "f32")
    n = len(tokens)
    span = [(0, n, n, np.zeros(1, np.int32))]
    return g.graph.compile().run(cache, np.array(tokens, np.int32), span, isa, 1)[0]


@pytest.mark.parametrize("name", TABLES)
def test_an_embedding_is_the_dequantised_row(name: str) -> None:
    """The lookup gives the values of the packed weight, on every unit."""
    rng = np.random.default_rng(4)
    K = 3 * max(formats.get(name).scales.block, 32)
    table = ops.quantize(rng.standard_normal((K, K)).astype(np.float32), name)
    tokens = [0, 15, 16, 47, 48, 63, 64, K - 1]
    expected = ops.dequantize(table)[tokens]
    for isa in _native.isas():
        assert_same_bits(embedded(table, tokens, isa) + np.float32(0), expected + np.float32(0))


@pytest.mark.parametrize("head", ["q8_0", "q4_0", "q4_1", "mxfp4", "i4", "t5"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_head_in_any_format(tied: bool, head: str, tmp_path: Path) -> None:
    """A tied or a separate table in a format gives near logits, packed and read again the same."""
    folder = write(tmp_path / "model", replace(RECIPES["llama-96"], tied=tied))
    llm = LLM(folder, head=head, threads=2, cache=False)
    assert llm.engine.model.head == head
    tokens = llm.tokenizer.encode("def read_lines(path):")
    logits = llm.logits(tokens)
    loading.save(llm.engine.model, tmp_path / "packed")
    for asked in (None, head):
        reread = LLM(tmp_path / "packed", head=asked, threads=1)
        assert reread.engine.model.head == head
        assert_same_bits(reread.logits(tokens), logits)
    if head == "q8_0":
        exact = LLM(folder, threads=2, cache=False).logits(tokens)
        assert np.abs(logits - exact).max() < 0.1 * exact.std()


def test_a_head_of_no_format(checkpoint: Callable[[str], Path]) -> None:
    """The error lists the heads and names what was asked for."""
    folder = checkpoint("llama-f16")
    failure(lambda: loading.load(folder, head="q9", cached=False), RequestError, "head", "'q9'")
