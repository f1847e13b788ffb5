"""Perplexity of the built-in model by Sterna against torch, written out, in every convention.

Two correct implementations round a few activations to neighbouring integers (see
test_against_transformers.py). This moves the nats of a token by some 0.02 up or down, in torch's
own float32 against float64 as well, and the mean over n tokens by 0.02 / sqrt(n). The tolerance is
four times that, measured in torch; 0.0001 is below it for less than 600,000 tokens.
docs/how-to/measure-quality.md has what all held-out files gave. STERNA_REFERENCE_BYTES is how much
of them is read here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from nano_reference import Reference

from sterna import LLM
from sterna.checkpoints.resolve import BUILT_IN
from sterna.evaluate.perplexity import held_out_stdlib, perplexity, read_text

BOS = 0


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(BUILT_IN["nano"])


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1, kv_dtype="f32")  # the reference rounds no keys and values


@pytest.fixture(scope="module")
def text() -> str:
    """Some 3,000 tokens, by default, that the model has not seen."""
    texts = (read_text(path, "replace") for path in held_out_stdlib())
    return "".join(texts)[: int(os.environ.get("STERNA_REFERENCE_BYTES", "9000"))]


@pytest.fixture(scope="module")
def spread(reference: Reference, llm: LLM, text: str) -> float:
    """How far the nats of a token are apart in torch's two precisions: a standard deviation."""
    window = llm.tokenizer.encode(text)[:768]
    apart = Reference(BUILT_IN["nano"], torch.float64).nats(window) - reference.nats(window)
    assert apart.abs().median() < 0.02
    return apart.std().item()


def sterna_nats(reference: Reference, ids: list[int]) -> Iterator[torch.Tensor]:
    """Windows of 1,024, half of each new."""
    yield reference.nats(ids[:1024])
    for begin in range(512, len(ids) - 512, 512):
        window = ids[begin : begin + 1024]
        yield reference.nats(window)[511:]  # its token 512 is the first new one


def transformers_nats(
    reference: Reference, ids: list[int], window: int, stride: int
) -> Iterator[torch.Tensor]:
    """The guide's loop: the tokens of a window that the last one had are masked."""
    seen = 0
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        new = end - seen
        yield reference.nats(ids[begin:end])[-new:] if begin else reference.nats(ids[:end])
        seen = end
        if end == len(ids):
            break


def llama_cpp_nats(reference: Reference, ids: list[int], n_ctx: int) -> Iterator[torch.Tensor]:
    """Chunk after chunk with BOS in the first place; logits from n_ctx / 2 to n_ctx - 2 count."""
    for i in range(len(ids) // n_ctx):
        chunk = [BOS, *ids[i * n_ctx + 1 : (i + 1) * n_ctx]]
        yield reference.nats(chunk)[n_ctx // 2 : n_ctx - 1]


def llama_cpp_strided_nats(
    reference: Reference, ids: list[int], n_ctx: int, stride: int
) -> Iterator[torch.Tensor]:
    """Windows of n_ctx + stride / 2; the logits before each of the last `stride` tokens count."""
    size = n_ctx + stride // 2
    for i in range((len(ids) - size + stride - 1) // stride):
        yield reference.nats(ids[i * stride : i * stride + size])[size - stride - 1 :]


CASES = {
    "sterna": ({}, sterna_nats, {}),
    "transformers": (
        {"convention": "transformers", "context": 300, "stride": 100},
        transformers_nats,
        {"window": 300, "stride": 100},
    ),
    "llama.cpp": ({"convention": "llama.cpp"}, llama_cpp_nats, {"n_ctx": 512}),
    "llama.cpp, strided": (
        {"convention": "llama.cpp", "context": 257, "stride": 96},
        llama_cpp_strided_nats,
        {"n_ctx": 257, "stride": 96},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(name: str, llm: LLM, reference: Reference, text: str, spread: float) -> None:
    """The mean, the number of tokens and the standard error."""
    options, nats_of, sizes = CASES[name]
    nats = torch.cat(list(nats_of(reference, llm.tokenizer.encode(text), **sizes)))
    got = perplexity(llm, [text], **options)
    assert got.n_tokens == len(nats) > 1000
    assert got.nats_per_token == pytest.approx(
        nats.mean().item(), abs=4 * spread / len(nats) ** 0.5
    )
    assert got.perplexity == math.exp(got.nats_per_token)
    stderr = (nats.std(correction=1) / math.sqrt(len(nats))).item()
    assert got.stderr == pytest.approx(stderr, rel=0.005)


def test_without_a_step(llm: LLM, reference: Reference, text: str) -> None:
    """Where no activation is rounded the other way, as in most pairs of tokens, floats are left."""
    ids = llm.tokenizer.encode(text)[:400]
    apart = [
        abs(float(llm.logprobs(pair)[0]) + reference.nats(pair).item())
        for pair in zip(ids[::2], ids[1::2], strict=True)
    ]
    assert np.median(apart) < 1e-5


def test_the_default_cache_costs_little(llm: LLM, text: str) -> None:
    """13-bit keys and values instead of floats."""
    default = LLM("nano", threads=1)
    assert default.engine.kv_dtype == "i16"
    expected = perplexity(llm, [text]).perplexity
    assert perplexity(default, [text]).perplexity == pytest.approx(expected, rel=1e-3)


def test_threads_change_no_bit(text: str) -> None:
    one, two = (perplexity(LLM("nano", threads=n), [text[:4000]]) for n in (1, 2))
    assert (one.nats, one.squares) == (two.nats, two.squares)
