"""The exact head has the full head's bits, and its bound holds (docs/exact-head.md).

Adversarial and random heads × instruction sets × k; the bound against exact sums; and, for every
term of the bound, a case that would break without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna import LLM, _native, formats, models, ops
from sterna.bench.random_models import random_model
from sterna.engine import Engine, Sequence
from sterna.errors import NonFiniteError, RequestError
from sterna.formats import PackedWeight, Shadow, quantize_activations
from sterna.models import weights as model_weights
from sterna.sampling import MAX_GAP, MAX_TOP, NO_HISTORY, SamplingParams, Top

F32 = np.float32
ISAS = _native.isas()
HALF_ULP = 2.0**-24


def pack(w: np.ndarray, format: str = "bf16") -> PackedWeight:
    return ops.pack(np.asarray(w, F32), format=format, threads=1)


def screened(
    head: PackedWeight,
    x: np.ndarray,
    top: list[int] | list[Top],
    isa: str = ISAS[-1],
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """(logits, low, high, candidates) of rows x, of which the `top` largest matter."""
    shadow = Shadow.of(head, threads)
    tops = [t if isinstance(t, Top) else Top(t) for t in top]
    return _native.screened(
        formats.get(head.format).native(head),
        formats.get("i8").native(shadow.rows),
        shadow.bounds,
        np.ascontiguousarray(x, F32),
        [(t.count, t.gap, t.penalty, t.history) for t in tops],
        isa,
        threads,
    )


def ranked(logits: np.ndarray) -> np.ndarray:
    """Ids as the sampler ranks them: largest first, the lowest id among equals."""
    return np.lexsort((np.arange(len(logits)), -logits))


def check(head: PackedWeight, x: np.ndarray, k: int, isa: str = ISAS[-1], threads: int = 1) -> int:
    """The k largest logits, ties included, are there with the full head's bits; the candidates."""
    full = ops.linear(x, head, isa=isa, threads=threads)
    got, low, high, candidates = screened(head, x, [k] * len(x), isa, threads)
    for n in range(len(x)):
        there = got[n] != -np.inf
        assert_same_bits(got[n][there], full[n][there])
        least = np.sort(full[n])[-k]
        assert there[full[n] >= least].all()
        np.testing.assert_array_equal(ranked(got[n])[:k], ranked(full[n])[:k])
        assert there.sum() == candidates[n] >= k
        assert (low[n] <= full[n]).all()
        assert (full[n] <= high[n]).all()
        for temperature in (0.0, 0.8):  # the sampler decides the same
            params = SamplingParams(temperature=temperature, top_k=k, top_p=0.9, seed=5)
            tokens = {int(params.sample(rows[n], NO_HISTORY, 3).token) for rows in (got, full)}
            assert len(tokens) == 1
    return sum(candidates)


# --------------------------------------------------------------------------------- heads and rows


def last_bit(rng: np.random.Generator) -> np.ndarray:
    """Rows that differ from one another in the last bit of one bf16 value."""
    w = np.repeat(rng.standard_normal((1, 96)), 200, axis=0)
    w = pack(w)
    bits = (ops.dequantize(w).view(np.uint32) >> 16).astype(np.uint16)
    bits[np.arange(200), rng.integers(0, 96, 200)] ^= 1
    return (bits.astype(np.uint32) << 16).view(F32)


def ties(rng: np.random.Generator) -> np.ndarray:
    """Each row thrice, far apart."""
    return np.tile(rng.standard_normal((70, 64)), (3, 1))


def spread(rng: np.random.Generator) -> np.ndarray:
    """Norms from 1e-30 to 1e15."""
    return rng.standard_normal((300, 48)) * 10.0 ** rng.uniform(-30, 15, (300, 1))


def outlier_column(rng: np.random.Generator) -> np.ndarray:
    """One column of a thousand times the others' size."""
    w = rng.standard_normal((260, 128))
    w[:, 17] *= 1000
    return w


def denormals(rng: np.random.Generator) -> np.ndarray:
    """Rows of zeros, of denormals, and of values whose squares are lost, among ordinary ones."""
    w = rng.standard_normal((130, 80))
    w[::5] = 0
    w[1::5] *= 1e-39
    w[2::5] *= 1e-25
    w[3::5] *= 1e-30
    return w


