"""One SHA-256 of the logits, however the work is split.

Threads × instruction sets × prefill chunks × company in the batch × KV page types: for integer
formats every combination gives the same bits on every machine; a float model promises it per
instruction set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from helpers import ISAS

from sterna import loading
from sterna.engine import Engine

ALONE, COMPANY = "alone", "in a batch"
#: (threads, tokens of a chunk, company): every combination of larger chunks, and of steps of one
#: token, which are most of the time, each number of threads once.
WAYS = [
    *product((1, 2, 3, 4), (17, 64, None), (ALONE, COMPANY)),
    (1, 1, COMPANY), (2, 1, ALONE), (3, 1, COMPANY), (4, 1, ALONE),
]  # fmt: skip
#: Of the scalar unit, which takes thirty times as long as others: each number and chunk once. What
#: cuts work into parts is the same code for every unit.
SCALAR_WAYS = [(2, 17, COMPANY), (3, 1, ALONE), (4, 64, COMPANY)]
#: A model goes a sixth of the ways, the next model the next sixth: ten models go each way.
SIXTHS = 6
# (recipe, format, head, KV dtype): what each model's linear layers and head are stored as.
INTEGER = [
    ("bitnet-multiply", None, None, "i16"),
    ("bitnet-untied", None, "int8", "f32"),
    ("falcon-e", None, "int8", "f16"),
    ("llama3-rope", "i8", "int8", "i16"),
    ("llama-256", "q4_0", "int8", "i8"),
    ("llama-96", "q4_1", "int8", "i16"),
    ("llama-96", "mxfp4", "int8", "i16"),
    ("llama-256", "q4_k", "int8", "i16"),
    ("llama-256", "q6_k", "int8", "i16"),
    ("falcon-e", "t5", "int8", "i16"),
    ("bitnet-untied", "i2", "int8", "i16"),
    ("qwen2", "i8", "int8", "i16"),
    ("qwen3-bias", "q4_1", "int8", "i16"),
    ("qwen3-heads-of-36", "i4", "int8", "i16"),
    ("llama-96", "pot4", "pot4z", "i16"),
    ("llama-96", "pot4z:g32", "pot4", "i16"),
    ("gemma2", "i8", "int8", "i16"),
    ("gemma3", "q4_1", "int8", "i8"),
    ("gemma4", "i8", "int8", "i8"),
    ("granite", "i8", "int8", "i16"),
    ("phi3-longrope", "q4_0", "int8", "i16"),
    ("mistral-window", "i8", "int8", "i16"),
    ("olmo2", "i8", "int8", "i16"),
    ("olmo2-heads-of-36", "i4", "int8", "i8"),
    ("glm4", "i8", "int8", "i16"),
    ("hunyuan-plain", "i4", "int8", "i16"),
    ("minicpm-longrope", "q4_1", "int8", "i16"),
    ("qwen3_5", "i8", "int8", "i16"),
    ("qwen3_5-types", "i4", "int8", "i8"),
    ("qwen3_moe", "i8", "int8", "i16"),
    ("qwen3_moe-mixed", "q4_1", "int8", "i16"),
    ("mixtral", "q4_0", "int8", "i16"),
    ("qwen3_5_moe", "i8", "int8", "i16"),
    ("gpt_oss", "mxfp4", "int8", "f16"),
    ("lfm2", "i8", "int8", "i16"),
    ("granite-hybrid", "i8", "int8", "i16"),
    ("bamba", "i8", "int8", "i16"),
    ("mamba2", "i8", "int8", "i16"),
    ("jamba", "i8", "int8", "i16"),
    ("recurrent-gemma", "i8", "int8", "i16"),
    ("falcon-h1", "q4_1", "int8", "i8"),
    ("nemotron-h-latent", "i4", "int8", "f16"),
    ("minicpm3", "i8", "int8", "i16"),
    ("glm4-moe-norms", "i8", "int8", "f16"),
    ("llama4", "i8", "int8", "i16"),
    ("deepseek-v3", "i8", "int8", "i8"),
    ("deepseek-v3.2", "i8", "int8", "i16"),
    ("kimi-linear", "i8", "int8", "i16"),
    ("olmo-hybrid", "q4_1", "int8", "i16"),
    ("gemma3n", "i8", "int8", "i8"),
]
#: One of each kind of scales, with biases, factors and experts.
TWO_PLANES = [
    ("llama3-rope", "i8", "int8", "i16"),
    ("qwen3-bias", "q4_1", "int8", "i16"),
    ("llama-256", "q4_k", "q6_k", "i16"),
    ("granite", "i8", "int8", "i16"),
    ("qwen3_moe-mixed", "q4_1", "int8", "i16"),
]
FLOAT = [
    ("llama-bf16", None, None, "f16"),
    ("llama-f32", None, None, "f32"),
    ("llama-96", "pot8", "pot16", "f16"),
    ("qwen3_5-interval", None, None, "f16"),
    ("minicpm3", "bf16", None, "f16"),
    ("qwen3_moe", None, None, "f16"),
    ("qwen3_moe-mixed", None, None, "f16"),
]

Case = tuple[str, str | None, str | None, str]


def sequences() -> list[list[int]]:
    """The first is the one observed: past a page (64) and past an attention chunk (256)."""
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, n).tolist() for n in (270, 1, 33, 130)]


def ways_of(case: Case, isa: str) -> list[tuple[int, int | None, str]]:
    """The ways that a case goes with a unit; the first is one thread, alone and whole."""
    cases = [other[:3] for other in (*INTEGER, *TWO_PLANES, *FLOAT)]
    ways = SCALAR_WAYS if isa == "scalar" else WAYS
    return [(1, None, ALONE), *ways[cases.index(case[:3]) % SIXTHS :: SIXTHS]]


def digests(
    folder: Path, case: Case, isas: list[str], activations: str | None = None
) -> Iterator[tuple[str, str]]:
    """(description, SHA-256 of the first sequence's logits) of each of the case's ways."""
    _, format_, head, kv_dtype = case
    batch = sequences()
    model = loading.load(folder, format=format_, head=head)
    for isa in isas:
        engines = {
            n: Engine(model, threads=n, isa=isa, kv_dtype=kv_dtype, activations=activations)
            for n in (1, 2, 3, 4)
        }
        for threads, chunk, company in ways_of(case, isa):
            fed = batch if company == COMPANY else batch[:1]
            logits = engines[threads].logits(fed, chunk=chunk)[0]
            assert logits.shape[0] == len(batch[0])
            assert np.isfinite(logits).all()
            yield f"{isa}, {threads} threads, chunk {chunk}, {company}", digest(logits)


def digest(logits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(logits).tobytes()).hexdigest()


def check_one_digest(named_digests: Iterator[tuple[str, str]]) -> None:
    """All combinations have the digest of the first; otherwise names those that do not."""
    (name, expected), *others = named_digests
    different = [other for other, digest in others if digest != expected]
    assert not different, f"{len(different)} of {len(others)} differ from {name}: {different[:8]}"


@pytest.mark.parametrize("case", INTEGER, ids=lambda case: "-".join(map(str, case)))
def test_integer_formats(case: Case, checkpoint: Callable[[str], Path]) -> None:
    """Bits are the same for every instruction set, thread count, chunk and batch."""
    check_one_digest(digests(checkpoint(case[0]), case, ISAS))


@pytest.mark.parametrize("case", TWO_PLANES, ids=lambda case: "-".join(map(str, case)))
def test_two_planes(case: Case, checkpoint: Callable[[str], Path]) -> None:
    """Likewise where activations are in two planes."""
    check_one_digest(digests(checkpoint(case[0]), case, ISAS, "int8x2"))


@pytest.mark.parametrize("case", FLOAT, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.parametrize("isa", ISAS)
def test_float_formats(isa: str, case: Case, checkpoint: Callable[[str], Path]) -> None:
    """Bits are the same for every thread count, chunk and batch on one instruction set."""
    check_one_digest(digests(checkpoint(case[0]), case, [isa]))


def test_the_forced_isa(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """isa=None follows STERNA_ISA, and gives the bits of the scalar kernels."""
    model = loading.load(checkpoint(INTEGER[0][0]))
    found = {digest(Engine(model, isa="scalar").logits(sequences()[:1])[0])}
    for isa in ISAS:
        monkeypatch.setenv("STERNA_ISA", isa)
        engine = Engine(model, threads=2)
        assert engine.isa == isa
        found.add(digest(engine.logits(sequences()[:1])[0]))
    assert len(found) == 1


def test_the_digest_sees_a_difference(checkpoint: Callable[[str], Path]) -> None:
    """Other KV pages or another model change the digest, so an equal one means something."""
    case = INTEGER[0]
    distinct = {
        found
        for other in (case, (*case[:3], "f32"), INTEGER[1])
        for _, found in digests(checkpoint(other[0]), other, ["scalar"])
    }
    assert len(distinct) == 3


def test_repeated_runs(checkpoint: Callable[[str], Path]) -> None:
    """Pages that are used again hold nothing of their last owner."""
    engine = Engine(loading.load(checkpoint("bitnet-multiply")), threads=2)
    one, *others = sequences()
    first = engine.logits([one])[0]
    engine.logits(others, chunk=17)
    np.testing.assert_array_equal(first, engine.logits([one])[0])
