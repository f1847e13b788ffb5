"""llama.cpp's samplers against numpy in float64: what they keep, and with which probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from helpers import failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna import LLM
from sterna.engine import Draw
from sterna.errors import RequestError
from sterna.sampling_params import SamplingParams

F64 = npt.NDArray[np.float64]
ORDER = ("top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
#: Fields, by the sampler that reads them; several values of each.
FIELDS: dict[str, list[dict[str, Any]]] = {
    "top_n_sigma": [{"top_n_sigma": 1.0}, {"top_n_sigma": 0.3}],
    "top_k": [{"top_k": 7}, {"top_k": 1}],
    "typ_p": [{"typical_p": 0.5}, {"typical_p": 0.95}],
    "top_p": [{"top_p": 0.6}, {"top_p": 0.97}],
    "min_p": [{"min_p": 0.2}, {"min_p": 1.0}],
    "xtc": [{"xtc_probability": 1.0, "xtc_threshold": 0.15}, {"xtc_probability": 0.5}],
    "temperature": [
        {}, {"dynatemp_range": 0.5}, {"dynatemp_range": 2.0, "dynatemp_exponent": 0.4},
    ],
}  # fmt: skip


def philox(seed: int, sequence: int, position: int, purpose: int) -> float:
    """The uniform number of Philox4x32-10, by numpy's integers."""
    mask = (1 << 32) - 1
    c = [position & mask, position >> 32, sequence & mask, sequence >> 32 ^ purpose]
    key = [seed & mask, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ key[0], b & mask, a >> 32 ^ c[3] ^ key[1], a & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return float((c[1] << 32 | c[0]) >> 11) * 2.0**-53


def softmax(scores: F64) -> F64:
    exps = np.exp(scores - scores.max())
    return np.asarray(exps / exps.sum())


def entropy(p: F64) -> float:
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def until(p: F64, order: npt.NDArray[np.int64], mass: float) -> npt.NDArray[np.int64]:
    """The first tokens of an order until their probabilities reach `mass`."""
    return order[: int(np.searchsorted(np.cumsum(p[order]), mass)) + 1]


def step(name: str, scores: F64, params: SamplingParams, xtc: float) -> F64:
    """The scores after a sampler; -inf: dropped. xtc: its random number."""
    left = np.flatnonzero(scores > -np.inf)
    live, p = scores[left], softmax(scores[left])
    best = np.argsort(-live, kind="stable")
    kept = np.arange(len(left))
    if name == "top_n_sigma" and params.top_n_sigma > 0:
        kept = np.flatnonzero(live >= live.max() - params.top_n_sigma * live.std())
    elif name == "top_k" and params.top_k:
        kept = best[: params.top_k]
    elif name == "typ_p" and params.sampling["typical_p"] < 1:
        nearest = np.argsort(np.abs(-np.log(p) - entropy(p)), kind="stable")
        kept = until(p, nearest, params.sampling["typical_p"])
    elif name == "top_p" and params.top_p is not None:
        kept = until(p, best, params.top_p)
    elif name == "min_p" and params.min_p:
        kept = np.flatnonzero(p >= params.min_p * p.max())
    elif name == "xtc" and xtc < params.xtc_probability and params.xtc_threshold <= 0.5:
        tops = best[p[best] >= params.xtc_threshold]
        kept = np.setdiff1d(kept, tops[:-1])
    elif name == "temperature":
        t = params.temperature or 0.0
        if params.dynatemp_range and len(left) > 1:
            share = (entropy(p) / math.log(len(left))) ** params.dynatemp_exponent
            low = max(t - params.dynatemp_range, 0.0)
            t = low + (t + params.dynatemp_range - low) * share
        scores = scores / t
    out = np.full_like(scores, -np.inf)
    out[left[kept]] = scores[left[kept]]
    return out


def expected(logits: F64, params: SamplingParams, position: int) -> int:
    """The token by all steps, and the random number of its position."""
    scores = logits
    seed = params.seed or 0
    for name in params.samplers or ORDER:
        scores = step(name, scores, params, philox(seed, params.choice, position, 1))
    p = softmax(scores)
    return int(np.searchsorted(np.cumsum(p), philox(seed, params.choice, position, 0), "right"))


def drawn(logits: npt.NDArray[np.float32], params: SamplingParams, position: int) -> int:
    return Draw(params.native, np.zeros(0, np.int32)).sample(logits, position).token


@settings(max_examples=200)
@given(st.data())
def test_tokens_are_those_of_numpy(data: st.DataObject) -> None:
    """Some samplers, in llama.cpp's order or another, with any seed, choice and position."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal(data.draw(st.sampled_from([2, 40, 700]))) * 3).astype(np.float32)
    names = data.draw(st.lists(st.sampled_from(ORDER), unique=True, min_size=1))
    fields = {"temperature": data.draw(st.sampled_from([0.5, 1.0, 1.7]))}
    for name in names:
        fields |= data.draw(st.sampled_from(FIELDS[name]))
    order = data.draw(st.permutations(names)) if data.draw(st.booleans()) else ORDER
    params = SamplingParams(
        samplers=order, seed=data.draw(st.integers(0, 2**64 - 1)),
        choice=data.draw(st.integers(0, 3)), **fields,
    )  # fmt: skip
    for position in range(20):
        assert drawn(logits, params, position) == expected(
            logits.astype(np.float64), params, position
        )


@pytest.mark.parametrize("kind", ["flat", "peaked", "ties", "equal"])
@pytest.mark.parametrize(
    "fields",
    [
        {"samplers": ("typ_p",), "typical_p": 0.875}, {"samplers": ("typ_p",), "typical_p": 0.25},
        {"samplers": ("top_p",), "top_p": 0.875}, {"samplers": ("top_p",), "top_p": 1 - 2**-10},
        {"samplers": ("top_k", "typ_p", "top_p"), "top_k": 3000, "typical_p": 0.75, "top_p": 0.5},
        {"top_p": 0.875 + 2**-13}, {"top_p": 1 - 2**-10},  # by weights that no sum divides
        {"samplers": ("top_k",), "top_k": 40}, {"samplers": ("min_p", "top_k"), "top_k": 5},
    ],
)  # fmt: skip
def test_masses_of_many_tokens(kind: str, fields: dict[str, Any]) -> None:
    """What reaches a mass is found in buckets, and with many equal scores by their ids."""
    rng = np.random.default_rng(len(kind))
    scale = {"flat": 0.3, "peaked": 4.0, "ties": 2.0, "equal": 0.0}[kind]
    scores = rng.standard_normal(12_000) * scale
    logits = (np.round(scores) if kind == "ties" else scores).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=9, min_p=1e-4, **fields)
    found = [drawn(logits, params, position) for position in range(12)]
    exact = logits.astype(np.float64)
    assert found == [expected(exact, params, position) for position in range(12)]


def test_a_mass_that_sums_would_miss() -> None:
    """Where another order of a sum could keep another token, the sum has the order of ranks."""
    logits = np.zeros(64, np.float32)  # of which 32 have a mass of exactly one half
    for name, field in (("top_p", "top_p"), ("typ_p", "typical_p")):
        params = SamplingParams(temperature=1.0, seed=3, samplers=(name,), **{field: 0.5})
        found = {drawn(logits, params, position) for position in range(400)}
        assert found == set(range(32)), name


@pytest.mark.parametrize("name", [name for name in ORDER if name not in ("top_k", "top_p")])
def test_each_sampler_changes_the_draws(name: str) -> None:
    """And has llama.cpp's order without being asked for it."""
    logits = (np.random.default_rng(4).standard_normal(50) * 2).astype(np.float32)
    plain = SamplingParams(temperature=1.0, seed=1, top_p=0.95)
    asked = plain.replaced(FIELDS[name][-1])
    positions = range(60)
    if name not in ("min_p",):
        found = [drawn(logits, asked, i) for i in positions]
        assert found == [drawn(logits, asked.replaced({"samplers": ORDER}), i) for i in positions]
        if name != "temperature" or asked.dynatemp_range:
            assert found != [drawn(logits, plain, i) for i in positions]


def test_xtc_has_random_numbers_of_its_own() -> None:
    """It drops the best of two tokens at its rate, whatever the token's own number is."""
    logits = np.log(np.array([0.6, 0.4])).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=3, xtc_probability=0.5)
    found = np.array([drawn(logits, params, i) for i in range(2000)])
    assert found.mean() == pytest.approx(0.5 + 0.5 * 0.4, abs=0.05)


