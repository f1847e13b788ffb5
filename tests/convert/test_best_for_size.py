"""The best model for given bytes: choices, error feedback, sizes that hold, and refusals."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import command, failed

from sterna import LLM, formats, loading, ops
from sterna.checkpoints.model_shape import memory_of, shape_of_config
from sterna.convert.allocation import Choice, allocate, curve, least_bytes
from sterna.convert.best_for_size import Goal, best_for_size
from sterna.convert.candidates import TARGETS, units_of, with_tables
from sterna.convert.moments import Moments
from sterna.convert.plan import plan
from sterna.convert.running import Running
from sterna.convert.sensitivity import Probe, format_errors
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna.formats import codec, weighted
from sterna.formats.feedback import Feedback, can_feed
from sterna.formats.level_tables import without_table
from sterna.graph import Graph

EVERY = sorted({name for names in TARGETS.values() for name in names})
TEXTS = [
    "".join(f"line {i} of a text about {i * i} things\n" for i in range(k, k + 40))
    for k in range(20)
]


def _inputs(K: int, seed: int = 3, spread: float = 1.0) -> np.ndarray:
    """Second moments of inputs that a quarter as many hidden numbers explain mostly."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((4 * K, K // 4)) @ rng.standard_normal((K // 4, K))
    x = mixed * 0.2 + rng.standard_normal((4 * K, K)) * np.exp(spread * rng.standard_normal(K))
    return x.T @ x / len(x)


@pytest.mark.parametrize("name", EVERY)
def test_feedback_loses_less_in_every_format(name: str) -> None:
    f = formats.get(name)
    K = max(f.scales.block * 2, 384) // f.scales.block * f.scales.block
    h = _inputs(K)
    w = (np.random.default_rng(4).standard_normal((24, K)) * 0.05).astype(np.float32)
    w[3] = 0
    inputs = Feedback.of(h)
    assert can_feed(f)
    errors = []
    for squares in (inputs.squares, inputs):
        levels, scales = weighted.rounded(f, w, None, squares)
        packed = ops.pack(levels, f.check_scales(scales, *w.shape), format=f)
        apart = (ops.dequantize(packed) - w).astype(np.float64)
        errors.append(np.einsum("mk,kl,ml->", apart, h, apart))
        assert np.array_equal(apart[3], 0 * apart[3]) or not f.codebook.has_all([0])
    assert errors[1] < 0.9 * errors[0]


def test_tables_are_learned_and_lose_less() -> None:
    """Weights far from zero fit no fixed table; GGUF's indices, without feedback, lose more."""
    inputs, rng = Feedback.of(_inputs(512, spread=0.3)), np.random.default_rng(4)
    size = 1 + 0.3 * rng.standard_normal((32, 512))
    w = (np.copysign(size, rng.standard_normal(size.shape)) * 0.05).astype(np.float32)
    fixed = [formats.get(name) for name in ("nf2:g32", "i4:g64", "nf4:g32", "nf2:g64")]
    made = with_tables(fixed, w, inputs.variances, 1)
    names = [without_table(format.name) for format in made]
    assert names == ["lut2:g32", "i4:g64", "lut4:g32", "lut2:g64"]
    assert len({format.table for format in made if format.name.startswith("lut2")}) == 1
    before, after = (format_errors(w, some, inputs, 1) for some in (fixed, made))
    assert before[1] == after[1]
    assert all(after[i] < 0.7 * before[i] for i in (0, 2, 3))
    normal = (rng.standard_normal((32, 512)) * 0.05).astype(np.float32)
    of_table = format_errors(normal, [formats.get("nf2:g64")], inputs, 1)[0]
    indices = formats.get("iq2_xs")
    apart = codec.real_values(indices, *weighted.rounded(indices, normal)) - normal
    assert of_table < 0.7 * inputs.error(apart).sum()
    with pytest.raises(RequestError, match="iq2_xs, which takes the nearest entries of a table"):
        weighted.check_weighted(indices)


def test_error_of_feedback_is_that_of_the_moments() -> None:
    h = _inputs(64)
    inputs = Feedback.of(h, damping=0.0)
    apart = np.random.default_rng(5).standard_normal((7, 64)).astype(np.float32)
    expected = np.einsum("mk,kl,ml->m", apart, h, apart)
    np.testing.assert_allclose(inputs.error(apart), expected, rtol=1e-4)
    nothing = Feedback.of(np.zeros((32, 32)))
    w = np.random.default_rng(6).standard_normal((16, 32)).astype(np.float32)
    plain = weighted.rounded(formats.get("q8_0"), w)
    fed = weighted.rounded(formats.get("q8_0"), w, None, nothing)
    a, b = (codec.real_values(formats.get("q8_0"), *made) for made in (plain, fed))
    np.testing.assert_allclose(a, b, atol=0.05)


