"""`sterna bench figure pot`: the whole figure on tiny matrices; what is missing and why."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import command, failed, failure

from sterna.bench import linear, roofline
from sterna.errors import RequestError
from sterna.runtime import resolve_threads
from sterna_papers import _kernels, pot
from sterna_papers.figures import pot as figure
from sterna_papers.figures import pot_builds, pot_counts, pot_plots
from sterna_papers.figures.pot_builds import open_builds
from sterna_papers.pot import tuning

pytestmark = pytest.mark.usefixtures("little_bandwidth")
ISA = pot.resolve("f32")[1]
SMALL: dict[str, Any] = {"sizes": (32, 48), "rows": 16, "repeat": 2, "format_names": ()}


def rows_of(**changes: Any) -> list[dict[str, Any]]:
    return figure.run(**(SMALL | {"compilers": ()} | changes))


@pytest.fixture(scope="module", autouse=True)
def short() -> Iterator[None]:
    """Measurements of next to nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SMALL_MACS", 1)
        yield


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """The figure of the module's own kernels."""
    return rows_of()


def by_kernel(rows: list[dict[str, Any]], n: int) -> dict[tuple[str, bool | None], dict[str, Any]]:
    return {(row["kernel"], row["special"]): row for row in rows if row["n"] == n}


