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
from sterna.evaluate.conventions import CONVENTIONS, Convention, chunks, windows
from sterna.evaluate.perplexity import (
    held_out_stdlib,
    perplexity,
    read_text,
    stdlib_sources,
    text_files,
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


@given(n=st.integers(0, 300), window=st.integers(2, 60), data=st.data())
def test_any_stride_scores_a_token_once(n: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window))
    seen = [0] * n
    for begin, end, scored in windows(n, window, stride):
        assert 0 <= begin < scored < end <= n
        assert end - begin <= window
        assert begin % stride == 0
        for i in range(scored, end):
            seen[i] += 1
            assert i - begin >= min(i, max(window - stride, 1))
    first = set(range(0, n, window)) if stride == window else {0}
    assert seen == [int(i not in first) for i in range(n)]


def test_known_chunks() -> None:
    """llama.cpp's: of 512 positions the logits 256 to 510 count, which predict 257 to 511."""
    assert list(chunks(1100, 512)) == [(0, 512, 257), (512, 1024, 769)]
    assert list(chunks(1024, 512)) == [(0, 512, 257), (512, 1024, 769)]
    assert list(chunks(20, 8, 3)) == [(0, 8, 5), (3, 11, 8), (6, 14, 11), (9, 17, 14)]
    assert list(chunks(8, 8, 3)) == []


def test_sizes_of_conventions() -> None:
    def sizes(name: str, **options: int) -> tuple[int, int | None]:
        how = Convention.of(name, **options)
        return how.window, how.stride

    assert sizes("sterna", limit=2048) == (2048, 1024)
    assert sizes("sterna", limit=2048, context=101) == (101, 50)
    assert sizes("sterna", limit=2048, stride=7) == (2048, 7)
    assert sizes("transformers", limit=2048) == (2048, 512)
    assert sizes("transformers", limit=600) == (600, 300)
    assert sizes("transformers", limit=2048, context=1024, stride=1024) == (1024, 1024)
    assert sizes("llama.cpp", limit=2048) == (512, None)
    assert sizes("llama.cpp", limit=300) == (300, None)
    assert sizes("llama.cpp", limit=2048, context=512, stride=256) == (640, 256)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("llama", {}, "sterna, llama.cpp, transformers"),
        ("sterna", {"context": 1}, r"2\.\.64"),
        ("llama.cpp", {"context": 3}, r"4\.\.64"),
        ("sterna", {"context": 8, "stride": 9}, r"1\.\.8"),
        ("transformers", {"stride": 0}, r"1\.\.64"),
        ("llama.cpp", {"context": 8, "stride": 8}, r"1\.\.7"),
        ("llama.cpp", {"context": 60, "stride": 20}, "70 tokens.*64"),
    ],
)
def test_bad_sizes(name: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Convention.of(name, limit=64, **options)


def test_llama_cpp_opens_every_chunk_with_bos() -> None:
    class Model(UniformModel):
        def logprobs(self, tokens: list[int], start: int = 1) -> np.ndarray:
            windows.append(tokens)
            return super().logprobs(tokens, start)

    text, windows = "".join(map(chr, range(33, 64))), []
    result = perplexity(Model(), [text], convention="llama.cpp", context=8)
    ids = [256, *text.encode()]
    assert windows == [[256, *ids[i + 1 : i + 8]] for i in (0, 8, 16, 24)]
    assert (result.n_tokens, result.n_bytes) == (4 * 3, 0)
    assert math.isnan(result.bits_per_byte)
    windows.clear()
    perplexity(Model(bos=False), [text], convention="llama.cpp", context=8)
    assert windows[1] == ids[9:17]
    windows.clear()
    perplexity(Model(), [text], convention="llama.cpp", context=8, stride=4)
    assert windows[1] == ids[4:14]
    with pytest.raises(RequestError, match="document 1 has 15"):
        perplexity(Model(), ["x" * 14], convention="llama.cpp", context=8)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_standard_error(convention: str) -> None:
    class Model(UniformModel):
        def logprobs(self, tokens: list[int], start: int = 1) -> np.ndarray:
            values = -np.array(tokens[start:], np.float64) / 100
            scored.extend(-values)
            return values

    scored: list[float] = []
    result = perplexity(Model(), ["some text " * 20], convention=convention)
    expected = np.std(scored, ddof=1) / math.sqrt(len(scored))
    assert result.n_tokens == len(scored) > 50
    assert result.stderr == pytest.approx(expected)
    assert result.perplexity_stderr == pytest.approx(expected * math.exp(np.mean(scored)))
    assert math.isnan(perplexity(UniformModel(bos=False), ["xy"]).stderr)


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
    (tmp_path / "b" / "2.txt").write_text("marked", "utf-8-sig")
    assert read_text(tmp_path / "b" / "2.txt") == "marked"
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
