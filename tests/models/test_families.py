"""Families that `transformers` has no class for: weights to the bit, logits, tokens, the cache.

The reference is written out in tests/support/families. Tolerances are those of
test_against_transformers: where inputs of layers are rounded to int8, the effect of one step; else
float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, Family, reference
from helpers import assert_same_bits
from test_against_transformers import (
    Pair,
    check_choices,
    one_step_effect,
    rounding_bound,
    tokens,
)
from waits import HANGS_S

import sterna.ops as ops
from sterna import LLM, loading
from sterna.engine import Engine

POSITIONS = 48
# Weight-only families: a format of floats keeps their activations as they are.
FLOATS = [name for name, family in FAMILIES.items() if not family.rounds]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("families")

    @lru_cache
    def get(name: str) -> Path:
        return FAMILIES[name].write(root / name)

    return get


def opened(folder: Path, family: Family, rounds: bool, format: str | None = None) -> Pair:
    """Sterna's model and the reference, which rounds the inputs of layers or does not."""
    model = loading.load(folder, format=format, cached=False, threads=1)
    engine = Engine(model, threads=1, kv_dtype="f32", deterministic=True)
    return Pair(family.recipe, reference(family, rounds and not family.float_inputs), engine)


def real_rows(family: Family, name: str) -> np.ndarray:
    """The real weights of a module that may be of several layers."""
    _, real = family.tensors()
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    path, _, last = name.rpartition(".")
    rows = [real[f"{path}.{part}.weight"] for part in parts.get(last, (last,))]
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_weights(name: str, folder: Callable[[str], Path]) -> None:
    """Packed weights are those that the storage means, to the bit.

    Masters' scale is a mean, so the last bit is the summation's; sixteen (and eight) levels are
    compared as bf16, since the file has rounded them.
    """
    family = FAMILIES[name]
    model = loading.load(folder(name), cached=False, threads=1)
    assert model.format == family.format
    checked = 0
    for module, packed in model.weights.modules.items():
        if not module.endswith("_proj"):
            continue
        checked += 1
        got, expected = ops.dequantize(packed), real_rows(family, module)
        if name.startswith("bitnet_b1_58"):
            np.testing.assert_array_equal(np.sign(got), np.sign(expected))
            np.testing.assert_allclose(got, expected, rtol=2e-7)
            continue
        if name.startswith("paretoq") and name.endswith("bf16"):
            got = torch.from_numpy(got).bfloat16().float().numpy()
        assert_same_bits(got + np.float32(0), expected + np.float32(0))
    assert checked == 4 * family.recipe.layers


@pytest.mark.parametrize("name", FAMILIES)
def test_logits(name: str, folder: Callable[[str], Path]) -> None:
    """Logits are within one step of int8 of the reference whose layers round their inputs to it.

    Where the file's dtype has rounded weights that Sterna knows the rule of, the reference is the
    model before that: the rounding moves logits as much as a step does.
    """
    family = FAMILIES[name]
    both, sequences = opened(folder(name), family, rounds=True), tokens(1, POSITIONS)
    expected, got = both.expected(sequences), both.got(sequences)
    tolerance = one_step_effect(both, sequences[0], expected)
    assert 0 < tolerance < 0.25 * expected.std()
    assert np.abs(got - expected).max() <= tolerance
    check_choices(expected, got, tolerance)
    if family.unrounded:
        return
    short = tokens(24, 4)
    error = np.abs(both.got(short) - both.expected(short)).max((1, 2))
    assert np.median(error) <= rounding_bound(family.recipe, expected), np.sort(error)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, folder: Callable[[str], Path]) -> None:
    """A float format rounds nothing but the sums."""
    family = FAMILIES[name]
    both = opened(folder(name), family, rounds=False, format="f32")
    sequences = tokens(1, POSITIONS)
    expected, got = both.expected(sequences), both.got(sequences)
    tolerance = rounding_bound(family.recipe, expected)
    assert np.abs(got - expected).max() <= tolerance
    check_choices(expected, got, tolerance)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy(name: str, folder: Callable[[str], Path]) -> None:
    """Sterna's greedy tokens are the reference's, wherever one step does not decide."""
    family = FAMILIES[name]
    both = opened(folder(name), family, rounds=True)
    prompt = tokens(1, 8)[0]
    text = list(prompt)
    for _ in range(24):
        text.append(int(both.engine.logits([text])[0][-1].argmax()))
    expected = both.expected([text])[0]
    tolerance = one_step_effect(both, text, expected[None])
    top = np.sort(expected, axis=-1)
    decided = (top[:, -1] - top[:, -2] > tolerance)[len(prompt) - 1 : -1]
    chosen = expected.argmax(-1)[len(prompt) - 1 : -1]
    assert decided.mean() > 0.3
    np.testing.assert_array_equal(np.array(text[len(prompt) :])[decided], chosen[decided])


@pytest.mark.parametrize("name", FAMILIES)
def test_cache(
    name: str, folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that was packed once is read from the cache, with the same bits."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    first = LLM(folder(name), threads=1)
    store = first.engine.model.store
    assert store is not None
    assert store.wait(HANGS_S) is not None
    second = LLM(folder(name), threads=1)
    assert second.engine.model.store is None
    assert second.engine.model.format == first.engine.model.format
    ids = tokens(1, 12)[0]
    assert_same_bits(second.logits(ids), first.logits(ids))