def common(rng: np.random.Generator) -> np.ndarray:
    """Rows that share a large part, so that their logits nearly agree."""
    return 20 * rng.standard_normal((1, 200)) + 0.01 * rng.standard_normal((500, 200))


HEADS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "random": lambda rng: rng.standard_normal((1000, 320)),
    "equal": lambda rng: np.repeat(rng.standard_normal((1, 64)), 300, axis=0),
    "last bit": last_bit,
    "ties": ties,
    "spread": spread,
    "outlier column": outlier_column,
    "denormals": denormals,
    "zeros": lambda rng: np.zeros((90, 30)),
    "common part": common,
    "odd K": lambda rng: rng.standard_normal((257, 77)),
    "K 1": lambda rng: rng.standard_normal((65, 1)),
    "one row": lambda rng: rng.standard_normal((1, 40)),
    "heavy tails": lambda rng: rng.standard_cauchy((400, 100)),
    "positive": lambda rng: np.abs(rng.standard_normal((400, 96))),
}


def activations(rng: np.random.Generator, K: int) -> np.ndarray:
    """Rows x: ordinary, one giant element, all equal, below the quantiser's floor, and more."""
    x = rng.standard_normal((9, K))
    x[1, rng.integers(K)] = 3e4
    x[2] = 0.7
    x[3] *= 1e-7
    x[4] *= 1e-30
    x[5] = 0
    x[6] = rng.standard_cauchy(K)
    x[7] = np.exp(5 * rng.standard_normal(K))
    x[8] *= 1e-42  # denormal
    return x.astype(F32)


@pytest.mark.parametrize("k", [1, 2, 5, 40, 256, None])
@pytest.mark.parametrize("name", HEADS)
def test_the_k_largest_are_the_full_heads(name: str, k: int | None) -> None:
    """Bits of the logits, ranks and sampled tokens; None is all of the vocabulary."""
    rng = np.random.default_rng(len(name))
    head = pack(HEADS[name](rng))
    for x in np.split(activations(rng, head.K), 3):
        check(head, x, min(k or head.M, head.M))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("isa", ISAS)