def test_a_temperature_of_0_is_greedy() -> None:
    logits = np.array([1.0, 3.0, 2.9, 0.0], np.float32)
    every = {k: v for fields in FIELDS.values() for k, v in fields[0].items()}
    for more in ({}, {"mirostat": 1}, {"mirostat": 2}, {"dynatemp_range": 2.0}):
        assert drawn(logits, SamplingParams(temperature=0.0, **{**every, **more}), 0) == 1


@pytest.mark.parametrize("fields", [{"typical_p": 0.3}, {"top_p": 0.999}, {"mirostat": 1}])
def test_equal_scores_and_tokens_without_probability(fields: dict[str, Any]) -> None:
    """Ties rank by id; scores of -inf, and far below the others, are never drawn."""
    logits = np.full(3000, -np.inf, np.float32)
    logits[500:1500], logits[2000] = 1.0, -1e30
    params = SamplingParams(temperature=1.0, seed=0, samplers=ORDER, **fields)
    found = {drawn(logits, params, i) for i in range(300)}
    assert len(found) > 1 or "mirostat" in fields
    assert min(found) >= 500
    assert max(found) < 1500


# ------------------------------------------------------------------------------------- mirostat


def mirostat(logits: F64, params: SamplingParams, position: int, mu: float) -> tuple[int, float]:
    """The token, and the state after it, by the paper's algorithms."""
    scores = logits / (params.temperature or 0.0)
    p = softmax(scores)
    best = np.argsort(-p, kind="stable")
    if params.mirostat == 1:
        top = np.log(p[best[:100]])
        i = np.arange(len(top) - 1)
        t = np.log((i + 2) / (i + 1))
        s = (t * (top[:-1] - top[1:])).sum() / (t * t).sum()
        k = ((s - 1) * 2**mu / (1 - len(p) ** (1 - s))) ** (1 / s)
        kept = best[: max(int(k), 1)]
    else:
        kept = best[: max(int((-np.log2(p[best]) <= mu).sum()), 1)]
    left = np.sort(kept)
    q = p[left] / p[left].sum()
    at = int(np.searchsorted(np.cumsum(q), philox(params.seed or 0, 0, position, 0), "right"))
    return int(left[at]), mu - params.mirostat_eta * (-np.log2(q[at]) - params.mirostat_tau)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_mirostat(version: int, tau: float) -> None:
    """Tokens and states are numpy's over a hundred draws, and the mean surprise nears tau."""
    rng = np.random.default_rng(version)
    params = SamplingParams(
        temperature=0.875, seed=5, mirostat=version, mirostat_tau=tau, mirostat_eta=0.25
    )
    mu, theirs, surprises = math.nan, 2 * tau, []
    for position in range(200):
        logits = (rng.standard_normal(400) * 2.5).astype(np.float32)
        got = Draw(params.native, np.zeros(0, np.int32), mu=mu).sample(logits, position)
        token, after = mirostat(logits.astype(np.float64), params, position, theirs)
        surprises.append(tau + (theirs - after) / 0.25)
        assert got.token == token
        assert got.mu == pytest.approx(after, abs=1e-9)
        mu, theirs = got.mu, after
    assert np.mean(surprises[50:]) == pytest.approx(tau, abs=0.4)


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=2)


