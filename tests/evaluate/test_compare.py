"""`sterna compare`: the figures against numpy, and which formats are lossless on real text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import command, failed, failure

from sterna import LLM, formats, ops
from sterna.errors import RequestError
from sterna.evaluate.compare import Difference, compare, divergence
from sterna.evaluate.perplexity import perplexity
from sterna.formats.codebook import TERNARY as TERNARY_LEVELS
from sterna.weights.rounding import repacked

TEXT = Path(__file__).read_text(encoding="utf-8")[:1500]
TERNARY = [n for n in formats.names() if (book := formats.get(n).codebook) and book.ends == (-1, 1)]
LOSSLESS = [
    n
    for n in TERNARY
    if formats.get(n).codebook == TERNARY_LEVELS and not formats.get(n).scales.group
]


@pytest.fixture(scope="module")
def nano() -> LLM:
    return LLM("nano", threads=1)


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.py").write_text(TEXT)
    return str(tmp_path / "text.py")


def test_figures_of_known_logits() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 40)).astype(np.float32)
    b = (a + 0.3 * rng.standard_normal((5, 40))).astype(np.float32)
    b[0] = a[0]
    both = Difference()
    both.add(a[:2], b[:2])
    both.add(a[2:], b[2:])
    p, q = (np.exp(np.float64(x)) / np.exp(np.float64(x)).sum(1, keepdims=True) for x in (a, b))
    kl = (p * np.log(p / q)).sum(1)
    np.testing.assert_allclose(divergence(a, b), kl, atol=1e-12)
    figures = both.kl_figures()
    assert figures["mean"] == pytest.approx(kl.mean())
    assert figures["max"] == pytest.approx(kl.max())
    assert figures["median"] == pytest.approx(np.median(kl))
    assert (both.n_positions, both.n_logits, both.identical) == (5, 200, False)
    assert both.n_different == (a != b).sum()
    assert both.max_abs == np.abs(a - b).max()
    assert both.mean_abs == pytest.approx(np.abs(a - b).mean(dtype=np.float64))
    assert both.top1_agreement == (a.argmax(1) == b.argmax(1)).mean()


def test_one_bit_is_not_identical() -> None:
    """Not even the sign of a zero."""
    a = np.array([[0.0, 1.0]], np.float32)
    same, other = Difference(), Difference()
    same.add(a, a.copy())
    other.add(a, np.array([[-0.0, 1.0]], np.float32))
    assert (same.identical, other.identical, Difference().identical) == (True, False, False)
    assert (other.n_different, other.max_abs, other.kl_figures()["max"]) == (1, 0.0, 0.0)
    assert math.isnan(Difference().kl_figures()["mean"])


def test_huge_logits_have_a_divergence() -> None:
    a, b = (np.array([row], np.float32) for row in ([3e38, 0.0], [0.0, 80.0]))
    assert divergence(a, b)[0] == pytest.approx(80)


@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_formats_of_nano(format: str, nano: LLM) -> None:
    """i2 and t5: every bit of every logit."""
    other = LLM("nano", format=format, threads=2)
    assert other.info()["format"] == format
    result = compare(nano, other, [TEXT])
    assert result.identical
    assert (result.max_abs, result.mean_abs, result.top1_agreement) == (0, 0, 1)
    assert result.kl_figures()["max"] == 0
    assert result.a.nats == result.b.nats == perplexity(nano, [TEXT]).nats


def test_formats_of_a_float_model(checkpoint: Callable[[str], Path]) -> None:
    """More bits, less divergence; the checkpoint's own is identical on any number of threads."""
    folder = checkpoint("llama-256")
    a = LLM(folder, threads=1, deterministic=True)
    assert compare(a, LLM(folder, threads=2, deterministic=True), [TEXT[:300]]).identical
    names = ("q8_0", "q6_k", "q4_k", "q2_k")
    results = [compare(a, LLM(folder, format=n, threads=1), [TEXT[:300]]) for n in names]
    means = [r.kl_figures()["mean"] for r in results]
    assert means == sorted(means)
    assert means[0] > 0
    assert not any(r.identical for r in results)


def test_windows_are_those_of_perplexity(nano: LLM) -> None:
    """In every convention, whatever the step."""
    other = LLM("nano", head="int8", threads=1)
    for options in (
        {"context": 48},
        {"context": 48, "convention": "transformers", "stride": 40},
        {"context": 48, "convention": "llama.cpp"},
    ):
        got = compare(nano, other, [TEXT, TEXT[:700]], **options)
        for side, llm in ((got.a, nano), (got.b, other)):
            alone = perplexity(llm, [TEXT, TEXT[:700]], **options)
            assert side.n_tokens == alone.n_tokens == got.n_positions
            assert side.nats == pytest.approx(alone.nats, rel=1e-12)


