"""Benchmarks: fields, medians, choices and errors, on shapes so small that it takes seconds.

What is fast is no test's business; what the numbers are made of is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import FLOAT, FORMATS, GROUPED, INTEGER, POWERS, failure
from sysfs_tree import Tree

from sterna import _native, formats, ops
from sterna.bench import e2e, format_table, linear, machine, report, roofline
from sterna.bench.random_codes import Arena, codes_bytes, fill, packed_bytes, random_pool
from sterna.bench.random_models import RandomWeights, random_model
from sterna.bench.shapes import SHAPES
from sterna.engine import Engine
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError
from sterna.formats.codec import pack_codes
from sterna.weights.sources import HEADS, Linear

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


# ------------------------------------------------------------------------------- random weights


@pytest.mark.parametrize("name", FORMATS)
def test_any_cut_of_an_arena_is_a_valid_weight(name: str) -> None:
    """Codes of the codebook wherever a weight begins and however wide it is."""
    f = formats.get(name)
    arena = Arena(name, 500_000)
    for M, K in ((1, 1), (64, 64), (100, 200), (48, 1600)):
        weights = arena.weights(M, K)
        assert len(weights) >= 1
        for weight in weights:
            y = _native.linear(weight, np.ones((1, K), np.float32), "scalar", 1)
            assert y.shape == (1, M)
            assert np.isfinite(y).all()
    codes = _native.alloc(f.tile_bytes(4352)).reshape(1, -1)
    fill(codes.reshape(-1), random_pool(name)[0], f.tile_bytes(64))
    assert f.codes_valid(codes, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_random_weights_look_like_a_models(name: str) -> None:
    """Spread by the square root of K, so that activations keep their size; zeros beyond M."""
    f = formats.get(name)
    weights = RandomWeights(name, "bf16")
    first = weights.matrix("a", [Linear("a", 3 * f.tile_rows - 5, 256)])[0]
    second = weights.matrix("b", [Linear("b", 3 * f.tile_rows - 5, 256)])[0]
    values = first.unpacked() * (first.scale * np.float32(f.unit if f.integer else 1))
    if f.integer:
        values = values * np.float32(2 / f.codebook.step)
    assert np.std(values) == pytest.approx(256**-0.5, rel=0.4)
    assert f.codes_valid(first.codes, 1)
    assert not np.array_equal(first.codes, second.codes)
    redrawn = RandomWeights(name, "bf16").matrix("a", [Linear("a", 3 * f.tile_rows - 5, 256)])[0]
    np.testing.assert_array_equal(first.codes, redrawn.codes)
    full = np.zeros((f.tile_rows, 256), f.codebook.dtype if f.codebook else np.float32)
    full[:-5] = first.unpacked()[2 * f.tile_rows :]
    if name in INTEGER:  # what lies beyond M is as in a packed weight
        np.testing.assert_array_equal(first.codes[2], pack_codes(f, full[:-5])[0])


@pytest.mark.parametrize("name", [*GROUPED, "stq1_0"])
def test_random_weights_of_groups(name: str) -> None:
    """Valid codes with a scale for every group, also where levels depend on their neighbours."""
    f = formats.get(name)
    weight = RandomWeights(name, "bf16").matrix("a", [Linear("a", 70, 512)])[0]
    assert f.codes_valid(weight.codes, 1)
    values = ops.dequantize(weight)
    assert values.shape == (70, 512)
    assert np.isfinite(values).all()
    assert values.std() > 0


@pytest.mark.parametrize("name", [n for n in GROUPED if formats.get(n).scales.minima])
def test_minima_of_random_weights_leave_no_mean(name: str) -> None:
    """With one, a model's layers would answer every prompt alike."""
    weight = RandomWeights(name, "bf16").matrix("a", [Linear("a", 128, 4096)])[0]
    values = ops.dequantize(weight)
    assert abs(values.mean()) < 0.02 * values.std()


