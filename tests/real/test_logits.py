"""Logits of real weights against transformers in float32: KL, first choices, perplexity.

Limits are about twice what was measured (docs/measurements/quality.md); a defect costs far more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers import ISAS, assert_same_bits
from measuring import Quality, quality
from references import Reference

from sterna import LLM
from sterna.engine import KV_DTYPES

FLOATS = {"format": "f32", "head": "f32", "deterministic": True}
EXACT = {**FLOATS, "kv_dtype": "f32"}
# Mean KL in nats that a type of keys and values, or a head, may cost where all else is float32:
# with all of it in float32, test_floats_are_those_of_transformers.
KV_LIMITS = {"f16": 2e-6, "i16": 4e-6, "i8": 6e-4, "k8v4": 1.3e-2}
HEAD_LIMITS = {"f16": 5e-6, "bf16": 1e-4}
# The files as they are opened by default: KL, share of first choices that differ, and by how much
# the perplexity of the texts may be another.
DEFAULTS = {"smollm2": (0.007, 0.07, 0.01), "gemma3": (0.006, 0.09, 0.03)}


def measured(llm: LLM, reference: Reference) -> Quality:
    found = quality(llm.logits, reference)
    print(llm.info()["format"], llm.info()["head"], llm.info()["kv_dtype"], found)
    return found


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_floats_are_those_of_transformers(
    name: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    found = measured(llm(name, **EXACT), reference(name))
    assert found.kl_max < 1e-8
    assert found.kl_mean < 1e-9
    assert found.changed < 0.005
    assert abs(found.ratio - 1) < 1e-4


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_the_file_as_it_is(
    name: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    found = measured(llm(name), reference(name))
    kl, changed, more = DEFAULTS[name]
    assert found.kl_mean < kl
    assert found.changed < changed
    assert abs(found.ratio - 1) < more


def test_every_type_of_keys_and_values_has_a_limit() -> None:
    assert {"f32", *KV_LIMITS} == {*KV_DTYPES}


@pytest.mark.parametrize("kv_dtype", KV_LIMITS)
def test_keys_and_values(
    kv_dtype: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    found = measured(llm("smollm2", **FLOATS, kv_dtype=kv_dtype), reference("smollm2"))
    assert found.kl_mean < KV_LIMITS[kv_dtype]


@pytest.mark.parametrize("head", HEAD_LIMITS)
def test_heads(head: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]) -> None:
    options: dict[str, Any] = {**EXACT, "head": head}
    found = measured(llm("smollm2", **options), reference("smollm2"))
    assert found.kl_mean < HEAD_LIMITS[head]


def test_units_have_the_same_bits(
    llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    ids = reference("smollm2").ids["prose"][:12]
    best = llm("smollm2").logits(ids)
    for isa in ISAS:
        assert_same_bits(llm("smollm2", isa=isa).logits(ids), best)