ALL: dict[str, Any] = {
    "temperature": 1.4, "seed": 9, "max_tokens": 40, "ignore_eos": True, "xtc_probability": 0.4,
    "xtc_threshold": 0.02, "typical_p": 0.9, "top_n_sigma": 2.0, "dynatemp_range": 0.4,
    "dry_multiplier": 1.5, "dry_allowed_length": 1,
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"mirostat": 1}, {"mirostat": 2, "mirostat_tau": 3.0}])
def test_batches_change_no_token(llm: LLM, more: Any) -> None:
    alone = llm.generate([5, 6, 7], **ALL, **more).tokens
    several = llm.generate([[5, 6, 7], [8, 9], [5, 6, 7]], **ALL, **more)
    assert several[0].tokens == several[2].tokens == alone


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dry_multiplier": -1}, ["dry_multiplier", "-1"]),
        ({"dry_base": 0.9}, ["dry_base", "0.9"]),
        ({"dry_allowed_length": 1.5}, ["dry_allowed_length", "1.5"]),
        ({"dry_penalty_last_n": -2}, ["dry_penalty_last_n", "-2"]),
        ({"dry_sequence_breakers": "\n"}, ["dry_sequence_breakers", "several"]),
        ({"dry_sequence_breakers": [""]}, ["dry_sequence_breakers", "empty"]),
        ({"typical_p": 1.5}, ["typical_p", "1.5"]),
        ({"top_n_sigma": float("nan")}, ["top_n_sigma", "nan"]),
        ({"xtc_probability": 2}, ["xtc_probability", "2"]),
        ({"xtc_threshold": -0.1}, ["xtc_threshold", "-0.1"]),
        ({"dynatemp_range": -1}, ["dynatemp_range", "-1"]),
        ({"dynatemp_exponent": "1"}, ["dynatemp_exponent", "1"]),
        ({"mirostat": 3}, ["mirostat", "3"]),
        ({"mirostat_tau": -1}, ["mirostat_tau", "-1"]),
        ({"mirostat_eta": 1.1}, ["mirostat_eta", "1.1"]),
        ({"samplers": "top_k"}, ["samplers", "top_k"]),
        ({"samplers": ["top_z"]}, ["samplers", "top_z", "typ_p"]),
        ({"samplers": ["top_k", "top_k"]}, ["samplers", "once"]),
        ({"samplers": ["top_k", "penalties"]}, ["samplers", "begin"]),
    ],
)
def test_what_is_refused(llm: LLM, options: Any, words: list[str]) -> None:
    failure(lambda: llm.generate([1, 2], **options), RequestError, *words)


def test_samplers_left_out_are_off() -> None:
    logits = np.array([0.0, 2.0, 1.0], np.float32)
    loud = {
        "repetition_penalty": 100.0, "presence_penalty": 2.0, "dry_multiplier": 50.0,
        "dry_allowed_length": 0, "seed": 1,
    }  # fmt: skip
    draw = np.array([1, 1, 1, 1], np.int32)
    only = SamplingParams(temperature=0.01, samplers=("top_k",), top_k=1, **loud)
    assert Draw(only.native, draw).sample(logits, 0).token == 1
    both = SamplingParams(temperature=0.0, samplers=("penalties", "top_k"), **loud)
    assert Draw(both.native, draw).sample(logits, 0).token == 2
