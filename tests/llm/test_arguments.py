"""Arguments from numpy: arrays where a word, a flag or a list belongs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import bits, failure

import sterna.ops as ops
from sterna import LLM, Conversation
from sterna.errors import RequestError
from sterna.gguf.i2_s import i2s_layout
from sterna.llm.options import SamplingOptions
from sterna.runtime import resolve_isa, resolve_threads
from sterna.sampling_params import SamplingParams

ARRAYS = (np.array("all"), np.array(["all", "all"]), np.array(7), np.arange(3), np.zeros((2, 2)))


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1, context=128)


@pytest.mark.parametrize("value", ARRAYS, ids=repr)
def test_words(llm: LLM, folder: Path, value: Any) -> None:
    one = np.ones((1, 1), np.float32)
    for name, call in {
        "cores": lambda: resolve_threads(None, value),
        "isa": lambda: resolve_isa(value),
        "kv_dtype": lambda: LLM(folder, threads=1, kv_dtype=value),
        "format": lambda: LLM(folder, threads=1, format=value),
        "head": lambda: LLM(folder, threads=1, head=value),
        "i2s": lambda: i2s_layout(value),
        "context_overflow": lambda: Conversation(llm, context_overflow=value),
        "scale": lambda: ops.quantize(one, "i8", value),
        "method": lambda: ops.quantize(one, "pot8", method=value),
    }.items():
        failure(call, RequestError, name)


@pytest.mark.parametrize("value", [np.array(5), np.array("text"), np.array(None)], ids=repr)
def test_an_array_without_dimensions_is_no_list(llm: LLM, value: Any) -> None:
    failure(lambda: llm.generate(value), RequestError, "prompt")
    failure(lambda: llm.logits(value), RequestError, "prompt")
    failure(lambda: llm.generate("x", stop=value), RequestError, "stop")
    failure(lambda: SamplingParams(stop=value), RequestError, "stop")
    failure(lambda: llm.chat(value), RequestError, "messages")
    failure(lambda: llm.tokenizer.decode(value), RequestError, "ids")


def test_an_array_as_max_tokens_of_a_conversation(llm: LLM) -> None:
    talk = Conversation(llm)
    value: Any = np.arange(3)
    failure(lambda: talk.ask("hello", max_tokens=value), RequestError, "max_tokens")


def test_views_are_measured_before_they_are_copied() -> None:
    """2^31 rows of 512 take no memory as a broadcast view, and 4 TiB as floats."""
    weight = ops.quantize(np.ones((1, 512), np.float32), "i8")
    view = np.broadcast_to(np.float16(1), (1 << 31, 512))
    failure(lambda: ops.linear(view, weight), RequestError, "2^31 rows")
    failure(lambda: ops.quantize(view, "i8"), RequestError, "2^31")
    failure(lambda: ops.pack(view, format="f32"), RequestError, "2^31")
    scale = np.broadcast_to(np.float16(1), (1 << 31, 512))
    failure(lambda: ops.pack(np.ones((1, 32)), scale, format="i4:g32"), RequestError, "scale")


def test_what_fits_still_does(llm: LLM) -> None:
    """Arrays of numbers where numbers are lists, and numpy's own scalars."""
    ids = llm.tokenizer.encode("hello")
    expected = llm.logits(ids)
    np.testing.assert_array_equal(bits(llm.logits(np.array(ids))), bits(expected))
    assert llm.tokenizer.decode(np.array(ids)) == llm.tokenizer.decode(ids)
    assert SamplingParams(stop=np.array(["a", "b"])).stop == ("a", "b")


def test_typed_options_are_the_parameters() -> None:
    """Editors complete `generate` by a TypedDict, which has the fields of the dataclass."""
    assert list(SamplingOptions.__annotations__) == list(SamplingParams.__dataclass_fields__)
    assert SamplingParams(stop="x", temperature=0.5).replaced({"stop": None}).stop == ()


def test_parameters_and_options_are_the_same(llm: LLM) -> None:
    """Options replace fields; None in either is the model's own value."""
    params = SamplingParams(max_tokens=3, temperature=1.0, seed=5)
    tokens = llm.generate("x = ", params).tokens
    assert tokens == llm.generate("x = ", max_tokens=3, temperature=1.0, seed=5).tokens
    assert llm.generate("x = ", params, max_tokens=2).tokens == tokens[:2]
    assert llm.requests.make("x", {}, SamplingParams()).params.sampling == {
        **SamplingParams().sampling, **llm.defaults,
    }  # fmt: skip
    failure(lambda: llm.generate("x", 64), RequestError, "params", "64")
