"""Benchmarks: fields, medians, choices and errors, on shapes so small that it takes seconds.

What is fast is no test's business; what the numbers are made of is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from helpers import FLOAT, FORMATS, GROUPED, POWERS, failure

from sterna import _native, formats
from sterna.bench import e2e, format_table, linear, roofline
from sterna.bench.random_codes import codes_bytes, packed_bytes
from sterna.bench.random_models import random_model
from sterna.bench.shapes import SHAPES
from sterna.engine import Engine
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError

#: Fields of every row that times a kernel or a model, as docs/explanation/benchmarks.md has them.
FIELDS = {
    "format", "shape", "n", "threads", "isa", "gb_s", "gops", "peak_gops", "bandwidth_gb_s",
    "fraction_of_bandwidth", "fraction_of_peak", "time_us", "time_us_min", "time_us_max",
    "repeat", "working_set_mb",
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("little_bandwidth")
SMALL = {"threads": [1], "repeat": 2, "working_set_mb": 1}


class FakeMachine:
    """Yardsticks and times that a test can reckon with; `rounds` are times by (n, K)."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self.seconds = list(seconds)
        self.calls: list[Any] = []
        self.in_order: list[bool] = []

    def time_linear(
        self, weights: list[Any], n: int, isa: str, threads: int, rounds: int, exact: bool = True
    ) -> Any:
        self.calls.append((len(weights), n, isa, threads, rounds))
        self.in_order.append(exact)
        return [self.seconds[len(self.calls) % len(self.seconds)]] * rounds


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """10 GB/s, 1000 GOPS of int8, 600 of bf16, 250 of f32, 2 GHz; a call of a layer takes 1 ms."""
    made = FakeMachine([1e-3])
    monkeypatch.setattr(_native, "time_linear", made.time_linear)
    monkeypatch.setattr(_native, "bandwidth_gb_s", lambda threads, nbytes: 10.0 * threads)
    monkeypatch.setattr(_native, "cycles_per_second", lambda threads: 2e9)
    peaks = {"int8": 1000.0, "bf16": 600.0, "f32": 250.0}
    monkeypatch.setattr(_native, "peak_gops", lambda isa, threads, kind: peaks[kind])
    return made


# ------------------------------------------------------------------------------- GEMV and GEMM


def test_gemv_rows_are_made_of_bytes_and_times(fake: FakeMachine) -> None:
    (row,) = linear.run(["640x512"], format_names=["i2"], **SMALL)
    nbytes = packed_bytes(formats.get("i2"), 640, 512)
    assert row["shape"] == "640x512"
    assert (row["test"], row["n"], row["model"], row["layer"]) == ("gemv", 1, None, None)
    assert row["gb_s"] == pytest.approx(nbytes / 1e-3 / 1e9, abs=1e-3)
    assert row["gops"] == pytest.approx(2 * 640 * 512 / 1e-3 / 1e9, abs=1e-3)
    assert (row["bandwidth_gb_s"], row["peak_gops"]) == (10.0, 1000.0)
    assert row["fraction_of_bandwidth"] == pytest.approx(nbytes / 1e7, abs=1e-4)
    assert row["fraction_of_peak"] == pytest.approx(2 * 640 * 512 / 1e9, abs=1e-4)
    copies = 1_000_000 // codes_bytes(formats.get("i2"), 640, 512)
    assert row["working_set_mb"] == pytest.approx(copies * nbytes / 1e6, abs=0.1)
    assert row.keys() >= FIELDS


def test_medians_and_spread(fake: FakeMachine) -> None:
    fake.seconds = [1e-3, 2e-3, 9e-3]
    (row,) = linear.run(["64x64"], format_names=["i8"], **{**SMALL, "repeat": 3})
    assert (row["time_us"], row["time_us_min"], row["time_us_max"]) == (2000, 1000, 9000)
    assert row["repeat"] == 3
    assert row["gops"] == pytest.approx(2 * 64 * 64 / 2e-3 / 1e9, abs=1e-3)


def test_rounds_are_interleaved(fake: FakeMachine) -> None:
    """Every round measures every case once, so that drift meets all alike."""
    rows = linear.run(["64x64", "64x128"], format_names=["i2"], n=(1, 4), **SMALL)
    assert [row["n"] for row in rows] == [1, 4, 1, 4]
    order = [n for _, n, *_ in fake.calls]
    assert order == [1, 4, 1, 4] + [1, 1, 4, 1, 4] * 2  # each round warms up with its first case