def test_rows_hang_together(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert tuple(row) == figure.FIELDS
        assert (row["row"], row["build"], row["threads"]) == ("matmul", "module", 1)
        assert row["isa"] == ISA
        assert row["rows"] == 16
        assert row["skipped"] is None
        assert tuple(row["unroll"]) in _kernels.unrolls(row["kernel"], ISA)
        assert 0 < row["time_us_min"] <= row["time_us"] <= row["time_us_max"]
        macs = row["rows"] * row["n"] ** 2
        assert row["gops"] == pytest.approx(2e-3 * macs / row["time_us"], rel=0.01)
        blocks = -(-row["rows"] // row["unroll"][0])
        nbytes = row["bytes_per_weight"] * row["n"] ** 2 * blocks
        assert row["gb_s"] == pytest.approx(nbytes / row["time_us"] / 1e3, rel=0.01)


def test_every_kernel_is_there(rows: list[dict[str, Any]]) -> None:
    kernels = set(_kernels.kernels(ISA))
    assert {row["kernel"] for row in rows} == kernels
    assert kernels >= {"f32", "i32", *figure.BASELINES}
    first, last = by_kernel(rows, 32), by_kernel(rows, 48)
    assert set(last) - set(first) == {(name, None) for name in figure.SCALARS if name in kernels}
    for name in figure.SPECIAL:
        assert {special for kernel, special in first if kernel == name} == {False, True}


def test_speedups_are_over_the_baseline_of_the_same_arithmetic(rows: list[dict[str, Any]]) -> None:
    for n in (32, 48):
        at_n = by_kernel(rows, n)
        for (kernel, _), row in at_n.items():
            if kernel in figure.BASELINES:
                base = at_n[figure.BASELINES[kernel], None]
                assert row["speedup"] == pytest.approx(row["gops"] / base["gops"], rel=0.01)
                assert row["speedup_min"] <= row["speedup_max"]
            else:
                assert row["speedup"] is None
    last = by_kernel(rows, 48)
    assert last["f32-scalar", None]["scalar_speedup"] == 1
    expected = last["pot8", False]["gops"] / last["f32-scalar", None]["gops"]
    assert last["pot8", False]["scalar_speedup"] == pytest.approx(expected, rel=0.01)


def test_the_roof_is_the_lower_of_two(rows: list[dict[str, Any]]) -> None:
    """At the largest size: the kernel's own best speed, or what memory's bytes are good for."""
    for row in rows:
        if row["n"] < 48 or row["kernel"] in figure.SCALARS:
            assert row["bound"] is None
            continue
        per_byte = 2 * row["unroll"][0] / row["bytes_per_weight"]
        assert row["memory_gops"] == pytest.approx(row["bandwidth_gb_s"] * per_byte, rel=0.01)
        assert row["core_gops"] >= row["gops"]
        memory = row["memory_gops"] < row["core_gops"]
        assert row["bound"] == ("memory" if memory else "instructions")


def test_rows_are_limited_where_matrices_are_large() -> None:
    """There are as many as POINT_MACS takes; fewer of the scalar kernels; `rows` says otherwise."""

    class Build:
        name = compiler = "stub"

        def kernels(self) -> list[str]:
            return ["f32", "pot8", "pot8-scalar"]

    def counts(n: int, rows: int | None) -> dict[str, int]:
        cases = figure._cases([Build()], n, rows, last=True)  # type: ignore[list-item]
        return {case.kernel: case.rows for case in cases}

    assert counts(64, None) == {"f32": 64, "pot8": 64, "pot8-scalar": 64}
    large = counts(5120, None)
    assert large["f32"] == large["pot8"]
    assert large["f32"] % figure.ROW_STEP == 0
    assert large["f32"] * 5120**2 <= figure.POINT_MACS < (large["f32"] + figure.ROW_STEP) * 5120**2
    assert large["pot8-scalar"] == large["f32"] // figure.SCALAR_SHARE
    assert set(counts(5120, 3).values()) == {3}


def test_a_compiler_that_is_not_there_is_named() -> None:
    *measured, missing = rows_of(sizes=(32,), compilers=("no-such-c++",))
    assert {row["row"] for row in measured} == {"matmul"}
    assert (missing["row"], missing["build"]) == ("build", "no-such-c++")
    assert missing["skipped"] == "not found, so not measured"


COMPILER = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++ or clang++")


@needs_compiler
def test_another_compilers_kernels_give_the_same_sums() -> None:
    """All kernels, compiled here from the installed source, give what the module's kernels give."""
    assert COMPILER
    with open_builds(ISA, [COMPILER], lambda _: None, [(1, 1, 1), (2, 4, 1)]) as (builds, missing):
        assert not missing
        module, compiled = builds
        assert isinstance(compiled, pot_builds.Compiled)
        assert compiled.name == COMPILER
        assert compiled.compiler.startswith(COMPILER)
        assert set(compiled.kernels()) == set(module.kernels())
        for kernel in compiled.kernels():
            assert set(compiled.unrolls(kernel)) <= set(module.unrolls(kernel))
            a, b = tuning.operands(kernel, 3, 5, 33)
            for unroll in compiled.unrolls(kernel):
                got = compiled.product(kernel, a, b, 33, unroll, True)
                expected = _kernels.matmul(kernel, a, b, 33, ISA, 1, unroll, True)
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)

    tiny = np.array([1e-40], np.float32)
    assert (tiny * np.float32(1))[0] != 0, "loading it has turned subnormal numbers off"


@needs_compiler
def test_a_compiler_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COMPILER
    monkeypatch.setattr(pot_builds, "FLAGS", ("--no-such-flag",))
    with open_builds(ISA, [COMPILER], lambda _: None, [(1, 1, 1), (2, 4, 1)]) as (builds, missing):
        assert [build.name for build in builds] == ["module"]
        assert "no-such-flag" in missing[COMPILER]


def test_own_layers_are_measured_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks that there are measure them; ratios are to f32."""
    asked: list[Any] = []
    times = {"f32": 6.0, "q8_0": 2.0}

    def gemv(names: list[str], **how: Any) -> list[dict[str, Any]]:
        asked.append((names, how["threads"], how["shape"], how["isas"]))
        rows = [{"row": "decode", "format": n, "time_us": times[n], "gb_s": 1.0} for n in names]
        return [{"row": "memory", "threads": 1}, *rows]

    def gemm(shapes: list[str], **how: Any) -> list[dict[str, Any]]:
        asked.append((how["format_names"], how["n"], shapes, how["isas"]))
        return [{"format": n, "n": how["n"][0], "time_us": times[n]} for n in times]

    monkeypatch.setattr(roofline, "run", gemv)
    monkeypatch.setattr(linear, "run", gemm)
    rows = rows_of(sizes=(32,), format_names=("f32", "q8_0"), isa=ISA)
    layers = {(row["row"], row["format"]): row for row in rows if row["row"] in ("gemv", "gemm")}
    assert set(layers) == {(row, name) for row in ("gemv", "gemm") for name in ("f32", "q8_0")}
    assert asked == [
        (["f32", "q8_0"], [resolve_threads()], roofline.SHAPE, [ISA]),
        (["f32", "q8_0"], (512,), ["4096x4096"], [ISA]),
    ]
    assert layers["gemv", "f32"]["speedup"] == layers["gemm", "f32"]["speedup"] == 1
    assert layers["gemv", "q8_0"]["speedup"] == 3
    assert layers["gemv", "q8_0"]["n"] == 1
    assert layers["gemm", "q8_0"]["n"] == 512


def test_arguments_are_checked() -> None:
    failure(lambda: rows_of(repeat=0), RequestError, "repeat")
    failure(lambda: rows_of(rows=0), RequestError, "rows")
    failure(lambda: rows_of(sizes=()), RequestError, "sizes")
    failure(lambda: rows_of(format_names=("f32", "q8")), RequestError, "q8")
    failure(lambda: rows_of(sizes=(64, 1)), RequestError, "sizes")
    failure(lambda: rows_of(sizes=(1 << 15,)), RequestError, "sizes")


# ----------------------------------------------------------------------------------------- CLI

SHORT = ("--sizes", "32,48", "--rows", "8", "--repeat", "1", "--formats", "none")


def test_the_picture_is_one(tmp_path: Path) -> None:
    """With several builds, as rows of another compiler make them."""
    target = tmp_path / "pot.png"
    result = command(
        "bench", "figure", "pot", *SHORT, "--compilers", "no-such-c++", "--plot", str(target),
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert rows[-1]["skipped"]
    assert_picture(target)
    twice = [row | {"build": build} for build in ("module", "g++") for row in rows[:-1]]
    figure_ = pot_plots.pot(twice)
    assert len(figure_.axes) == 2 + 3
    assert sum("Figure" in ax.get_title(loc="left") for ax in figure_.axes) == 5


def assert_picture(path: Path) -> None:
    """It decodes, is large, and not of one colour."""
    from matplotlib.image import imread

    pixels = imread(path)
    assert min(pixels.shape[:2]) > 500
    red, green, blue = (np.uint32(255) * np.moveaxis(pixels[::2, ::2, :3], 2, 0)).astype(np.uint32)
    assert len(np.unique(red << 16 | green << 8 | blue)) > 20


def test_the_tables() -> None:
    result = command("bench", "figure", "pot", *SHORT, "--compilers", "no-such-c++")
    assert result.exit_code == 0, result.output
    for word in (
        "Figures 3 and 5", "Figure 4", "Figure 6", "Figure 7", "bound by", "special values",
        "skipped: no-such-c++: not found, so not measured",
    ):  # fmt: skip
        assert word in result.stdout
    first = result.stdout.split("\n\n")[0]
    assert first.count("pot8") == 3, "with and without special values, and by fused multiply-adds"
    markdown = command("bench", "figure", "pot", *SHORT, "--compilers", "none", "--markdown")
    assert markdown.stdout.count("| --- |") >= 4


def test_wrong_options(tmp_path: Path) -> None:
    failed(command("bench", "figure", "pot", "--sizes", "1"), "sizes", "1")
    failed(command("bench", "figure", "pot", "--sizes", "x"), "x")
    failed(command("bench", "figure", "pot", "--isa", "z80", "--sizes", "32"), "z80")
    target = os.fspath(tmp_path / "pot.gif")
    failed(command("bench", "figure", "pot", "--plot", target), ".png")


LISTING = """
0000000000000000 <void (anonymous namespace)::rows<(anonymous namespace)::Fused<(anonymous \
namespace)::Powers8>, 2, 1>(sterna::pot::Args const&, long, long, long)>:
       0: \tble\ta3, a2, 0x30 <void (anonymous namespace)::rows<x>+0x30>
       4: \tvsetvli\ta0, a1, e32, m4, ta, ma
       8: \tvle32.v\tv8, (a2)
       c: \tvfmacc.vv\tv12, v8, v4
      10: \tvfmacc.vv\tv16, v8, v4
      14: \tblt\ta4, a5, 0x4 <void (anonymous namespace)::rows<x>+0x4>
      18: \taddi\ta6, a6, 0x1
      1c: \tblt\ta6, a3, 0x0 <void (anonymous namespace)::rows<x>>
"""


def test_loops_of_other_machines_are_counted() -> None:
    """The innermost loop of a function in the listing that llvm-objdump makes."""
    ((kernel, group, add), unroll, body), *others = pot_counts._loops(LISTING)
    assert not others
    assert (kernel, group, add, unroll) == ("pot8-fma", 4, "vfmacc.vv", (2, 1))
    assert [one.name for one in body] == ["vsetvli", "vle32.v", "vfmacc.vv", "vfmacc.vv", "blt"]


def test_what_cannot_be_counted_is_named() -> None:
    rows = pot_counts.run(256, compilers=("no-such-clang++", "g++"))
    assert [row["row"] for row in rows] == ["build", "build"]
    assert "needs no-such-clang++, which is not found" in rows[0]["skipped"]
    with pytest.raises(RequestError, match="vlen: must be one of 128, 256"):
        pot_counts.run(100)
    both = command("bench", "figure", "pot", "--count", "256", "--plot", "x.png")
    failed(both, "--plot: must be left out with --count")
