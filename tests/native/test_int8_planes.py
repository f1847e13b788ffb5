"""Activations in two planes of int8: their arithmetic on every unit, and what it gains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checkpoint_factory import QWEN3_5
from checkpoint_factory.mtp import write_mtp
from gguf_factory import Tiny, write
from helpers import ISAS, assert_same_bits, failure
from oracle import reference_linear
from test_experts_gguf import BIG, write_gguf

from sterna import LLM, _native, loading, ops
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.graph import ACTIVATIONS, GraphBuilder, Heads
from sterna.graph.ops import EmbedOp

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
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.select(g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))))
    g.linear(x, packed, "layer", bias=bias)
    return g.graph.compile(activations=activations)


def run(p: _native.Program, tokens: np.ndarray, isa: str, threads: int) -> np.ndarray:
    """The result for the tokens' rows of `TABLE`."""
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


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_logits_are_nearly_those_of_floats(kind: str, tmp_path: Path) -> None:
    """An error of a hundredth of one plane's at most, in all layers and the head."""
    path = tmp_path / "m.gguf"
    if kind == "dense":
        write(path, Tiny(types={"": "Q4_1", "attn_v": "Q6_K"}, table="Q8_0"))
    else:
        write_gguf(path, "qwen3moe", BIG, {}, {"": "Q8_0", "ffn_up_exps": "Q6_K"})
    prompt = [np.random.default_rng(0).integers(0, 90, 40).tolist()]
    floats = Engine(loading.load(path, format="f32", head="f32"), kv_dtype="f32")
    (expected,), model = floats.logits(prompt), loading.load(path)
    one, two = (
        np.abs(Engine(model, kv_dtype="f32", activations=name).logits(prompt)[0] - expected).max()
        for name in ACTIVATIONS
    )
    assert two < one / 100


def test_drafts_change_no_token(checkpoint: Callable[[str], Path]) -> None:
    """A step of several tokens has the bits of steps of one."""
    llm = LLM(checkpoint("llama3-rope"), format="i8", head="int8", activations="int8x2")
    answer = llm.generate([1, 2, 3], max_tokens=24, ignore_eos=True)
    other = [*answer.tokens[:9], 5, *answer.tokens[9:]]
    for guess in (answer.tokens, other):
        again = llm.generate([1, 2, 3], max_tokens=24, ignore_eos=True, prediction=guess)
        assert again.tokens == answer.tokens


def test_it_is_part_of_what_bits_depend_on(checkpoint: Callable[[str], Path]) -> None:
    """Of receipts, and of what pages on disk are found by."""
    model = loading.load(checkpoint("llama3-rope"), format="i8")
    one, also_one, two = (Engine(model, activations=name) for name in (None, *ACTIVATIONS))
    assert (one.activations, two.activations) == ACTIVATIONS
    assert one.identity == also_one.identity != two.identity


@pytest.mark.parametrize(
    ("recipe", "asked", "words"),
    [
        ("llama-bf16", "int8x2", ("bf16", "read floats", "leave it out")),
        ("bitnet-multiply", "int8x2", ("i2", "trained", "leave it out")),
        ("llama-bf16", "int4", ("int8, int8x2", "int4")),
    ],
)
def test_refusals(
    recipe: str, asked: str, words: tuple[str, ...], checkpoint: Callable[[str], Path]
) -> None:
    failure(lambda: LLM(checkpoint(recipe), activations=asked), RequestError, "activations", *words)


def test_an_mtp_layer_rounds_as_its_model_does(tmp_path: Path) -> None:
    model = loading.load(write_mtp(tmp_path / "mtp", QWEN3_5), format="i8", head="int8")
    mtp = Engine(model, activations="int8x2").mtp
    assert mtp is not None
    assert mtp.activations == "int8x2"
