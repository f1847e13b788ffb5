"""Truncation of pairs: that of the library tokenizers; the fields of vLLM, Cohere, TEI, Voyage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st
from server_process import ServerProcess, serving
from test_encoders import word_pieces
from test_encoders import write as write_encoder

from sterna import LLM
from sterna.errors import ContextError, RequestError
from sterna.llm.pair_truncation import PairLimits, truncated
from sterna.tokenizer import PairIds

QUERY = "who sleeps ?"
TEXTS = ["a cat sleeps", "the kitten naps near the door of a house " * 3, "bread"]


@settings(max_examples=200)
@given(st.integers(0, 12), st.integers(0, 12), st.integers(3, 30), st.booleans())
def test_pairs_are_cut_as_by_tokenizers(first: int, second: int, most: int, types: bool) -> None:
    """The longer part first, special tokens stay; a limit of the text alone is "only second"."""
    library = word_pieces(types)
    library.no_truncation()
    texts = (" ".join(["cat"] * first), " ".join(["door"] * second))
    whole = library.encode(*texts)
    pair = PairIds(list(whole.ids), list(whole.type_ids), list(whole.sequence_ids))
    library.enable_truncation(most, strategy="longest_first")
    expected = library.encode(*texts)
    got = truncated(pair, PairLimits(pair=most))
    assert (got.ids, got.kinds) == (expected.ids, expected.type_ids)
    shorter = truncated(pair, PairLimits(text=4))
    assert shorter.ids == library_ids(types, texts[0], " ".join(["door"] * min(second, 4)))
    assert truncated(pair, PairLimits()) == pair


def library_ids(types: bool, *texts: str) -> list[int]:
    library: tokenizers.Tokenizer = word_pieces(types)
    library.no_truncation()
    ids: list[int] = library.encode(*texts).ids
    return ids


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder that takes 24 tokens."""
    folder = tmp_path_factory.mktemp("scorer")
    write_encoder(folder, "bert-score")
    return folder


def test_scores_of_what_is_left(scorer: Path) -> None:
    """A cut pair has the bits of the shorter text; one that is too long is an error without it."""
    llm = LLM(scorer, cache=False, threads=1, context=24)
    pairs = [(QUERY, text) for text in TEXTS]
    failure(lambda: llm.score(pairs), ContextError, "24 tokens", "truncate")
    short = [(QUERY, "the kitten"), (QUERY, "bread")]
    assert_same_bits(llm.score(pairs[1:], max_tokens_per_doc=2), llm.score(short))
    got = llm.score(pairs, truncate=True)
    assert_same_bits(got[[0, 2]], llm.score([pairs[0], pairs[2]]))
    _, cut = llm.cross_encoder.score(pairs, None, PairLimits.of(True, None, 24))
    assert cut[0] == cut[2] == 0 < cut[1]
    for wrong in (0, -1, "end", 1.5, None):
        failure(lambda wrong=wrong: llm.score(pairs, truncate=wrong), RequestError, "truncate")
    for wrong in (0, True, "x"):
        failure(
            lambda wrong=wrong: llm.score(pairs, max_tokens_per_doc=wrong), RequestError,
            "max_tokens_per_doc",
        )  # fmt: skip


def rerank(server: ServerProcess, **fields: object) -> Any:
    return server.post("/v1/rerank", query=QUERY, documents=TEXTS, **fields)


def test_fields_of_clients(scorer: Path, tmp_path: Path) -> None:
    """Of vLLM, Cohere, TEI and Jina, and Voyage; a header counts the texts that were cut."""
    llm = LLM(scorer, cache=False, threads=1, context=24)
    pairs = [(QUERY, text) for text in TEXTS]
    options = ("--context", "24", "--threads", "1")
    with serving(tmp_path, str(scorer), *options) as server:
        assert rerank(server).json()["error"]["code"] == "context_length_exceeded"
        for fields, asked in (
            ({"truncate_prompt_tokens": -1}, {"truncate": True}),
            ({"truncate_prompt_tokens": 12}, {"truncate": 12}),
            ({"truncate": True}, {"truncate": True}),
            ({"truncation": True}, {"truncate": True}),
            ({"max_tokens_per_doc": 5}, {"max_tokens_per_doc": 5}),
            ({"max_tokens_per_doc": 4, "truncate": True, "user": "a"},
             {"max_tokens_per_doc": 4, "truncate": True}),
        ):  # fmt: skip
            answer = rerank(server, **fields)
            found = {r["index"]: r["relevance_score"] for r in answer.json()["results"]}
            assert found == dict(enumerate(llm.score(pairs, **asked).tolist())), fields
            assert "1 of 3 texts were truncated" in answer.headers["x-sterna-warning"]
            scored = server.post("/v1/score", text_1=QUERY, text_2=TEXTS, **fields).json()
            assert [row["score"] for row in scored["data"]] == [found[i] for i in range(3)]
        for fields in (
            {"truncate_prompt_tokens": 0}, {"truncate_prompt_tokens": -2},
            {"max_tokens_per_doc": 0}, {"truncate": "END"},
        ):  # fmt: skip
            answer = rerank(server, **fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (
                400,
                next(iter(fields)),
            )


def test_language_models_and_embedders(tmp_path: Path) -> None:
    """A language model's prompt loses the end of the text; an embedder cuts each text."""
    llm = LLM("nano", threads=1)
    long, query = "def f(x):\n    return x\n" * 40, "f(1)"
    with serving(tmp_path, "nano", "--context", "64", "--threads", "1") as server:
        body = {"query": query, "documents": [long, "a"]}
        assert server.post("/v1/rerank", **body).status_code == 400
        answer = server.post("/v1/rerank", **body, truncate=True)
        scores = {r["index"]: r["relevance_score"] for r in answer.json()["results"]}
        after = llm.tokenizer.encode(query, add_special=False)
        room = 64 - len(after)
        kept = next(
            n for n in range(64, 0, -1)
            if len(llm.tokenizer.encode(llm.tokenizer.first_tokens(long, n) + "\n\n")) <= room
        )  # fmt: skip
        before = llm.tokenizer.encode(llm.tokenizer.first_tokens(long, kept) + "\n\n")
        expected = llm.logprobs([*before, *after], len(before)).astype(float).mean()
        assert scores[0] == pytest.approx(float(expected))
        few = server.post("/v1/rerank", **body, max_tokens_per_doc=5).json()["results"]
        text = llm.tokenizer.first_tokens(long, 5)
        assert long.startswith(text)
        before = llm.tokenizer.encode(text + "\n\n")
        expected = llm.logprobs([*before, *after], len(before)).astype(float).mean()
        assert {r["index"]: r["relevance_score"] for r in few}[0] == pytest.approx(float(expected))
    folder = tmp_path / "embedder"
    write_encoder(folder, "bert", pooling="mean_tokens")
    (tmp_path / "two").mkdir()
    with serving(tmp_path / "two", str(folder), "--context", "24", "--threads", "1") as server:
        assert rerank(server).status_code == 400
        rows = rerank(server, truncate_prompt_tokens=9, max_tokens_per_doc=6).json()["results"]
        own = LLM(folder, cache=False, threads=1, context=24)
        vectors = own.embed(TEXTS, truncate=6) @ own.embed(QUERY, truncate=9)[0]
        found = np.array([row["relevance_score"] for row in sorted(rows, key=lambda r: r["index"])])
        np.testing.assert_allclose(found, vectors, rtol=1e-6)
