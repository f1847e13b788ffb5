"""Benchmarks' inputs: random weights of any shape, and the system's description of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import FORMATS, GROUPED, INTEGER, failure
from sysfs_tree import Tree

from sterna import _native, formats, ops
from sterna.bench import e2e, machine
from sterna.bench.random_codes import Arena, fill, packed_bytes, random_pool
from sterna.bench.random_models import RandomWeights, random_model
from sterna.bench.shapes import SHAPES
from sterna.errors import RequestError
from sterna.formats.codec import pack_codes
from sterna.weights.sources import HEADS, Linear

pytestmark = pytest.mark.usefixtures("little_bandwidth")


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


@pytest.mark.parametrize(
    "name", [*GROUPED, "stq1_0", "iq1_m", "iq2_xxs", "iq3_s", "iq2_k", "iq4_ks", "iq5_ks"]
)
def test_random_weights_of_groups(name: str) -> None:
    """Valid codes with a scale for every group, also where levels depend on their neighbours."""
    f = formats.get(name)
    weight = RandomWeights(name, "bf16").matrix("a", [Linear("a", 70, 512)])[0]
    assert f.codes_valid(weight.codes, 1)
    values = ops.dequantize(weight)
    assert values.shape == (70, 512)
    assert np.isfinite(values).all()
    assert values.std() > 0


@pytest.mark.parametrize(
    "name", [*(n for n in GROUPED if formats.get(n).scales.minima), "iq4_k", "iq4_ks"]
)
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
        index = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{i}"
        index.mkdir(parents=True)
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (index / name).write_text(value + "\n")
    assert machine.cache_bytes(str(tmp_path)) == {1: 48 << 10, 2: 2 << 20}
    assert machine.cache_bytes(str(tmp_path / "none"))[2] > 0


def test_available_memory(tmp_path: Path) -> None:
    """The system's own number, or the smallest limit of the control groups."""
    tree = Tree(tmp_path)
    assert machine.available_bytes(str(tmp_path)) > 1000  # no meminfo: what is free
    tree.write("proc/meminfo", "MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:       4 kB\n")
    assert machine.available_bytes(str(tmp_path)) == 4096
    tree.write("proc/self/mountinfo", "9 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n")
    tree.write("proc/self/cgroup", "0::/a/b\n")
    tree.write("cg/a/b/memory.max", "max\n").write("cg/a/b/memory.current", "400\n")
    assert machine.available_bytes(str(tmp_path)) == 4096
    tree.write("cg/a/memory.max", "1000\n").write("cg/a/memory.current", "700\n")
    assert machine.available_bytes(str(tmp_path)) == 300
    tree.write("cg/a/memory.stat", "anon 500\ninactive_file 200\nactive_file 7\n")
    assert machine.available_bytes(str(tmp_path)) == 500  # idle files are given up first
    tree.write("cg/memory.max", "600\n").write("cg/memory.current", "900\n")
    assert machine.available_bytes(str(tmp_path)) == 0


def test_available_memory_of_a_group_of_the_first_kind(tmp_path: Path) -> None:
    tree = Tree(tmp_path).write("proc/meminfo", "MemAvailable: 4 kB\n")
    tree.write("proc/self/mountinfo", "9 1 0:1 / /cg rw - cgroup cgroup rw,memory\n")
    tree.write("proc/self/cgroup", "3:cpu:/x\n2:memory:/a\n")
    tree.write("cg/memory.limit_in_bytes", "9223372036854771712\n")
    tree.write("cg/memory.usage_in_bytes", "5000\n")
    assert machine.available_bytes(str(tmp_path)) == 4096
    tree.write("cg/a/memory.limit_in_bytes", "2000\n").write("cg/a/memory.usage_in_bytes", "800\n")
    tree.write("cg/a/memory.stat", "inactive_file 1\ntotal_inactive_file 300\n")
    assert machine.available_bytes(str(tmp_path)) == 1500


def test_cycles_are_counted() -> None:
    """A frequency of some machine, and threads out of range are refused."""
    assert 1e8 < _native.cycles_per_second(1) < 1e10
    with pytest.raises(ValueError, match="threads"):
        _native.cycles_per_second(0)