def test_pool_is_repeated_from_where_it_starts() -> None:
    pool = np.arange(7, dtype=np.uint8)
    for size in (0, 1, 5, 7, 20):
        codes = np.full(size, 255, np.uint8)
        fill(codes, pool, 3)
        np.testing.assert_array_equal(codes, (np.arange(size) + 3) % 7)


def test_an_arena_too_small_is_an_error() -> None:
    arena = Arena("i8", 1000)
    failure(lambda: arena.weights(1000, 1000), RequestError, "1000x1000", "MB")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", FORMATS)
def test_bytes_are_foreseen(name: str, head: str) -> None:
    """The estimate that guards memory is what a model then takes."""
    shape = SHAPES["tiny"]
    model = random_model("tiny", format=name, head=head)
    shadow = model.graph.head.shadow  # of an exact head
    taken = sum(w.nbytes for w in model.graph.weights()) + (shadow.nbytes if shadow else 0)
    assert taken == shape.nbytes(name, head)
    for w in model.graph.weights():
        assert w.nbytes == packed_bytes(w.format, w.M, w.K)


def test_shapes_have_the_parameters_of_their_names() -> None:
    """Within a tenth, for those named by their size alone."""
    for name, shape in SHAPES.items():
        if not name[:-1].replace(".", "").isdigit():
            continue
        params = sum(M * K for M, K in shape.matrices().values()) * shape.layers
        params += shape.vocab * shape.hidden
        size = float(name[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
        assert params == pytest.approx(size, rel=0.1), name


@pytest.mark.parametrize(
    ("name", "billions"),
    [("maple", 20), ("deepseek-v2-lite", 15.7), ("granite-4-h-small", 32), ("lfm2-8b-a1b", 8.3)],
)
def test_shapes_whose_layers_differ(name: str, billions: float) -> None:
    """Have the published number of parameters."""
    shape = SHAPES[name]
    params = sum(M * K for M, K in shape.all_matrices())
    params += shape.vocab * shape.hidden * (1 if shape.tied else 2)
    assert params == pytest.approx(billions * 1e9, rel=0.02)


def test_a_model_beyond_memory_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 4 * 10**9)
    monkeypatch.setattr(_native, "alloc", lambda nbytes: pytest.fail("allocates"))
    failure(lambda: e2e.run("random:100b"), RequestError, "random:100b as i2", "GB", "4.00 GB are")
    with pytest.raises(RequestError, match=r"random:7b.* GB"):  # the weights fit, the cache not
        e2e.run("random:7b", pp=(), tg=(1000,), batch=(8,))


# ------------------------------------------------------------------------------- the machine


def test_caches_as_the_system_tells(tmp_path: Path) -> None:
    for i, (kind, level, size) in enumerate(
        [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M"), ("x", "y", "")]
    ):
        index = tmp_path / f"index{i}"
        index.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (index / name).write_text(value + "\n")
    assert machine.cache_bytes(tmp_path) == {1: 48 << 10, 2: 2 << 20}
    assert machine.cache_bytes(tmp_path / "none")[2] > 0


def test_available_memory(tmp_path: Path) -> None:
    """What the system says, or the narrowest of the control groups."""
    tree = Tree(tmp_path)
    assert machine.available_bytes(tmp_path) > 1000  # no meminfo: what is free
    tree.write("proc/meminfo", "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:       4 kB\n")
    assert machine.available_bytes(tmp_path) == 4096
    tree.write("proc/self/mountinfo", "9 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n")
    tree.write("proc/self/cgroup", "0::/a/b\n")
    tree.write("cg/a/b/memory.max", "max\n").write("cg/a/b/memory.current", "400\n")
    assert machine.available_bytes(tmp_path) == 4096
    tree.write("cg/a/memory.max", "1000\n").write("cg/a/memory.current", "700\n")
    assert machine.available_bytes(tmp_path) == 300
    tree.write("cg/a/memory.stat", "anon 500\ninactive_file 200\nactive_file 7\n")
    assert machine.available_bytes(tmp_path) == 500  # idle files are given up first
    tree.write("cg/memory.max", "600\n").write("cg/memory.current", "900\n")
    assert machine.available_bytes(tmp_path) == 0


def test_available_memory_of_a_group_of_the_first_kind(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write("proc/meminfo", "MemAvailable: 4 kB\n")
    tree.write("proc/self/mountinfo", "9 1 0:1 / /cg rw - cgroup cgroup rw,memory\n")
    tree.write("proc/self/cgroup", "3:cpu:/x\n2:memory:/a\n")
    tree.write("cg/memory.limit_in_bytes", "9223372036854771712\n")
    tree.write("cg/memory.usage_in_bytes", "5000\n")
    assert machine.available_bytes(tmp_path) == 4096
    tree.write("cg/a/memory.limit_in_bytes", "2000\n").write("cg/a/memory.usage_in_bytes", "800\n")
    tree.write("cg/a/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n")
    assert machine.available_bytes(tmp_path) == 1500


def test_cycles_are_counted() -> None:
    """A frequency of some machine, and threads out of range are refused."""
    assert 1e8 < _native.cycles_per_second(1) < 1e10
    with pytest.raises(ValueError, match="threads"):
        _native.cycles_per_second(0)


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
    assert set(report.FIELDS) <= row.keys()


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
    assert order == [1, 4, 1, 4] * 3  # a warm-up and two rounds


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
    """A product of f32 is six of bf16 there, one of f16 five; other units multiply f32."""
    for isa in _native.isas():
        rows = linear.run(
            ["64x64"], format_names=["f32", "f16", "bf16"], isas=[isa], deterministic=False, **SMALL
        )
        fast = bool(_native.fast_layouts(isa))
        assert [row["kind"] for row in rows] == ["bf16" if fast else "f32"] * 3
        assert [row["peak_gops"] for row in rows] == ([100, 120, 600] if fast else [250] * 3)
        rows = linear.run(["64x64"], format_names=["f32", "f16", "bf16"], isas=[isa], **SMALL)
        assert [row["kind"] for row in rows] == ["f32", "f32", "bf16" if fast else "f32"]


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
    monkeypatch.setattr(_native, "fast_layouts", lambda isa: {"bf16": 1})
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
        assert set(report.FIELDS) <= row.keys()
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


def test_e2e_bad_requests() -> None:
    for wrong in ({"batch": (0,)}, {"batch": ()}, {"pp": (0,)}, {"tg": (-1,)}, {"repeat": 0}):
        failure(lambda w=wrong: e2e.run("random:tiny", **w), RequestError, "at least 1")
    failure(lambda: e2e.run("random:tiny", batch=(1 << 14,)), RequestError, "batch", "16384")
    for wrong in ((), (-64,), (100,)):
        failure(lambda w=wrong: e2e.run("random:tiny", depth=w), RequestError, "multiples of 64")
    failure(lambda: e2e.run("random:tiny", pp=(5000,)), RequestError, "5000", "context")
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
    assert not by_name["tl1_0"]["exact"]
    assert by_name["tl1_1"]["exact"]
    assert by_name["bf16"]["scales"] is None
    assert {row["gb_s"] for row in rows} == {None}
    json.dumps(rows, allow_nan=False)


def test_formats_measured(fake: FakeMachine) -> None:
    rows = format_table.run(["q8_0", "i2:g64"], shape="128x256", n=16, threads=1)
    assert [row["format"] for row in rows] == ["q8_0", "i2:g64"]
    assert all(row["gb_s"] > 0 and row["gops"] > 0 for row in rows)
    assert {row["threads"] for row in rows} == {1}
    failure(lambda: format_table.run(["q8_0"], shape="64x40"), RequestError, "multiple of 32")
