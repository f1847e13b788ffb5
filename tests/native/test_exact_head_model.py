"""The exact head in a whole model: the same text, what is counted, kept and refused.

That its bits are the float head's, row by row, is shown in test_exact_head.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_heads import F32, ISAS, pack, ranked, screened
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna import LLM, loading, ops
from sterna.bench.random_models import random_model
from sterna.engine import Engine, Sequence
from sterna.engine.decoding.sampling import DecidingLogits, Draw
from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.formats.bf16 import FORMAT as BF16
from sterna.sampling_params import SamplingParams
from sterna.weights import sources

MAX_TOP = 256  # docs/explanation/exact-head.md
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 1.5, "top_k": 40, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 1.5, "top_k": 20, "repetition_penalty": 1.2},
    {"temperature": 0.7, "min_p": 0.1, "repetition_penalty": 1.1},
    {"temperature": 1.5, "top_k": 100000},
    {"temperature": 1.5},
]


@pytest.mark.parametrize("name", ["bitnet-multiply", "bitnet-untied", "llama-f16", "llama-f32"])
def test_an_llm_says_the_same(name: str, checkpoint: Callable[[str], Path]) -> None:
    """Tokens and log-probabilities of every kind of request are those of the float head."""
    exact = LLM(checkpoint(name), head="exact", threads=2)
    head = exact.engine.model.graph.head.weight
    assert head is not None
    floats = LLM(checkpoint(name), head=head.format, threads=2)
    assert (exact.info()["head"], floats.info()["head"]) == ("exact", head.format)
    for request in REQUESTS:
        options = {"max_tokens": 12, "seed": 7, "ignore_eos": True, **request}
        a, b = exact.generate(PROMPT, **options), floats.generate(PROMPT, **options)
        assert (a.tokens, a.logprobs) == (b.tokens, b.logprobs)
        assert b.stats.head_rows_rescored == 0
        rows = a.stats.head_rows_rescored / 12
        vocab = exact.engine.model.config.vocab_size
        screens = "logprobs" not in request and (
            request["temperature"] == 0 or 0 < request.get("top_k", 0) < vocab or "min_p" in request
        )
        assert (rows < vocab) == screens, request
    assert_same_bits(exact.logits(PROMPT), floats.logits(PROMPT))
    np.testing.assert_array_equal(exact.logprobs(PROMPT), floats.logprobs(PROMPT))


def step(engine: Engine, prompts: list[list[int]], counts: list[int]) -> list[np.ndarray]:
    """Logits after each prompt, all in one step."""
    sequences = [Sequence() for _ in prompts]
    batch = [(s, p, 1) for s, p in zip(sequences, prompts, strict=True)]
    rows = [r[0] for r in engine.step(batch, [DecidingLogits(k) for k in counts])]
    for s in sequences:
        engine.kv_cache.release(s)
    return rows


def test_a_batch_may_mix(checkpoint: Callable[[str], Path]) -> None:
    """A batch with full logits and different top k: each row is right, on every unit."""
    model = loading.load(checkpoint("bitnet-multiply"), head="exact")
    prompts = [[1, 2, 3], [7], [9, 9], [200, 100]]
    for isa in ISAS:
        for threads in (1, 2, 3):
            engine = Engine(model, isa=isa, threads=threads)
            floats = step(engine, prompts, [0] * 4)
            for tops in ([1, 1, 1, 1], [1, 5, 40, 2], [0, 1, 5, 0], [1, 0, MAX_TOP + 1, 3]):
                for k, got, expected in zip(tops, step(engine, prompts, tops), floats, strict=True):
                    n = k or len(expected)
                    assert_same_bits(got[ranked(got)[:n]], expected[ranked(expected)[:n]])
                    np.testing.assert_array_equal(ranked(got)[:n], ranked(expected)[:n])


def test_what_is_counted(checkpoint: Callable[[str], Path]) -> None:
    """Rows and bytes of a screened step, of a full one and of one without logits."""
    model = random_model("tiny", head="exact")
    engine, head = Engine(model, threads=1), model.graph.head
    assert head.weight is not None
    assert head.shadow is not None
    group = head.weight.codes.nbytes // (head.weight.M // 16)
    s = Sequence()
    engine.step([(s, [1, 2], 0)], [DecidingLogits(1)])
    assert (s.rows_rescored, s.head_bytes) == (0, 0)
    row = engine.step([(s, [3], 1)], [DecidingLogits(1)])[0][0]
    candidates = np.flatnonzero(row != -np.inf)
    assert s.rows_rescored == len(candidates)
    assert s.head_bytes == head.shadow.nbytes + group * len(np.unique(candidates // 16))
    engine.step([(s, [3], 1)])
    assert s.rows_rescored == len(candidates) + head.weight.M
    engine.kv_cache.release(s)


def test_packed_and_cached(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shadow is made anew: nothing of it is stored, and one cache entry serves both heads."""
    folder = checkpoint("llama-bf16")
    loading.save(loading.load(folder, head="exact"), tmp_path / "exact")
    loading.save(loading.load(folder, head="bf16"), tmp_path / "bf16")
    one, other = (tmp_path / name / "model.safetensors" for name in ("exact", "bf16"))
    assert one.read_bytes() == other.read_bytes()
    for head in ("exact", "bf16"):
        assert loading.load(tmp_path / "bf16", head=head).head == head
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = loading.load(folder, head="exact")
    first.keep()
    assert first.store is not None
    first.store.wait()
    reread = loading.load(folder)
    assert (reread.store, reread.head) == (None, sources.default_head("bf16"))


