"""Generation through `LLM`, checked against its own teacher-forced logits.

`LLM.logits` is compared with transformers elsewhere, so here it serves as the oracle for what the
sampler, the stop conditions and the streaming make of the logits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_factory import EOS, EOT, tokenizer

from sterna import LLM, _native

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=2)


def steps(llm: LLM, n: int, choose: Callable[[np.ndarray, list[int]], int]) -> list[int]:
    """n tokens chosen one at a time from the teacher-forced logits of everything before."""
    tokens = llm.tokenizer.encode(PROMPT)
    start = len(tokens)
    for _ in range(n):
        tokens.append(int(choose(llm.logits(tokens)[-1], tokens)))
    return tokens[start:]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))


def test_greedy_takes_the_argmax(llm: LLM) -> None:
    """Decoding one token at a time agrees with scoring the whole text at once."""
    expected = steps(llm, 24, lambda logits, _: logits.argmax())
    done = llm.generate(PROMPT, max_tokens=24, temperature=0, ignore_eos=True)
    assert list(done.tokens) == expected
    assert done.finish_reason == "length"
    assert done.text == llm.tokenizer.decode(expected)
    assert done.prompt_tokens == len(llm.tokenizer.encode(PROMPT))


@pytest.mark.parametrize(
    "nearly_greedy",
    [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 1e-6}],
    ids=lambda value: next(iter(value)),
)
def test_settings_that_leave_one_choice(llm: LLM, nearly_greedy: dict[str, float]) -> None:
    """Each filter at its extreme is greedy, whatever the seed."""
    greedy = llm.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True)
    for seed in (0, 1):
        settings = {"temperature": 1.0, "seed": seed} | nearly_greedy
        sampled = llm.generate(PROMPT, max_tokens=12, ignore_eos=True, **settings)
        assert sampled.tokens == greedy.tokens


def sampled(llm: LLM, seed: int | None, **settings: float) -> list[int]:
    done = llm.generate(
        PROMPT, max_tokens=16, seed=seed, ignore_eos=True, **({"temperature": 1.0} | settings)
    )
    return list(done.tokens)


def test_seeds(llm: LLM) -> None:
    """A seed gives the same text again; another seed, or none, another text."""
    assert sampled(llm, 1) == sampled(llm, 1)
    assert len({tuple(sampled(llm, seed)) for seed in range(8)}) > 4
    assert len({tuple(sampled(llm, None)) for _ in range(4)}) > 1


def test_a_seed_means_the_same_everywhere(llm: LLM, checkpoint: Callable[[str], Path]) -> None:
    """Sampling depends on neither the instruction set nor the thread count."""
    settings = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}
    expected = sampled(llm, 5, **settings)
    for isa in _native.isas():
        for threads in (1, 3):
            other = LLM(checkpoint("bitnet-multiply"), threads=threads, isa=isa)
            assert sampled(other, 5, **settings) == expected


def filtered(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> np.ndarray:
    """The distribution that the settings mean: top-k, then top-p, then min-p, after temperature."""
    p = np.exp(log_softmax(logits / temperature))
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    p /= p.sum()
    p[p < min_p * p.max()] = 0
    return np.asarray(p / p.sum())


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (2.0, 8, 1.0, 0.0), (1.5, 0, 0.7, 0.0), (1.3, 0, 1.0, 0.1)],
)
def test_frequencies(llm: LLM, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """The first token of 600 seeds follows the distribution (χ² at seven standard deviations)."""
    n = 600
    expected = n * filtered(
        llm.logits(llm.tokenizer.encode(PROMPT))[-1], temperature, top_k, top_p, min_p
    )
    settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    counts = np.zeros(len(expected))
    for seed in range(n):
        done = llm.generate(PROMPT, max_tokens=1, seed=seed, ignore_eos=True, **settings)
        counts[done.tokens[0]] += 1
    assert not counts[expected == 0].any(), "a token that the settings rule out"
    common = expected >= 5  # the χ² statistic needs a few expected events in every cell
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = max(len(wanted) - 1, 1)
    assert ((observed - wanted) ** 2 / wanted).sum() < freedom + 7 * (2 * freedom) ** 0.5


def test_repetition_penalty(llm: LLM) -> None:
    """CTRL's rule: seen tokens' logits are divided when positive and multiplied when negative."""

    def choose(logits: np.ndarray, tokens: list[int]) -> int:
        seen = np.unique(tokens)
        penalised = logits.copy()
        penalised[seen] = np.where(logits[seen] > 0, logits[seen] / 1.5, logits[seen] * 1.5)
        return int(penalised.argmax())

    done = llm.generate(
        PROMPT, max_tokens=24, temperature=0, repetition_penalty=1.5, ignore_eos=True
    )
    assert list(done.tokens) == steps(llm, 24, choose)


def test_logprobs(llm: LLM) -> None:
    """The log-probability of every token, and of the likeliest others, from unfiltered logits."""
    done = llm.generate(PROMPT, max_tokens=8, temperature=0, logprobs=3, ignore_eos=True)
    tokens = [*llm.tokenizer.encode(PROMPT), *done.tokens]
    table = log_softmax(llm.logits(tokens))[done.prompt_tokens - 1 : -1]
    assert len(done.logprobs) == len(done.tokens)
    for entry, token, row in zip(done.logprobs, done.tokens, table, strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(row[token], abs=1e-5)
        assert [other for other, _ in entry.top] == np.argsort(-row, kind="stable")[:3].tolist()
        assert [value for _, value in entry.top] == pytest.approx(np.sort(row)[:-4:-1], abs=1e-5)


def test_scoring(llm: LLM) -> None:
    """`logprobs(tokens)` is what perplexity sums."""
    tokens = llm.tokenizer.encode(PROMPT + " return the lines of the file")
    table = log_softmax(llm.logits(tokens))
    expected = [table[i - 1, tokens[i]] for i in range(1, len(tokens))]
    np.testing.assert_allclose(llm.logprobs(tokens, start=1), expected, atol=1e-5)


def test_stream_is_generate(llm: LLM) -> None:
    """The pieces joined are the text, and the stream has the same Completion."""
    settings = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    whole = llm.generate(PROMPT, **settings)
    stream = llm.stream(PROMPT, **settings)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == whole.text
    assert "".join(piece.content for piece in pieces) == whole.content
    assert stream.completion.text == whole.text
    assert stream.completion.tokens == whole.tokens


def test_unicode_in_pieces(llm: LLM) -> None:
    """No piece splits a character, though a random model emits many stray bytes."""
    for seed in range(6):
        settings = {"max_tokens": 60, "temperature": 3.0, "seed": seed, "ignore_eos": True}
        stream = llm.stream(PROMPT, **settings)
        pieces, done = [piece.text for piece in stream], stream.completion
        assert "".join(pieces) == done.text
        assert llm.tokenizer.decode(done.tokens) in (done.text, done.text + "\ufffd")
        "".join(pieces).encode("utf-8")  # no lone surrogate


def test_an_answer_cut_within_a_character_ends_before_it(llm: LLM) -> None:
    """Streamed or whole, and its tokens count; bytes that are no character are shown."""
    first, second = (llm.tokenizer.token_id(byte) for byte in "Ã©")  # the bytes of é
    options: dict[str, Any] = {"ignore_eos": True, "allowed_token_ids": [first]}
    done = llm.generate(PROMPT, max_tokens=1, **options)
    assert (done.text, done.tokens, done.finish_reason) == ("", [first], "length")
    assert [piece.text for piece in llm.stream(PROMPT, max_tokens=1, **options)] == [""]
    assert llm.generate(PROMPT, max_tokens=2, **options).text == "\ufffd"
    whole = llm.generate([*llm.tokenizer.encode(PROMPT), first], max_tokens=1, ignore_eos=True,
                         allowed_token_ids=[second])  # fmt: skip
    assert whole.text == "é"


def test_prompt_as_tokens(llm: LLM) -> None:
    """A list of ids is taken as it is."""
    ids = llm.tokenizer.encode(PROMPT)
    from_ids = llm.generate(ids, max_tokens=8, temperature=0)
    assert from_ids.tokens == llm.generate(PROMPT, max_tokens=8, temperature=0).tokens


@pytest.mark.parametrize("length", [1, 3])
def test_stop_strings(llm: LLM, length: int) -> None:
    """The text ends before the first stop string, which may span tokens and is not streamed."""
    settings = {"max_tokens": 40, "temperature": 1.0, "seed": 11, "ignore_eos": True}
    text = llm.generate(PROMPT, **settings).text
    at = next(i for i in range(8, len(text)) if "\ufffd" not in text[i : i + length])
    stop = text[at : at + length]
    expected = text[: text.index(stop)]
    done = llm.generate(PROMPT, stop=[stop, "never to be seen"], **settings)
    assert (done.text, done.finish_reason) == (expected, "stop")
    pieces = [piece.text for piece in llm.stream(PROMPT, stop=stop, **settings)]
    assert "".join(pieces) == expected
    missed = llm.generate(PROMPT, stop="never to be seen", **settings)
    assert (missed.text, missed.finish_reason) == (text, "length")


def with_eos(folder: Path, source: Path, eos: int | list[int]) -> Path:
    """A copy of a checkpoint whose generation_config names other end tokens."""
    shutil.copytree(source, folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": eos}))
    return folder


def test_end_tokens(llm: LLM, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Any id of an EOS list ends the text, unless told otherwise, and is no part of it."""
    greedy = list(llm.generate(PROMPT, max_tokens=20, temperature=0, ignore_eos=True).tokens)
    end = greedy[5]
    first = greedy.index(end)
    eos = [tokenizer().token_to_id(EOS), end]
    other = LLM(with_eos(tmp_path / "model", checkpoint("bitnet-multiply"), eos), threads=2)
    done = other.generate(PROMPT, max_tokens=20, temperature=0)
    assert done.finish_reason == "stop"
    assert done.text == llm.tokenizer.decode(greedy[:first])
    assert (
        list(other.generate(PROMPT, max_tokens=20, temperature=0, ignore_eos=True).tokens) == greedy
    )