def test_what_cannot_be_compared(nano: LLM, checkpoint: Callable[[str], Path]) -> None:
    other = LLM(checkpoint("bitnet-multiply"), threads=1)
    failure(lambda: compare(nano, other, ["x"]), RequestError, "vocabulary", "4096", "320")


def test_a_packed_model_keeps_its_levels() -> None:
    """A format without its levels is refused, and one that would round weights twice."""
    for format in ("i1", "i2p", "q4_k", "mxfp4"):
        failure(lambda f=format: LLM("nano", format=f), RequestError, "packed as i2", format)
    failure(lambda: LLM("nano", format="nonsense"), RequestError, "format", "nonsense")
    weight = ops.quantize(np.random.default_rng(1).standard_normal((70, 512)), "q4_0")
    same = repacked(weight, "q8_0", 1, "w")
    assert (ops.dequantize(same) == ops.dequantize(weight)).all()
    three = ops.quantize(ops.dequantize(weight), "q3_k")
    for packed, format in ((same, "q4_0"), (three, "q6_k"), (weight, "q4_k"), (weight, "f32")):
        failure(lambda p=packed, f=format: repacked(p, f, 1, "w"), RequestError, "w:", format)
    wide = LLM("nano", format="i4", threads=1)  # which has -1, 0 and 1 among its levels
    assert wide.info()["format"] == "i4"


def test_a_ternary_model_in_other_formats(nano: LLM) -> None:
    """Scales are rounded at most, so answers differ by the rounding of activations alone."""
    floats = LLM("nano", format="f32", threads=1, deterministic=True)
    assert floats.info()["activations"] is None
    for format in ("f16", "q8_0", "q4_0", "tq1_0", "tq2_0"):
        other = LLM("nano", format=format, threads=1, deterministic=True)
        assert other.info()["format"] == format
        of_floats, of_own = (compare(one, other, [TEXT]) for one in (floats, nano))
        assert 0 < of_floats.kl_figures()["mean"] < 1e-2
        assert of_floats.top1_agreement > 0.9
        assert not of_own.identical


def test_the_command(text: str) -> None:
    same = ("compare", "nano", "--format-b", "t5", "--file", text)
    (row,) = json.loads(command(*same, "--json").stdout)
    assert (row["format_a"], row["format_b"], row["identical"]) == ("i2", "t5", True)
    assert (row["different_logits"], row["kl_max"], row["convention"]) == (0, 0, "sterna")
    assert row["perplexity_a"] == row["perplexity_b"]
    assert command(*same, "--require", "identical", "--max-kl", "0").exit_code == 0
    assert "every bit" in command(*same).stdout
    scalar = ("compare", "nano", "--isa-b", "scalar", "--context", "64", "--file", text, "--json")
    (row,) = json.loads(command(*scalar).stdout)
    assert (row["isa_b"], row["identical"], row["context"]) == ("scalar", True, 64)
    lossy = ("compare", "nano", "nano", "--head-b", "int8", "--file", text)
    shown = command(*lossy, "--require", "identical")
    assert shown.exit_code == 1
    assert "identical" not in shown.stdout
    assert command(*lossy, "--max-kl", "0.1").exit_code == 0
    assert command(*lossy, "--max-kl", "1e-9").exit_code == 1


def test_the_command_with_bad_input(text: str, tmp_path: Path) -> None:
    failed(command("compare", "nano", "--file", text), "--format-b")
    failed(command("compare", "nano", "--format-b", "t5"), "--stdlib")
    failed(command("compare", "nano", "--format-b", "t6", "--file", text), "t6")
    failed(command("compare", "nano", str(tmp_path / "no"), "--file", text), "no")
    failed(
        command("compare", "nano", "--format-b", "t5", "--file", text, "--convention", "llama.cpp"),
        "1024 tokens",
    )
    (tmp_path / "empty").write_text("")
    nothing = ("compare", "nano", "--format-b", "t5", "--file", str(tmp_path / "empty"))
    failed(command(*nothing, "--max-kl", "1"), "two tokens")
    failed(command("compare", "nano", "--format-b", "t5", "--file", text, "--max-kl", "nan"), "nan")