def test_the_default(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One name decides what a float head becomes where none is asked for."""
    for default, expected in (("exact", "exact"), (None, "bf16")):
        monkeypatch.setattr(sources, "DEFAULT_FLOAT_HEAD", default)
        assert loading.load(checkpoint("llama-bf16")).head == expected
    # A default gives way where a shadow cannot be; asking for it is an error.
    wide = PackedWeight(BF16, 1, 65537, pack(np.ones((1, 65537))).codes, F32(1))
    monkeypatch.setattr(sources, "DEFAULT_FLOAT_HEAD", "exact")
    assert sources.shadow_of(wide, None, 1) is None
    failure(lambda: sources.shadow_of(wide, "exact", 1), RequestError, "65536", "65537")


def test_integer_heads_are_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A head that is packed as int8 has no float rows, so it cannot be exact."""
    loading.save(loading.load(checkpoint("llama-bf16"), head="int8"), tmp_path / "packed")
    failure(lambda: loading.load(tmp_path / "packed", head="exact"), RequestError, "head", "i8")
    assert loading.load(tmp_path / "packed").head == "int8"


def test_tops_are_checked(checkpoint: Callable[[str], Path]) -> None:
    """One for each sequence, none out of range."""
    engine = Engine(loading.load(checkpoint("llama-bf16")), threads=1)
    for tops in (
        [],
        [DecidingLogits(1)] * 2,
    ):
        failure(
            lambda tops=tops: engine.step([(Sequence(), [1], 1)], tops), RequestError, "deciding"
        )
    for wrong in ((-1, 0.0), (1, -1.0), (1, float("nan"))):
        failure(lambda wrong=wrong: DecidingLogits(*wrong), RequestError, "deciding")


def test_top_of_requests() -> None:
    """Each kind of request asks for the logits that it needs, and no others."""
    base = SamplingParams(temperature=1.0, top_k=40, top_p=0.5, min_p=0.1)

    def top(**change: Any) -> tuple[int, float]:
        return replace(base, **change).native.deciding

    assert top() == top(repetition_penalty=1.2, logit_bias={3: 1.0}) == (40, 0)
    assert top(temperature=0.0) == (1, 0)
    assert top(logprobs=1) == top(top_k=0) == top(top_k=MAX_TOP + 1) == (0, 0)
    count, gap = top(top_k=0, top_p=1.0)
    assert (count, math.log(10) < gap < math.log(10) + 0.002) == (1, True)
    assert top(top_k=0, top_p=1.0, min_p=0.01) == (0, 0)


@settings(max_examples=150)
@given(st.data())
def test_penalties_and_gaps(data: st.DataObject) -> None:
    """Repetition penalties (also below 1) and min-p: the sampler's token is the float head's."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    M, K = data.draw(st.integers(1, 600)), data.draw(st.integers(1, 60))
    size = data.draw(st.sampled_from([0.01, 0.1, 1.0, 1e18]))
    head = pack(rng.standard_normal((M, K)) * size + data.draw(st.sampled_from([0, size])))
    x = (rng.standard_normal((1, K)) * size).astype(F32)
    floats = ops.linear(x, head)
    best = ranked(floats[0])[: data.draw(st.integers(0, 9))]  # what a model would say again
    history = np.concatenate([best, best, rng.integers(-3, M + 3, 5)]).astype(np.int32)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
        top_k=data.draw(st.sampled_from([0, 0, 1, 7])),
        min_p=data.draw(st.sampled_from([0.02, 0.05, 0.5, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([0.01, 0.8, 1.0, 1.1, 1.5, 100.0])),
    )
    draw = Draw(params.native, history)
    if not 1 <= params.native.deciding[0] <= M:
        return
    got, _, _, (candidates,) = screened(head, x, [draw])
    there = got[0] != -np.inf
    assert there.sum() == candidates
    assert_same_bits(got[0][there], floats[0][there])
    for position in range(20):
        tokens = [int(draw.sample(rows[0], position).token) for rows in (got, floats)]
        assert tokens[0] == tokens[1]