def test_floats_are_held_against_their_own_peak(fake: FakeMachine) -> None:
    rows = linear.run(["64x256"], format_names=["all"], n=(16,), deterministic=True, **SMALL)
    assert [row["format"] for row in rows] == linear.formats_named(["all"])
    assert {row["format"] for row in rows} == {*FORMATS, *GROUPED}
    floats = {row["format"] for row in rows if not formats.get(row["format"]).integer}
    assert floats >= {*FLOAT, *POWERS}
    assert {row["peak_gops"] for row in rows if row["format"] not in floats} == {1000.0}
    assert {row["peak_gops"] for row in rows if row["format"] in floats} == {250.0}
    assert {row["test"] for row in rows} == {"gemm"}
    assert {row["kind"] for row in rows if not formats.get(row["format"]).integer} == {"f32"}


def test_fast_floats_are_held_against_bf16(fake: FakeMachine) -> None:
    """A product of f32 is six of bf16 on a matrix unit, one of f16 five; vectors multiply pairs of
    bf16 alone, and not by default; other units multiply f32."""
    for isa in _native.isas():
        rows = linear.run(
            ["64x64"], format_names=["f32", "f16", "bf16"], isas=[isa], deterministic=False, **SMALL
        )
        fast = _native.fast_layouts(isa)
        kinds = ["bf16" if name in fast else "f32" for name in ("f32", "f16", "bf16")]
        assert [row["kind"] for row in rows] == kinds
        peaks = zip(kinds, (100, 120, 600), strict=True)
        assert [row["peak_gops"] for row in rows] == [p if k == "bf16" else 250 for k, p in peaks]
        rows = linear.run(["64x64"], format_names=["f32", "f16", "bf16"], isas=[isa], **SMALL)
        tiles = "bf16" in fast and fast["bf16"][1]
        assert [row["kind"] for row in rows] == ["f32", "f32", "bf16" if tiles else "f32"]


def test_threads_run_where_they_are_asked_to(fake: FakeMachine) -> None:
    """`cores` reaches every measurement, gamma's included."""
    cpu = _native.topology()["cpus"][0]
    for run_on in (linear.run, roofline.run):
        fake.calls.clear()
        shapes = ["64x256"] if run_on is linear.run else ["i2"]
        run_on(shapes, threads=[1], cores=str(cpu), repeat=1, working_set_mb=1)
        assert fake.calls
        assert all(threads.cpus == (cpu,) for *_, threads, _ in fake.calls)
    failure(
        lambda: linear.run(["64x256"], threads=[2], cores=str(cpu)),
        RequestError,
        "threads",
        "cores",
    )


def test_a_slow_unit_gets_fewer_copies() -> None:
    assert linear.copies_of_a_round(1000.0, 10**9) == 250
    assert linear.copies_of_a_round(1e-6, 10**9) == 1


def test_models_name_their_matrices() -> None:
    matrices = linear.matrices(["bitnet-2b", "2560x6912", "7X9"])
    assert [(m.layer, str(m)) for m in matrices] == [
        ("qkv", "3840x2560"),
        ("o", "2560x2560"),
        ("gate_up", "13824x2560"),
        ("down", "2560x6912"),  # once
        (None, "7x9"),
    ]
    for name, shape in SHAPES.items():
        graph = random_model(name).graph if name == "tiny" else None
        if graph:
            made = [op.weight.shape for op in graph.linears]
            assert made[:4] == list(shape.matrices().values())