@pytest.mark.parametrize("factored", [7, 16, 64, 100])
def test_moments_are_factored_some_columns_at_a_time(
    factored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = _inputs(64)
    whole = Feedback.of(h)
    monkeypatch.setattr("sterna.formats.feedback.FACTORED", factored)
    parts = Feedback.of(h)
    np.testing.assert_allclose(parts.factor, whole.factor, atol=1e-6)
    np.testing.assert_allclose(parts.variances, whole.variances, rtol=1e-6)
    np.testing.assert_array_equal(parts.squares, whole.squares)


@pytest.mark.parametrize("chunk", [1, 4000, 1 << 21])
def test_a_matrix_is_probed_some_rows_at_a_time(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Of q, k and v, which one weight has, the rows of k change and no other."""
    src = checkpoint("llama")
    running = Running.of(src, 1)
    probe = Probe.of(running, running.windows(TEXTS, 256), 128)
    (unit,) = (u for u in units_of(plan(src)[1]) if u.name == "model.layers.0.self_attn.k_proj")
    (weight,) = (w for w, name in running.names.items() if name == unit.item)
    expected, rows = ops.dequantize(weight), slice(unit.begin, unit.begin + unit.M)
    monkeypatch.setattr("sterna.weights.rounding.CHUNK_WEIGHTS", chunk)
    np.testing.assert_array_equal(probe.rows(unit), expected[rows])
    numbers = np.array([0, 3, unit.M - 1])
    np.testing.assert_array_equal(probe.rows(unit, numbers), expected[rows][numbers])
    sizes = list[int]()

    def change(some: np.ndarray) -> np.ndarray:
        sizes.append(len(some))
        return some + len(sizes)

    (made,) = probe.changed(unit, change).values()
    assert sum(sizes) == unit.M
    assert max(sizes) <= max(chunk // unit.K, weight.format.tile_rows)
    expected[rows] += np.repeat(np.arange(1, len(sizes) + 1), sizes)[:, None]
    np.testing.assert_array_equal(ops.dequantize(made), expected)


@pytest.mark.parametrize(
    "arch",
    "llama gpt2 cohere gemma4 qwen3_5 mixtral deepseek-v3.2 bert modernbert-score-mean".split(),
)
def test_moments_are_the_same_however_many_fit(
    checkpoint: Callable[[str], Path], arch: str
) -> None:
    """One at a time, reading goes on between two layers, or begins again."""
    running = Running.of(checkpoint(arch), 1)
    windows, ends = running.windows(TEXTS, 96), list[int]()
    every = Moments(running, windows, 1 << 30, {}, lambda done, _: ends.append(done))
    expected = {name: every.second_moments(name) for name in every}
    assert ends == sorted(ends)  # read once
    one = Moments(running, windows, 0, {})
    for name, moments in expected.items():
        np.testing.assert_array_equal(one.second_moments(name), moments)


def test_layers_in_order_are_read_once(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, run = Running.of(checkpoint("llama"), 1), list[int]()
    compiled = Engine.compiled

    def counted(engine: Engine, graph: Graph) -> object:
        run.append(len(graph.linears))
        return compiled(engine, graph)

    monkeypatch.setattr(Engine, "compiled", counted)
    moments = Moments(running, running.windows(TEXTS, 96), 0, {})
    read = [moments.second_moments(name).shape for name in moments]
    assert len(run) == len(read)
    assert sum(run) <= len(running.model.graph.linears) + 1  # the embedding begins again


@pytest.mark.parametrize(("name", "bits"), [("qwen3-score", 5.0), ("bert-score", 9.0)])
def test_a_single_score_tells_formats_apart(
    checkpoint: Callable[[str], Path], tmp_path: Path, name: str, bits: float
) -> None:
    """A softmax over one logit is 1, whatever was rounded."""
    fitted = best_for_size(checkpoint(name), tmp_path / "out", Goal(bits=bits), TEXTS, tokens=512)
    assert fitted.estimated_kl > 0
    assert fitted.bits > 0.95 * bits  # no bits are left where they would help


def test_threads_change_no_bit() -> None:
    f, inputs = formats.get("q4_0"), Feedback.of(_inputs(64))
    w = np.random.default_rng(7).standard_normal((weighted.FED_ROWS + 5, 64)).astype(np.float32)
    one, two = (weighted.rounded(f, w, None, inputs, threads) for threads in (1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_allocation_is_near_the_best_and_never_over() -> None:
    rng = np.random.default_rng(8)
    for _ in range(40):
        choices = [
            [
                Choice(f"{i}-{j}", int(rng.integers(1, 60)), float(rng.exponential()))
                for j in range(4)
            ]
            for i in range(5)
        ]
        least = least_bytes(choices)
        for nbytes in (least, least + 20, least + 90, 1000):
            chosen = allocate(choices, nbytes)
            assert sum(one.nbytes for one in chosen) <= nbytes
            assert all(one in of for one, of in zip(chosen, choices, strict=True))
            fitting = [
                sum(one.loss for one in some)
                for some in itertools.product(*choices)
                if sum(one.nbytes for one in some) <= nbytes
            ]
            loss = sum(one.loss for one in chosen)
            worst = max(max(c.loss for c in of) for of in choices)
            assert loss <= min(fitting) + worst  # at most one matrix apart
        sizes, losses = zip(*curve(choices), strict=True)
        assert list(sizes) == sorted(sizes)
        assert list(losses) == sorted(losses, reverse=True)
    with pytest.raises(ValueError, match="least_bytes"):
        allocate(choices, least - 1)


def test_sizes_hold_and_matrices_differ(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    src = checkpoint("llama")
    texts = TEXTS
    at = {}
    for bits in (3.0, 5.0):
        out = tmp_path / f"{bits}"
        fitted = best_for_size(src, out, Goal(bits=bits), texts, tokens=256, threads=1)
        model = loading.load(out, cached=False)
        held = sum(w.codes.nbytes + w.scale.nbytes for w in model.weights.modules.values())
        held += sum(v.nbytes for v in model.weights.tensors.values())
        assert held <= fitted.nbytes <= bits * fitted.n_weights / 8
        assert fitted.bits > bits - 0.35
        written = {str(w.format) for w in model.weights.modules.values()}
        assert written == {row["format"] for row in fitted.rows}
        tables = {name for name in written if name.startswith(("lut2-", "lut4-"))}
        assert len(tables) > 2  # matrices differ in theirs
        at[bits] = fitted.estimated_kl
    assert at[5.0] < at[3.0]
    sizes = [size for size, _ in fitted.curve]
    assert sizes == sorted(sizes)
    assert sizes[0] < fitted.nbytes


def test_size_of_files(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few formats, whose number says nothing about the rest of a file."""
    monkeypatch.setitem(TARGETS, "sterna", ("t5:g32", "i4:g32"))
    monkeypatch.setitem(TARGETS, "gguf", ("q2_k", "q4_0", "q8_0"))
    src = checkpoint("llama")
    small = tmp_path / "small"
    best_for_size(src, small, Goal(bits=4.0), TEXTS, tokens=256, threads=1)
    size = sum(path.stat().st_size for path in small.iterdir()) + 20000
    for target, name in (("sterna", "again"), ("gguf", "again.gguf")):
        out = tmp_path / name
        best_for_size(
            src, out, Goal(nbytes=size + 200_000), TEXTS, target=target, tokens=256, threads=1
        )
        files = [out] if out.is_file() else list(out.iterdir())
        assert size / 2 < sum(path.stat().st_size for path in files) <= size + 200_000
        assert LLM(out, threads=1, cache=False).generate("a", max_tokens=2)


def test_memory_with_a_context(checkpoint: Callable[[str], Path]) -> None:
    shape = shape_of_config(json.loads((checkpoint("llama") / "config.json").read_text()))
    goal = Goal(memory=1 << 30, context=512)
    weights = goal.weight_bytes(1000, lambda: 0, shape)
    assert memory_of(weights, shape, 512) <= 1 << 30 < memory_of(weights + 40, shape, 512)


def test_what_cannot_be_met_is_refused_first(
    checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src, out = checkpoint("llama"), tmp_path / "o"
    with pytest.raises(
        RequestError, match=r"bpw: must be at least [\d.]+ bits a weight, .* got 0.5"
    ):
        best_for_size(src, out, Goal(bits=0.5), TEXTS)
    with pytest.raises(RequestError, match=r"size: must be at least [\d,]+ bytes, .* got 5 bytes"):
        best_for_size(src, out, Goal(nbytes=5), TEXTS)
    with pytest.raises(RequestError, match=r"fits: must be at least [\d,]+ bytes of memory"):
        best_for_size(src, out, Goal(memory=1000), TEXTS)
    with pytest.raises(RequestError, match="for: must be one of sterna, gguf"):
        best_for_size(src, out, Goal(bits=4), TEXTS, target="vllm")
    with pytest.raises(RequestError, match=r"must be a name that ends in .gguf"):
        best_for_size(src, out, Goal(bits=4), TEXTS, target="gguf")
    with pytest.raises(RequestError, match=r"without .gguf, .*; --for gguf makes a GGUF file"):
        best_for_size(src, tmp_path / "o.gguf", Goal(bits=4), TEXTS)
    usage = shutil.disk_usage(tmp_path)._replace(free=9000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(RequestError, match=r"must have \d+ bytes of disk space, but 9000 are free"):
        best_for_size(src, out, Goal(bits=4), TEXTS)
    assert not [*tmp_path.iterdir()]  # nothing was measured
    assert not out.exists()
    asked = ("quantize", str(src), str(out))
    failed(command(*asked, "--size", "six"), "size: must be bytes such as 6GB")
    failed(command(*asked, "--bpw", "3", "--format", "i4"), "--format: must be left out")
    failed(command(*asked, "--bpw", "3", "--fits"), "must be one of them")
    failed(command(*asked, "--for", "gguf"), "need --bpw")
    failed(command(*asked, "--bpw", "-1"), "bpw: must be bits of a weight")
