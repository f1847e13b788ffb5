"""Answers of real weights: greedy ones against transformers; chats, schemas, vectors; and the same
bits with drafts, from a prefix cache on disk, and in batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs
import numpy as np
import pytest
import texts
from helpers import assert_same_bits
from references import Reference

from sterna import LLM

EXACT = {"format": "f32", "head": "f32", "deterministic": True, "kv_dtype": "f32"}
# A float32 sum in another order moves a logit by less than this.
TIE = 1e-3
# By how much transformers' logit may lead at the token where the file's own answer parts. Rounding
# moved logits by at most half of it.
MARGINS = {"smollm2": 0.6, "gemma3": 1.5}
CITY = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "colours": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}


def parting(ours: list[int], theirs: list[int]) -> int:
    """The first place where two answers differ; their length where none does."""
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_greedy_answers_part_only_where_two_tokens_are_near(
    name: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    for greedy in reference(name).greedy:
        n = len(greedy.tokens)
        ours = llm(name).generate(
            greedy.prompt, max_tokens=n, temperature=0, repetition_penalty=1, ignore_eos=True
        )
        at = parting(ours.tokens, greedy.tokens)
        print(at, greedy.margins[at:][:1], ours.text)
        assert at == n or greedy.margins[at] < MARGINS[name]


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_in_floats_every_greedy_choice_is_the_same(
    name: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    """Behind each part of an answer, read at once: token by token, floats take two minutes."""
    for greedy in reference(name).greedy:
        rows = llm(name, **EXACT).logits([*greedy.prompt, *greedy.tokens])
        chosen = rows[len(greedy.prompt) - 1 : -1].argmax(1)
        apart = chosen != greedy.tokens
        assert not apart.any() or np.array(greedy.margins)[apart].max() < TIE


def test_a_chat(llm: Callable[..., LLM]) -> None:
    """In float32 it knows; the answer ends by itself, and no mark of a turn is in its text."""
    done = llm("smollm2", **EXACT).chat(CITY, max_tokens=40, temperature=0)
    assert "Paris" in done.text
    assert done.finish_reason == "stop"
    assert "<|" not in done.text


def test_a_schema(llm: Callable[..., LLM]) -> None:
    model = llm("smollm2")
    form = model.constraints.json_schema(SCHEMA)
    done = model.chat(
        [{"role": "user", "content": "Describe a person as JSON."}],
        constraint=form, max_tokens=120, temperature=0,
    )  # fmt: skip
    assert done.finish_reason == "stop"
    jsonschema_rs.validate(SCHEMA, json.loads(done.text))


def test_a_call_of_a_tool(llm: Callable[..., LLM]) -> None:
    """A required call: free text is not possible, its arguments are those of the schema."""
    model = llm("smollm2")
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    call = {
        "type": "object",
        "properties": {"name": {"const": "weather"}, "arguments": schema},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    done = model.chat(
        [{"role": "user", "content": "How is the weather in Rome?"}],
        constraint=model.constraints.json_schema(call), max_tokens=60, temperature=0,
    )  # fmt: skip
    jsonschema_rs.validate(call, json.loads(done.text))


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors(
    pooling: str, llm: Callable[..., LLM], reference: Callable[[str], Reference]
) -> None:
    """Cosines with transformers' hidden states, pooled here: of floats, and of the file."""
    asked = reference("smollm2")
    written = [llm("smollm2").tokenizer.decode(ids) for ids in asked.ids.values()]
    rows = [h.mean(0) if pooling == "mean" else h[-1] for h in asked.hidden.values()]
    expected = np.stack([row / np.linalg.norm(row) for row in rows])
    for options, least in ((EXACT, 1 - 1e-6), ({}, 0.99)):
        model = llm("smollm2", **options)
        kept = [
            model.tokenizer.encode(text) == ids
            for text, ids in zip(written, asked.ids.values(), strict=True)
        ]
        assert sum(kept) >= 3  # a text that is cut within a character is another
        cosines = (model.embed(written, pooling=pooling) * expected).sum(1)
        print(cosines)
        assert cosines[kept].min() > least


def test_drafts_change_no_token(llm: Callable[..., LLM]) -> None:
    prompt = texts.CODE + "\n\n" + texts.CODE[:120]
    options = {"max_tokens": 24, "temperature": 0, "logprobs": 1}
    plain = llm("smollm2", speculate="off").generate(prompt, **options)
    drafted = llm("smollm2").generate(prompt, **options)
    assert drafted.tokens == plain.tokens
    assert [one.logprob for one in drafted.logprobs] == [one.logprob for one in plain.logprobs]
    assert drafted.stats.n_accepted > 0


def test_batches_are_answered_as_alone(llm: Callable[..., LLM]) -> None:
    model = llm("smollm2")
    options = {"max_tokens": 12, "temperature": 0.8, "seed": 7, "logprobs": 1}
    alone = [model.generate(prompt, **options) for prompt in texts.PROMPTS]
    together = model.generate(list(texts.PROMPTS), **options)
    for one, other in zip(alone, together, strict=True):
        assert (one.tokens, one.text) == (other.tokens, other.text)
        assert [t.logprob for t in one.logprobs] == [t.logprob for t in other.logprobs]


def test_prefixes_from_disk(smollm2: Path, tmp_path: Path) -> None:
    """A start finds the pages of an earlier one, and they give the same bits."""
    prompt, options = texts.PROSE, {"max_tokens": 8, "temperature": 0, "logprobs": 1}
    answers = []
    for cached in (None, tmp_path, tmp_path):
        model = LLM(smollm2, context=512, cache_disk=cached)
        answers.append(model.generate(prompt, **options))
        del model
    first, _, last = answers
    assert last.tokens == first.tokens
    assert [t.logprob for t in last.logprobs] == [t.logprob for t in first.logprobs]
    assert last.stats.n_cached >= 64


def test_a_prompt_in_pieces_has_the_bits_of_the_whole(llm: Callable[..., LLM]) -> None:
    model = llm("smollm2")
    ids = model.tokenizer.encode(texts.LANGUAGES)[:48]
    whole = model.logits(ids)
    parts = [rows for rows, _ in model.logit_chunks(ids, 1, 7)]
    assert_same_bits(np.concatenate(parts), whole[:-1])