def test_chat(llm: LLM) -> None:
    """chat() is generate() of the rendered template, with one BOS."""
    messages = [{"role": "user", "content": " Hello "}]
    text = "<|begin_of_text|>User: Hello<|eot_id|>Assistant: "
    ids = llm.tokenizer.encode(text, add_special=False)
    done = llm.chat(messages, max_tokens=8, temperature=0, ignore_eos=True)
    assert done.prompt_tokens == len(ids)
    assert done.tokens == llm.generate(ids, max_tokens=8, temperature=0, ignore_eos=True).tokens
    pieces = llm.chat_stream(messages, max_tokens=8, temperature=0, ignore_eos=True)
    assert "".join(piece.text for piece in pieces) == done.text
    assert tokenizer().token_to_id(EOT) in ids


def test_streams_side_by_side(llm: LLM) -> None:
    """Interleaved requests give what each gives alone."""
    settings = [
        {"max_tokens": 20, "temperature": 1.0, "seed": s, "ignore_eos": True} for s in (1, 2)
    ]
    alone = [llm.generate(PROMPT, **one).text for one in settings]
    streams = [llm.stream(PROMPT, **one) for one in settings]
    texts = ["", ""]
    open_streams = {0, 1}
    while open_streams:
        for i in sorted(open_streams):
            piece = next(streams[i], None)
            if piece is None:
                open_streams.remove(i)
            else:
                texts[i] += piece.text
    assert texts == alone