def test_every_unit_and_format_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, tiny: all that is there, whatever it is called."""
    monkeypatch.setattr(_native, "peak_gops", lambda *_: 1.0)  # the scalar unit's takes seconds
    rows = linear.run(
        ["100x224", "100x256"], format_names=["all"], n=(1, 3), threads=[1, 2], isas=["all"],
        repeat=1, working_set_mb=0,
    )  # fmt: skip
    cut = sum(
        224 % formats.get(name).scales.block != 0 for name in GROUPED
    )  # whose groups do not fit 224
    cases = 2 * len(FORMATS + GROUPED) - cut
    assert cut > 0
    assert len(rows) == cases * 2 * 2 * len(_native.isas())
    assert all(row["time_us"] > 0 for row in rows)
    assert {row["isa"] for row in rows} == set(_native.isas())


def test_bad_requests() -> None:
    def of(**options: Any) -> Any:
        return lambda: linear.run(options.pop("shapes", ["64x256"]), **{**SMALL, **options})

    for shape in ("big", "0x4", "4x0", "4x", "x", "4x4x4", "-1x4", "99999999x4", "٣x٣"):
        failure(of(shapes=[shape]), RequestError, "shapes", shape)
    failure(of(shapes=[]), RequestError, "shapes")
    failure(of(format_names=["q9"]), RequestError, "format", "q9")
    failure(of(n=(0,)), RequestError, "n: ", "0")
    failure(of(n=()), RequestError, "n: ")
    failure(of(repeat=0), RequestError, "repeat")
    failure(of(threads=[0]), RequestError, "threads")
    failure(of(isas=["abacus"]), RequestError, "isa", "abacus")
    failure(of(working_set_mb=-1), RequestError, "working set")
    failure(of(working_set_mb=10**9), RequestError, "GB", "--working-set")
    failure(of(format_names=["i2"], shapes=["64x1000000"]), RequestError, "K must be at most")
    failure(
        of(format_names=["all", "q4_k"], shapes=["64x192"]),
        RequestError,
        "K must be a multiple of 256",
    )


# ------------------------------------------------------------------------------- roofline


def test_roofline_is_the_papers(fake: FakeMachine) -> None:
    """e_bw = min(beta, B / gamma), with times of 1 ms and a clock of 2 GHz."""
    rows = roofline.run(["i2"], threads=[1, 2], shape="640x512", repeat=1, working_set_mb=1)
    assert all(tuple(row) == roofline.FIELDS for row in rows)
    memory = [row for row in rows if row["row"] == "memory"]
    assert [row["beta_bytes_per_cycle"] for row in memory] == [5.0, 5.0]
    one, two = (row for row in rows if row["row"] == "decode")
    assert one["vector_bytes"] == 8.0  # 32 weights of two bits
    calls = fake.calls[-3]
    assert calls[3] == 1  # gamma on one thread
    core = one["vector_bytes"] / one["gamma_cycles"]
    assert one["core_bytes_per_cycle"] == pytest.approx(core, rel=0.01)
    assert one["bound"] == ("memory" if core >= 5 else "core") == "core"  # a slow core: 1 ms
    assert one["e_bw_gb_s"] == pytest.approx(2 * core, rel=0.01, abs=0.01)
    assert two["e_bw_gb_s"] == pytest.approx(2 * one["e_bw_gb_s"], abs=0.016)  # both rounded
    assert one["fraction_of_roof"] == pytest.approx(one["gb_s"] / one["e_bw_gb_s"], rel=0.1)


def test_roofline_binds_at_memory(fake: FakeMachine) -> None:
    fake.seconds = [1e-9]
    (row,) = (
        row
        for row in roofline.run(["i8"], threads=[1], shape="64x64", repeat=1, working_set_mb=1)
        if row["row"] == "decode"
    )
    assert row["bound"] == "memory"
    assert row["e_bw_bytes_per_cycle"] == 5.0
    assert row["e_bw_gb_s"] == 10.0


@pytest.mark.parametrize(("given", "fast"), [(None, True), (False, True), (True, False)])
def test_roofline_runs_what_models_run(
    fake: FakeMachine, monkeypatch: pytest.MonkeyPatch, given: bool | None, fast: bool
) -> None:
    """bf16 products where a unit has them, and their peak, unless sums in order are asked for."""
    monkeypatch.setattr(_native, "fast_layouts", lambda isa: {"bf16": (1, True)})
    fake.seconds = [1e-6]
    rows = roofline.run(
        ["bf16"], threads=[1], shape="64x64", repeat=1, working_set_mb=1, deterministic=given
    )
    (row,) = (row for row in rows if row["row"] == "decode")
    assert row["kind"] == ("bf16" if fast else "f32")
    assert set(fake.in_order) == {not fast}
    of_peak = row["gops"] / (600 if fast else 250)
    assert row["fraction_of_peak"] == pytest.approx(of_peak, rel=0.05)


def test_roofline_of_everything() -> None:
    """Every format, for real, and the peaks of every unit with vectors."""
    rows = roofline.run(threads=[1], shape="64x256", repeat=1, working_set_mb=1)
    decode = [row for row in rows if row["row"] == "decode"]
    assert {row["format"] for row in decode} == {*FORMATS, *GROUPED}
    assert all(row["gamma_cycles"] > 0 for row in decode)
    peaks = {(row["isa"], row["kind"]) for row in rows if row["row"] == "peak"}
    vector_units = [isa for isa in _native.isas() if isa != "scalar"] or ["scalar"]
    assert {(isa, kind) for isa in vector_units for kind in ("int8", "f32")} <= peaks
    json.dumps(rows, allow_nan=False)


# ------------------------------------------------------------------------------- end to end


def test_e2e_counts_all_sequences() -> None:
    rows = e2e.run("random:tiny", pp=(16,), tg=(4,), batch=(1, 8), threads=1, repeat=2)
    assert [(row["test"], row["batch"]) for row in rows] == [("pp16", 1), ("tg4", 1), ("tg4", 8)]
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["shape"] is None
        assert row["tok_s_min"] <= row["tok_s"] <= row["tok_s_max"]
        assert row["time_us_min"] <= row["time_us"] <= row["time_us_max"]
        tokens = row["n"] * row["batch"]
        assert row["tok_s"] == pytest.approx(tokens / row["time_us"] * 1e6, rel=1e-3)
    one, eight = rows[1:]
    assert one["gb_s"] == pytest.approx(one["tok_s"] * one["bytes_per_token"] / 1e9, rel=0.01)
    assert eight["bytes_per_token"] < one["bytes_per_token"]  # weights are read once for all


def test_e2e_at_a_depth() -> None:
    """At depth the same tests run with so many positions before; what they read counts those."""
    depths = (0, 128, 6400)  # the last beyond the shape's own context
    rows = e2e.run(
        "random:tiny", pp=(16,), tg=(4,), batch=(1, 2), depth=depths, threads=1, repeat=1
    )
    assert [(row["test"], row["batch"], row["depth"]) for row in rows] == [
        (test, batch, depth)
        for depth in depths
        for test, batch in (("pp16", 1), ("tg4", 1), ("tg4", 2))
    ]
    flat, _, deep = (row for row in rows if row["test"] == "tg4" and row["batch"] == 1)
    kv = 2 * 4 * 2 * (2 * 64 + 4)  # keys and values, layers, heads: int16 and a scale
    assert deep["bytes_per_token"] - flat["bytes_per_token"] == 6400 * kv
    for row in rows:
        assert 0 < row["attention_share"] < 1
        prompt = row["test"] == "pp16"
        assert (row["attention_gops"] is None) != prompt
        assert (row["attention_gb_s"] is None) == prompt


def test_a_depth_repeats_what_was_computed() -> None:
    """The pages of a repeated sequence are copies, in turn, and are free again afterwards."""
    engine = Engine(random_model("tiny"), threads=1)
    free = engine.kv_cache.pool.free
    source = EngineSequence()
    tokens = [(i * 31) % 4096 for i in range(128)]
    engine.prefill(source, tokens)
    same, longer = engine.kv_cache.repeated(source, 128), engine.kv_cache.repeated(source, 320)
    assert (same.length, len(same.pages), longer.length, len(longer.pages)) == (128, 2, 320, 5)
    expected = engine.prefill(source, [5, 6, 7])
    assert (engine.prefill(same, [5, 6, 7]) == expected).all()
    for sequence in (source, same, longer):
        engine.kv_cache.release(sequence)
    assert engine.kv_cache.pool.free == free
    for length, used in ((100, 128), (128, 0), (128, 100)):
        engine.kv_cache.release(source)
        if used:
            engine.prefill(source, tokens[:used])
        failure(
            lambda n=length: engine.kv_cache.repeated(source, n), RequestError, "multiples of 64"
        )


def test_e2e_beyond_the_context_of_a_shape() -> None:
    """Random weights have learnt no length."""
    n = SHAPES["tiny"].context + 64
    (row,) = e2e.run("random:tiny", pp=(n,), tg=(), threads=1, repeat=1)
    assert row["n"] == n


def test_e2e_bad_requests() -> None:
    for wrong in ({"batch": (0,)}, {"batch": ()}, {"pp": (0,)}, {"tg": (-1,)}, {"repeat": 0}):
        failure(lambda w=wrong: e2e.run("random:tiny", **w), RequestError, "at least 1")
    failure(lambda: e2e.run("random:tiny", batch=(1 << 14,)), RequestError, "batch", "16384")
    for wrong in ((), (-64,), (100,)):
        failure(lambda w=wrong: e2e.run("random:tiny", depth=w), RequestError, "multiples of 64")
    failure(lambda: e2e.run("nano", pp=(5000,)), RequestError, "5000", "context")
    failure(lambda: e2e.run("random:huge"), RequestError, "huge", "100b")
    failure(lambda: e2e.run("random:tiny", isa="abacus"), RequestError, "abacus")


# ------------------------------------------------------------------------------- the formats


def test_formats_without_measuring() -> None:
    """Every format has a row, from the fewest bits up; bits count the scales."""
    rows = format_table.run(shape="128x256", measure=False)
    assert {row["format"] for row in rows} == {*FORMATS, *GROUPED}
    by_name = {row["format"]: row for row in rows}
    assert by_name["q4_0"]["bits_per_weight"] == 4.5
    assert by_name["mxfp4"]["bits_per_weight"] == 4.25
    assert by_name["mxfp4"]["levels"] == 15
    assert by_name["q4_1"]["scales"] == "f16 and minimum per 32"
    assert by_name["i2"]["bits_per_weight"] == round(2 + 32 / 256, 3)
    assert by_name["bf16"]["scales"] is None
    assert {row["gb_s"] for row in rows} == {None}
    json.dumps(rows, allow_nan=False)


def test_formats_measured(fake: FakeMachine) -> None:
    rows = format_table.run(["q8_0", "i2:g64"], shape="128x256", n=16, threads=1)
    assert [row["format"] for row in rows] == ["q8_0", "i2:g64"]
    assert all(row["gb_s"] > 0 and row["gops"] > 0 for row in rows)
    assert {row["threads"] for row in rows} == {1}
    failure(lambda: format_table.run(["q8_0"], shape="64x40"), RequestError, "multiple of 32")
