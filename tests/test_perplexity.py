"""Perplexity: which tokens are scored with how much context, the figures, and the texts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sterna.errors import NonFiniteError, RequestError
from sterna.evaluate.perplexity import (
    held_out_stdlib,
    perplexity,
    read_text,
    stdlib_sources,
    text_files,
    windows,
)


class ByteTokenizer:
    """A token per byte, and BOS = 256."""

    def __init__(self, bos: bool = True) -> None:
        self.bos = [256] if bos else []

    def encode(self, text: str) -> list[int]:
        return [*self.bos, *text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(id for id in ids if id < 256).decode(errors="replace")


class UniformModel:
    """Gives every token the probability 1/256 and remembers what it was asked."""

    def __init__(self, context: int = 16, bos: bool = True) -> None:
        self.context = context
        self.tokenizer = ByteTokenizer(bos)
        self.asked: list[tuple[int, int]] = []
        self.value = -math.log(256)

    def logprobs(self, tokens: list[int], start: int = 1) -> np.ndarray:
        assert 1 <= start < len(tokens) <= self.context
        self.asked.append((len(tokens), start))
        return np.full(len(tokens) - start, self.value, np.float64)


@given(n=st.integers(0, 500), context=st.integers(2, 80))
def test_every_token_but_the_first_is_scored_once(n: int, context: int) -> None:
    seen = [0] * n
    for begin, end, scored in windows(n, context):
        assert 0 <= begin < scored < end <= n
        assert end - begin <= context
        assert begin % (context // 2) == 0
        for i in range(scored, end):
            seen[i] += 1
            assert i - begin >= min(i, context // 2)
    assert seen == [min(i, 1) for i in range(n)]


def test_known_windows() -> None:
    assert list(windows(10, 4)) == [(0, 4, 1), (2, 6, 4), (4, 8, 6), (6, 10, 8)]
    assert list(windows(4, 4)) == [(0, 4, 1)]
    assert list(windows(5, 4)) == [(0, 4, 1), (2, 5, 4)]
    assert list(windows(1, 4)) == list(windows(0, 4)) == []


def test_a_uniform_model_needs_eight_bits_a_byte() -> None:
    model, seen = UniformModel(), []
    texts = ["hello", "", "naïve " * 20, "x"]
    result = perplexity(model, texts, progress=seen.append)
    n_bytes = sum(len(text.encode()) for text in texts)
    assert (result.n_documents, result.n_tokens, result.n_bytes) == (4, n_bytes, n_bytes)
    assert result.nats_per_token == pytest.approx(math.log(256))
    assert result.perplexity == pytest.approx(256)
    assert result.bits_per_byte == pytest.approx(8)
    assert seen == sorted(seen)
    assert seen[-1] == n_bytes
    assert max(size for size, _ in model.asked) == 16


def test_without_bos_the_first_token_and_its_bytes_do_not_count() -> None:
    result = perplexity(UniformModel(bos=False), ["hello", "x", ""])
    assert (result.n_tokens, result.n_bytes) == (4, 4)
    assert result.bits_per_byte == pytest.approx(8)


def test_the_context_can_be_shortened() -> None:
    model = UniformModel(context=64)
    perplexity(model, ["x" * 100], context=10)
    assert {size for size, _ in model.asked} <= {10, 6, 7, 8, 9}
    for context in (1, 65, -3):
        with pytest.raises(RequestError, match=r"2\.\.64"):
            perplexity(model, ["x"], context=context)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_non_finite_probabilities_are_an_error(value: float) -> None:
    model = UniformModel()
    model.value = value
    with pytest.raises(NonFiniteError, match="document 1"):
        perplexity(model, ["hello"])


def test_an_impossible_text_and_an_empty_one_have_figures() -> None:
    model = UniformModel()
    model.value = -1e4
    assert perplexity(model, ["hello"]).perplexity == math.inf
    nothing = perplexity(model, [])
    assert math.isnan(nothing.perplexity)
    assert math.isnan(nothing.bits_per_byte)


def test_text_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"two\r\n")
    for name, data in {
        "a.py": b"one",
        ".git/config": b"hidden",
        ".hidden": b"hidden",
        "binary": b"\xff\xfe",
        "zeros": b"a\0b",
        "empty": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
    assert text_files(tmp_path) == [tmp_path / "a.py", tmp_path / "b" / "2.txt"]
    assert read_text(tmp_path / "b" / "2.txt") == "two\r\n"
    with pytest.raises(RequestError, match="byte 0"):
        read_text(tmp_path / "binary")
    with pytest.raises(RequestError, match="No such file"):
        read_text(tmp_path / "missing")
    with pytest.raises(RequestError, match="must be a folder"):
        text_files(tmp_path / "a.py")
    (tmp_path / "b" / "2.txt").unlink()
    with pytest.raises(RequestError, match="has none"):
        text_files(tmp_path / "b")


def test_held_out_files() -> None:
    """A fifth of the sources by the hash of their path, none of them a test."""
    held = held_out_stdlib()
    names = {path: name for name, path in stdlib_sources()}
    for path, name in names.items():
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
        assert (path in held) == (digest % 5 == 0), name
        assert not {"test", "tests", "site-packages"} & set(name.split("/")[:-1])
    assert 0.1 < len(held) / len(names) < 0.3