def test_abandoned_streams_give_their_pages_back(checkpoint: Callable[[str], Path]) -> None:
    """Many closed streams do not use up the context's pages, and change no later text."""
    small = LLM(checkpoint("bitnet-multiply"), threads=1, context=128)
    expected = small.generate(PROMPT, max_tokens=60, temperature=0, ignore_eos=True).text
    for _ in range(50):
        stream = small.stream(PROMPT, max_tokens=60, temperature=0, ignore_eos=True)
        next(stream)
        stream.close()
    assert small.generate(PROMPT, max_tokens=60, temperature=0, ignore_eos=True).text == expected


def test_the_context_ends_the_text(checkpoint: Callable[[str], Path]) -> None:
    """Generation stops at the context's end with finish_reason "length", not with an error."""
    small = LLM(checkpoint("bitnet-multiply"), threads=1, context=64)
    done = small.generate(PROMPT, max_tokens=1000, temperature=0, ignore_eos=True)
    assert done.finish_reason == "length"
    assert done.prompt_tokens + len(done.tokens) == 64


def test_stats(llm: LLM) -> None:
    """The numbers that the CLI reports exist and add up."""
    done = llm.generate(PROMPT, max_tokens=5, temperature=0, ignore_eos=True)
    assert done.stats.n_prompt == done.prompt_tokens == len(llm.tokenizer.encode(PROMPT))
    assert done.stats.n_generated == len(done.tokens) == 5
    assert 0 < done.stats.ttft_s <= done.stats.total_s
    assert done.stats.decode_s > 0
    assert {
        "model",
        "isa",
        "threads",
        "format",
        "head",
        "bytes_per_token",
        "n_params",
        "n_active_params",
    } <= llm.info().keys()


@pytest.mark.parametrize("name", ["llama-f32", "llama3-rope", "llama-sharded", "falcon-e"])
def test_other_architectures(name: str, checkpoint: Callable[[str], Path]) -> None:
    """Greedy decoding equals scoring for every family."""
    other = LLM(checkpoint(name), threads=2)
    done = other.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True)
    assert list(done.tokens) == steps(other, 12, lambda logits, _: logits.argmax())


def test_threads_sharing_one_llm_get_their_own_answers(checkpoint: Callable[[str], Path]) -> None:
    """`generate` returns the completion that its own run filled, whoever started last."""
    llm = LLM(checkpoint("bitnet-multiply"), threads=2)
    prompts = [[i + 1, i + 2, i + 3] for i in range(8)]
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = [llm.generate(p, **options).tokens for p in prompts]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda p: llm.generate(p, **options).tokens, prompts * 4))
    assert together == alone * 4