def test_every_unit_gives_the_same(isa: str, threads: int) -> None:
    """Logits, intervals and candidates, and the shadow's bytes, on every unit and thread count."""
    for name in ("random", "denormals", "odd K", "heavy tails"):
        rng = np.random.default_rng(1)
        head = pack(HEADS[name](rng))
        x = activations(rng, head.K)
        k = min(5, head.M)
        check(head, x, k, isa, threads)
        for got, expected in zip(
            screened(head, x, [k] * len(x), isa, threads),
            screened(head, x, [k] * len(x), "scalar", 1),
            strict=True,
        ):
            np.testing.assert_array_equal(got, expected)
        native = formats.get("bf16").native(head)
        for a, b in zip(
            _native.shadow(native, isa, threads), _native.shadow(native, "scalar", 1), strict=True
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("format", ["bf16", "f16", "f32"])
def test_every_float_format(format: str) -> None:
    """An exact head is one of the checkpoint's own floats, whichever they are."""
    rng = np.random.default_rng(3)
    head = pack(rng.standard_normal((500, 111)), format)
    check(head, activations(rng, 111)[:3], 5)


def test_what_may_overflow_is_computed() -> None:
    """A row whose logit may be infinite is never screened out, so the sampler sees it."""
    w = np.random.default_rng(0).standard_normal((128, 64)).astype(F32)
    w[100] = 3e38
    w[101] = -3e38
    head, x = pack(w), np.ones((1, 64), F32)
    got, low, high, _ = screened(head, x, [1])
    full = ops.linear(x, head)
    assert full[0, 100] == np.inf
    assert_same_bits(got[0, 100:102], full[0, 100:102])
    assert (low[0, 100], high[0, 100]) == (-np.inf, np.inf)
    for rows in (got, full):
        with pytest.raises(NonFiniteError, match="logits"):
            SamplingParams().sample(rows[0], NO_HISTORY, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite(bad: float) -> None:
    """They are found before they choose anything."""
    head = pack(np.ones((70, 8)))
    x = np.ones((2, 8), F32)
    x[1, 3] = bad
    with pytest.raises(FloatingPointError):
        screened(head, x, [1, 1])


def test_random_heads_leave_few_rows_open() -> None:
    """What makes it fast: a few of 20,000 Gaussian rows, with outliers in x or without."""
    rng = np.random.default_rng(0)
    head = pack(rng.standard_normal((20000, 512)))
    x = rng.standard_normal((4, 512)).astype(F32)
    x[2:, [3, 99]] *= 60
    assert check(head, x, 1) < 4 * 200


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_head(data: st.DataObject) -> None:
    """Shapes, sizes of rows and of columns, repeated rows and k at random."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    M, K = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 90))
    rows = rng.integers(0, M, M) if data.draw(st.booleans()) else np.arange(M)
    exponent = data.draw(st.sampled_from([0, 1, 6, 20]))
    w = rng.standard_normal((M, K)) * 10.0 ** rng.uniform(-exponent, exponent, (M, 1))
    w *= 10.0 ** rng.uniform(-data.draw(st.sampled_from([0, 2, 8])), 0, K)
    x = rng.standard_normal((2, K)) * 10.0 ** rng.uniform(-data.draw(st.integers(0, 12)), 4, K)
    check(pack(w[rows]), x.astype(F32), data.draw(st.integers(1, M)))


# ---------------------------------------------------------------------------------- the bound


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("format", ["bf16", "f32"])
def test_bounds_of_the_shadow(name: str, format: str) -> None:
    """error, norm and peak are above the exact values, and by little where these are not tiny."""
    head = pack(HEADS[name](np.random.default_rng(2)), format)
    shadow = Shadow.of(head, 1)
    w = ops.dequantize(head).astype(np.float64)
    levels, scale = ops.unpack(shadow.rows)
    rows = levels * scale.astype(np.float64)[:, None]  # exact: 7 + 24 bits
    missed = w - rows
    exact = [
        [math.sqrt(math.fsum(v * v for v in row)) for row in missed],
        [math.sqrt(math.fsum(v * v for v in row)) for row in rows],
        np.abs(missed).max(axis=1),
    ]
    for bound, value in zip(shadow.bounds[:, : head.M].astype(np.float64), exact, strict=True):
        assert (bound >= value).all()
        assert (bound <= np.array(value) * 1.01 + 1e-18).all()


def terms(head: PackedWeight, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(c [M], the terms of E [M]) of docs/exact-head.md for one row x, in numpy and float64."""
    shadow = Shadow.of(head, 1)
    levels, scale = ops.unpack(shadow.rows)
    error, norm, peak = shadow.bounds[:, : head.M].astype(np.float64)
    rest, coarse, planes = x[None].astype(F32), np.zeros(head.M, F32), []
    for _ in range(2):
        q, s = quantize_activations(rest)
        t = 2 * (levels.astype(np.int64) @ q[0].astype(np.int64))
        coarse = coarse + t.astype(F32) * (scale * F32(0.5) * s[0])
        planes.append(q[0] * np.float64(s[0]))
        rest = (rest.astype(np.float64) - planes[-1]).astype(F32)
    xd = x.astype(np.float64)
    size, small = np.linalg.norm(xd), np.ones(len(x), bool)
    for _ in range(3):
        small = xd**2 <= 12 * (xd[small] ** 2).sum() / len(x)
    steps = -(-head.K // formats.get(head.format).step_k) * formats.get(head.format).step_k
    height = sum(float(np.linalg.norm(p)) for p in planes)
    return coarse, {
        "peak": peak * np.abs(xd[~small]).sum(),
        "error": error * np.linalg.norm(xd[small]),
        "planes": norm * np.linalg.norm(xd - planes[0] - planes[1]),
        "head's rounding": 1.01 * HALF_ULP * (steps + 2) * size * (error + norm),
        "coarse rounding": 8 * HALF_ULP * height * norm,
        "underflow": np.full(head.M, 2.0**-100),
    }


@pytest.mark.parametrize("name", sorted(HEADS.keys() - {"zeros"}))
def test_the_bound_holds(name: str) -> None:
    """Thousands of logits, the float head's and the exact ones, lie within E of c."""
    rng = np.random.default_rng(11)
    head = pack(HEADS[name](rng)[:130])
    w = ops.dequantize(head).astype(np.float64)
    x = np.concatenate([activations(rng, head.K) for _ in range(2)])
    full = ops.linear(x, head)
    _, low, high, _ = screened(head, x, [1] * len(x))
    for n in range(len(x)):
        c, parts = terms(head, x[n])
        e = sum(parts.values())
        products = w * x[n].astype(np.float64)  # exact: 8 + 24 bits
        exact = np.array([math.fsum(row) for row in products])
        for value in (full[n], exact):
            assert (np.abs(value - c.astype(np.float64)) <= e).all()
            assert (low[n] <= value).all()
            assert (value <= high[n]).all()
        half = (high[n].astype(np.float64) - low[n]) / 2  # E, but for the roundings of its own
        own = 1e-6 * np.abs(c) + 1e-36 * np.abs(w).sum(axis=1)
        assert (np.abs(half - e) <= 1e-3 * e + own + 1e-30).all()


def aligned_error() -> tuple[np.ndarray, np.ndarray]:
    """x along W's rounding error: `error` is attained."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 64)).astype(F32)
    head = pack(w)
    levels, scale = ops.unpack(Shadow.of(head, 1).rows)
    return w, (ops.dequantize(head) - levels * scale[:, None])[0] * 1000


def giant_element() -> tuple[np.ndarray, np.ndarray]:
    """All of x in the column that rounding has changed most: `peak` is attained."""
    w, x = aligned_error()
    return w, np.where(np.abs(x) == np.abs(x).max(), F32(1e4), F32(0))


def aligned_planes() -> tuple[np.ndarray, np.ndarray]:
    """W, exact in int8, along what the planes miss of x."""
    x = np.random.default_rng(0).uniform(-1, 1, 64).astype(F32)
    rest = x[None]
    for _ in range(2):
        q, s = quantize_activations(rest)
        rest = (rest.astype(np.float64) - q * np.float64(s[0])).astype(F32)
    return np.where(rest > 0, F32(127), F32(-127)), x


def rounded_each_time() -> tuple[np.ndarray, np.ndarray]:
    """Sums that the float head rounds up by half an ulp at every step; W is exact in int8."""
    w = np.ones((1, 64), F32)
    w[0, 0] = 127
    x = np.full(64, F32(4.001))  # the first product is 2^26, where half an ulp is 4
    x[0] = 2.0**26 * (1 + 1e-7) / 127
    return w, x


@pytest.mark.parametrize(
    ("term", "case"),
    [
        ("error", aligned_error),
        ("peak", giant_element),
        ("planes", aligned_planes),
        ("head's rounding", rounded_each_time),
    ],
)
def test_no_term_can_go(term: str, case: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
    """With all terms the bound holds; with half of E, or without this term, it would not."""
    w, x = case()
    head = pack(w)
    full = ops.linear(x[None], head)[0].astype(np.float64)
    c, parts = terms(head, x)
    off = np.abs(full - c.astype(np.float64))
    e = sum(parts.values())
    assert (off <= e).all()
    assert (off > e / 2).any()
    assert (off > e - parts[term]).any()
    _, low, high, _ = screened(head, x[None], [1])
    assert ((low[0] <= full) & (full <= high[0])).all()


# ------------------------------------------------------------------------------- in a whole model

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
    """Tokens and log-probabilities of every kind of request are those of the full head."""
    exact = LLM(checkpoint(name), head="exact", threads=2)
    own = exact.engine.model.graph.ops[-1].weight
    assert own is not None
    full = LLM(checkpoint(name), head=own.format, threads=2)
    assert (exact.info()["head"], full.info()["head"]) == ("exact", own.format)
    for request in REQUESTS:
        options = {"max_tokens": 12, "seed": 7, "ignore_eos": True, **request}
        a, b = exact.generate(PROMPT, **options), full.generate(PROMPT, **options)
        assert (a.tokens, a.logprobs) == (b.tokens, b.logprobs)
        assert b.stats.head_rows_rescored == 0
        rows = a.stats.head_rows_rescored / 12
        vocab = exact.engine.model.config.vocab_size
        screens = "logprobs" not in request and (
            request["temperature"] == 0 or 0 < request.get("top_k", 0) < vocab or "min_p" in request
        )
        assert (rows < vocab) == screens, request
    assert_same_bits(exact.logits(PROMPT), full.logits(PROMPT))
    np.testing.assert_array_equal(exact.logprobs(PROMPT), full.logprobs(PROMPT))


def step(engine: Engine, prompts: list[list[int]], counts: list[int]) -> list[np.ndarray]:
    """Logits after each prompt, all in one step."""
    sequences = [Sequence() for _ in prompts]
    batch = [(s, p, 1) for s, p in zip(sequences, prompts, strict=True)]
    rows = [r[0] for r in engine.step(batch, [Top(k) for k in counts])]
    for s in sequences:
        engine.release(s)
    return rows


def test_a_batch_may_mix(checkpoint: Callable[[str], Path]) -> None:
    """Full logits beside a top k, and other ks: each row is right, on every unit."""
    model = models.load(checkpoint("bitnet-multiply"), head="exact")
    prompts = [[1, 2, 3], [7], [9, 9], [200, 100]]
    for isa in ISAS:
        for threads in (1, 2, 3):
            engine = Engine(model, isa=isa, threads=threads)
            full = step(engine, prompts, [0] * 4)
            for tops in ([1, 1, 1, 1], [1, 5, 40, 2], [0, 1, 5, 0], [1, 0, MAX_TOP + 1, 3]):
                for k, got, expected in zip(tops, step(engine, prompts, tops), full, strict=True):
                    n = k or len(expected)
                    assert_same_bits(got[ranked(got)[:n]], expected[ranked(expected)[:n]])
                    np.testing.assert_array_equal(ranked(got)[:n], ranked(expected)[:n])


def test_what_is_counted(checkpoint: Callable[[str], Path]) -> None:
    """Rows and bytes of a screened step, of a full one and of one without logits."""
    model = random_model("tiny", head="exact")
    engine, head = Engine(model, threads=1), model.graph.ops[-1]
    assert head.weight is not None
    assert head.shadow is not None
    group = head.weight.codes.nbytes // (head.weight.M // 16)
    s = Sequence()
    engine.step([(s, [1, 2], 0)], [Top(1)])
    assert (s.rows_rescored, s.head_bytes) == (0, 0)
    row = engine.step([(s, [3], 1)], [Top(1)])[0][0]
    candidates = np.flatnonzero(row != -np.inf)
    assert s.rows_rescored == len(candidates)
    assert s.head_bytes == head.shadow.nbytes + group * len(np.unique(candidates // 16))
    engine.step([(s, [3], 1)])
    assert s.rows_rescored == len(candidates) + head.weight.M
    engine.release(s)


def test_a_screened_step_takes_no_memory(checkpoint: Callable[[str], Path]) -> None:
    """Once as many rows were screened at once."""
    engine = Engine(models.load(checkpoint("bitnet-multiply"), head="exact"), threads=2)
    history = np.arange(9, dtype=np.int32)
    counts = []
    for top in (Top(40), Top(3, 1.5, 1.2, history), Top(1)):
        sequences = [Sequence() for _ in range(3)]
        engine.step([(s, [1, 2], 1) for s in sequences], [top] * 3)
        counts.append(engine._program.allocations)
    assert counts[0] > 0
    assert counts[1:] == [0, 0]


def test_packed_and_cached(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shadow is made anew: nothing of it is stored, and one cache entry serves both heads."""
    folder = checkpoint("llama-bf16")
    models.save(models.load(folder, head="exact"), tmp_path / "exact")
    models.save(models.load(folder, head="bf16"), tmp_path / "bf16")
    one, other = (tmp_path / name / "model.safetensors" for name in ("exact", "bf16"))
    assert one.read_bytes() == other.read_bytes()
    for head in ("exact", "bf16"):
        assert models.load(tmp_path / "bf16", head=head).head == head
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = models.load(folder, head="exact")
    assert first.store is not None
    first.store.wait()
    again = models.load(folder)
    assert (again.store, again.head) == (None, model_weights.default_head("bf16"))


def test_the_default(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One name decides what a float head becomes where none is asked for."""
    for default, expected in (("exact", "exact"), (None, "bf16")):
        monkeypatch.setattr(model_weights, "DEFAULT_FLOAT_HEAD", default)
        assert models.load(checkpoint("llama-bf16")).head == expected
    # A default gives way where a shadow cannot be; asking for it is an error.
    wide = PackedWeight("bf16", 1, 65537, pack(np.ones((1, 65537))).codes, F32(1))
    monkeypatch.setattr(model_weights, "DEFAULT_FLOAT_HEAD", "exact")
    assert model_weights._shadow(wide, None, 1) is None
    failure(lambda: model_weights._shadow(wide, "exact", 1), RequestError, "65536", "65537")


def test_integer_heads_are_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """What is packed as int8 has no float rows left to be exact about."""
    models.save(models.load(checkpoint("llama-bf16"), head="int8"), tmp_path / "packed")
    failure(lambda: models.load(tmp_path / "packed", head="exact"), RequestError, "head", "i8")
    assert models.load(tmp_path / "packed").head == "int8"


def test_tops_are_checked(checkpoint: Callable[[str], Path]) -> None:
    """One for each sequence, none out of range."""
    engine = Engine(models.load(checkpoint("llama-bf16")), threads=1)
    for tops in ([], [Top(1)] * 2, [Top(-1)], [Top(1, gap=-1)], [Top(1, penalty=0)]):
        failure(lambda tops=tops: engine.step([(Sequence(), [1], 1)], tops), RequestError, "tops")


def test_top_of_requests() -> None:
    """Which requests need which logits."""
    history = np.array([1, 2], np.int32)
    base = SamplingParams(temperature=1.0, top_k=40, top_p=0.5, min_p=0.1)

    def top(**change: Any) -> tuple[int, float]:
        got = replace(base, **change).top(history)
        return got.count, got.gap

    assert top() == (40, 0)
    assert top(temperature=0.0) == (1, 0)
    assert top(logprobs=1) == top(top_k=0) == top(top_k=MAX_TOP + 1) == (0, 0)
    count, gap = top(top_k=0, top_p=1.0)
    assert (count, math.log(10) < gap < math.log(10) + 0.002) == (1, True)
    assert top(top_k=0, top_p=1.0, min_p=0.01) == (0, 0) != MAX_GAP
    penalised = replace(base, repetition_penalty=1.2).top(history)
    assert (penalised.penalty, penalised.history is history) == (1.2, True)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_penalties_and_gaps(data: st.DataObject) -> None:
    """Repetition penalties (also below 1) and min-p: the sampler's token is the full head's."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    M, K = data.draw(st.integers(1, 600)), data.draw(st.integers(1, 60))
    size = data.draw(st.sampled_from([0.01, 0.1, 1.0, 1e18]))
    head = pack(rng.standard_normal((M, K)) * size + data.draw(st.sampled_from([0, size])))
    x = (rng.standard_normal((1, K)) * size).astype(F32)
    full = ops.linear(x, head)
    best = ranked(full[0])[: data.draw(st.integers(0, 9))]  # what a model would say again
    history = np.concatenate([best, best, rng.integers(-3, M + 3, 5)]).astype(np.int32)
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])),
        top_k=data.draw(st.sampled_from([0, 0, 1, 7])),
        min_p=data.draw(st.sampled_from([0.02, 0.05, 0.5, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([0.01, 0.8, 1.0, 1.1, 1.5, 100.0])),
    )
    top = params.top(history)
    if not 1 <= top.count <= M:
        return
    got, _, _, (candidates,) = screened(head, x, [top])
    there = got[0] != -np.inf
    assert there.sum() == candidates
    assert_same_bits(got[0][there], full[0][there])
    for position in range(20):
        tokens = [int(params.sample(rows[0], history, position).token) for rows in (got, full)]
        assert tokens[0] == tokens[1]
