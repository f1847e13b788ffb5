"""Masks that a thread makes during the step give the same tokens as masks made before it.

`tests/support/histories.py` makes some of its masks so, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sterna import LLM, _native
from sterna.engine import Draw, Engine, Sequence, StepInput
from sterna.engine.decoding.allowed_tokens import mask_words
from sterna.engine.decoding.token_masks import TokenMasks, make_in_background
from sterna.engine.request import Request
from sterna.errors import RequestError
from sterna.sampling_params import SamplingParams

PROMPT = [i * 7 % 90 for i in range(20)]


@pytest.fixture(scope="module", params=["exact", "int8"])
def llm(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=2, head=request.param, prefix_cache=False)


def drawn(engine: Engine, masks: TokenMasks, params: SamplingParams) -> list[Any]:
    """The tokens that two rows draw with these masks."""
    sequence = Sequence()
    draw = Draw(params.native, np.array(PROMPT, np.int32), 5, masks.words, masks)
    try:
        (output,) = engine.run([StepInput(sequence, PROMPT, 2, draw=draw)])
    finally:
        engine.kv_cache.release(sequence)
    return [(one.token, one.logprob) for one in output.drawn]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("allowed", [3, 150])
def test_a_step_waits_for_its_masks(llm: LLM, allowed: int, temperature: float) -> None:
    """However long they take, and whether the head is screened, listed or read as a whole."""
    engine, vocab = llm.engine, llm.engine.model.config.vocab_size
    words = np.zeros((2, mask_words(vocab)), np.int32)
    words[:, : allowed // 32 + 1] = [[0x5A5A5A5] * (allowed // 32 + 1), [7] * (allowed // 32 + 1)]
    params = SamplingParams(temperature=temperature, seed=3, logprobs=2)

    def slowly(to: np.ndarray) -> None:
        time.sleep(0.02)
        to[:] = words

    results = []
    for beside in (False, True):
        engine.background_masks = beside
        masks = TokenMasks(2, words.shape[1], slowly)
        results.append(drawn(engine, masks, params))
    assert results[0] == results[1]
    assert all(words[i, token // 32] >> token % 32 & 1 for i, (token, _) in enumerate(results[0]))


def test_answers_are_the_same(llm: LLM) -> None:
    """Of constraints with drafts, and of one that leaves no token, which ends alone."""
    regex = llm.constraints.regex("(abc|[a-z ]{3,20}|def)*")
    options = {"max_tokens": 20, "temperature": 1.0, "seed": 5, "logprobs": 1}
    answers = []
    for beside in (False, True):
        llm.engine.background_masks = beside
        none = llm.requests.make_several(
            PROMPT,
            1,
            {
                **options,
                "constraint": llm.constraints.regex("[0-9]+"),
                "allowed_token_ids": [llm.tokenizer.encode("a")[-1]],
            },
        )
        asked = [*llm.requests.make_several(PROMPT, 3, {**options, "constraint": regex}), *none]
        list(llm.engine_loop.finished(asked))
        assert isinstance(none[0].error, RequestError)
        assert "leave no token after 0" in str(none[0].error)
        assert all(request.error is None for request in asked[:3])
        answers.append([(r.completion.tokens, r.completion.logprobs) for r in asked])
    assert answers[0] == answers[1]


def test_masks_of_a_step_that_never_came(llm: LLM) -> None:
    """Neither the request nor a thread waits for them."""
    request = _request(llm)
    request.step_input()
    llm.engine.background_masks = True
    (output,) = llm.engine.run([request.step_input()])
    request.take(output.drawn)
    assert request.n_drawn == 1
    llm.engine.kv_cache.release(request.sequence)
    again = _request(llm)
    make_in_background([again.step_input().draw.pending_masks], True)
    again.step_input()
    again.draw(np.zeros(llm.engine.model.config.vocab_size, np.float32))


def _request(llm: LLM) -> Request:
    (request,) = llm.requests.make_several(
        PROMPT, 1, {"constraint": llm.constraints.regex("[a-z ]{3,20}")}
    )
    return request


def test_a_gate_is_open_for_good() -> None:
    masks = TokenMasks(1, 2, lambda to: to.fill(3))
    gate = make_in_background([masks], True)
    assert isinstance(gate, _native.Gate)
    masks.check()
    assert masks.words.tolist() == [[3, 3]]
    gate.open()
    assert make_in_background([], True) is None
    broken = TokenMasks(1, 2, lambda to: to[5])
    assert make_in_background([broken], False) is None
    with pytest.raises(IndexError):
        broken.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX's fork")
def test_a_child_has_threads_of_its_own(llm: LLM) -> None:
    llm.engine.background_masks = True
    options: dict[str, Any] = {"max_tokens": 5, "constraint": llm.constraints.regex("[a-z ]{3,20}")}
    expected = llm.generate(PROMPT, **options).tokens
    child = os.fork()
    if child == 0:
        os._exit(0 if llm.generate(PROMPT, **options).tokens == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
