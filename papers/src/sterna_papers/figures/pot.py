"""Figures 3 to 7 of the paper on power-of-two weights, which compare its kernels with plain SIMD.

The paper is "Demystifying Power-of-Two Quantization: Benchmarking Inference on AVX and RVV". The
setting is the paper's: square matrices, one thread, the loop order rows of a, then rows of b, then
k, and every kernel with its best unrolling at that size. Only `rows` rows of a are timed, since all
rows do the same work and every block of unroll[0] rows reads b again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sterna import _native
from sterna.bench import linear, roofline
from sterna.bench.machine import Known, Pace, Progress, Yardsticks, require_bytes
from sterna.bench.report import significant, spread
from sterna.errors import RequestError
from sterna.runtime import resolve_threads
from sterna_papers import pot
from sterna_papers.figures.pot_builds import Build, open_builds
from sterna_papers.pot import tuning
from sterna_papers.pot.tuning import Unroll

__all__ = ["BASELINES", "COMPILERS", "FIELDS", "FORMATS", "SCALARS", "SIZES", "run"]

SIZES = (64, 128, 256, 512, 768, 1024, 2048, 4096, 5120)  # section 8, "Tensor Shapes"
COMPILERS = ("g++", "clang++")
FORMATS = ("f32", "q8_0", "pot4", "pot8")
#: The baseline of a kernel's speed-up.
BASELINES = {
    "pot8": "f32", "pot16": "f32", "pot4": "f32", "pot8-fma": "f32", "pot4-fma": "f32",
    "fxpot": "i32",
}  # fmt: skip
#: Kernels of Figure 7: not vectorised, or by the compiler; the handwritten one has the bare name.
SCALARS = tuple(f"{name}-{how}" for name in ("f32", "i32", "pot8") for how in ("scalar", "auto"))
#: Kernels that handle special values, or do not.
SPECIAL = ("pot8", "pot16", "pot4")
POINT_MACS = 1 << 31  # multiply-adds of a measurement: some 0.1 s at 20 a nanosecond
TUNE_MACS = 1 << 27
SCALAR_SHARE = 16  # scalar kernels are so many times slower, and take fewer rows
ROW_STEP = 16  # a multiple of every unrolling's rows, so that no rows remain
MAX_SIZE = 1 << 14
LEAST_BYTES = 1 << 12  # the smallest buffer for measuring bandwidth
GEMM_TOKENS = 512
GEMV_SHAPE = roofline.SHAPE
GEMM_SHAPE = "4096x4096"

#: Every row has them all; docs/measurements/power-of-two.md defines them.
FIELDS = (
    "row", "build", "compiler", "kernel", "format", "shape", "special", "n", "rows", "threads",
    "isa", "unroll", "time_us", "time_us_min", "time_us_max", "repeat", "gops", "speedup",
    "speedup_min", "speedup_max", "scalar_speedup", "bytes_per_weight", "gb_s", "bandwidth_gb_s",
    "fraction_of_bandwidth", "peak_gops", "fraction_of_peak", "clock_ghz", "macs_per_cycle",
    "core_gops", "memory_gops", "bound", "fraction_of_roof", "gamma_cycles", "skipped",
)  # fmt: skip
Row = dict[str, Any]


@dataclass
class _Case:
    """A kernel of a build at a size. special: None if the kernel has no choice of it."""

    build: Build
    kernel: str
    special: bool | None
    n: int
    rows: int
    bytes_per_weight: float = 0.0
    unroll: Unroll | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def macs(self) -> int:
        return self.rows * self.n * self.n

    @property
    def line(self) -> tuple[str, str, bool | None]:
        """The line of the figure: the same kernel at other sizes shares it."""
        return self.build.name, self.kernel, self.special


def run(
    sizes: Sequence[int] = SIZES,
    *,
    rows: int | None = None,
    compilers: Sequence[str] = COMPILERS,
    format_names: Sequence[str] = FORMATS,
    isa: str | None = None,
    repeat: int = 5,
    working_set_mb: int | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> list[Row]:
    """Return rows with FIELDS, of several kinds (the field `row`).

    There is a row "matmul" per build, kernel and size, and "build" for a missing compiler. Then
    come "gemv" and "gemm" per format, for Sterna's own kernels on all cores. Builds are the module,
    and one of the same source per compiler.

    rows: rows of a to time; None is as many as take about POINT_MACS. working_set_mb: of gemv and
    gemm, as in `linear.run`. Values are medians of `repeat` interleaved rounds. Raises
    RequestError.
    """
    if repeat < 1:
        raise RequestError(f"repeat: must be at least 1, but got {repeat}")
    if rows is not None and rows < 1:
        raise RequestError(f"rows: must be at least 1, but got {rows}")
    if not sizes or not all(2 <= n <= MAX_SIZE for n in sizes):
        raise RequestError(f"sizes: must lie in 2..{MAX_SIZE}, but got {list(sizes)}")
    unit = pot.resolve("f32", isa)[1]
    layer_formats = linear.formats_named(format_names) if format_names else []
    sizes = sorted(set(sizes))
    require_bytes(24 * sizes[-1] ** 2, f"sizes: {sizes[-1]}", "choose smaller ones")
    with open_builds(unit, compilers, progress) as (builds, missing):
        cases: list[_Case] = []
        yardsticks, pace = Yardsticks(), Pace(len(sizes))

        def of_kernels() -> list[Row]:
            rows = _matmul_rows(cases, unit, sizes[-1], yardsticks)
            return rows + [
                {"row": "build", "build": name, "skipped": why} for name, why in missing.items()
            ]

        known(lambda: _whole(of_kernels()))
        for n in sizes:
            progress(pace.step(f"N = {n}"))
            at_n = _cases(builds, n, rows, last=n == sizes[-1])
            _measure(at_n, n, repeat, yardsticks, progress)
            cases += at_n
        matmul_rows = of_kernels()
    known(lambda: _whole(matmul_rows))
    return _whole(matmul_rows + _layer_rows(layer_formats, isa, repeat, working_set_mb, progress))


def _whole(rows: Sequence[Row]) -> list[Row]:
    """Give rows all fields, in order."""
    return [{name: row.get(name) for name in FIELDS} for row in rows]


# ------------------------------------------------------------------------------------ measuring


def _cases(builds: Sequence[Build], n: int, rows: int | None, last: bool) -> list[_Case]:
    """List the kernels of all builds at a size; the scalar ones only at the last size."""
    most = max(ROW_STEP, POINT_MACS // (n * n) // ROW_STEP * ROW_STEP)
    many = rows or min(n, most)
    few = rows or min(n, max(1, most // SCALAR_SHARE))
    wide = [*dict.fromkeys(BASELINES.values()), *BASELINES]
    cases = []
    for build in builds:
        have = build.kernels()
        for kernel in [name for name in wide if name in have]:
            variants = (False, True) if kernel in SPECIAL else (None,)
            cases += [_Case(build, kernel, special, n, many) for special in variants]
        if last:
            cases += [_Case(build, name, None, n, few) for name in SCALARS if name in have]
    return cases


def _measure(
    cases: Sequence[_Case], n: int, repeat: int, yardsticks: Yardsticks, progress: Progress
) -> None:
    """Tune the cases of a size, then time them in turn."""
    data = {}
    for kernel in dict.fromkeys(case.kernel for case in cases):
        base = kernel.partition("-")[0]
        if base not in data:
            data[base] = tuning.operands(base, max(case.rows for case in cases), n, n)
    calls = []
    tuned: dict[tuple[str, str], Unroll] = {}
    for case in cases:
        progress(f"N = {n}: tuning {case.kernel} ({case.build.name})")
        a, b = data[case.kernel.partition("-")[0]]
        case.bytes_per_weight = b.nbytes / (n * n)
        # Whether special values are handled does not change the best unrolling, so both share it.
        key = case.build.name, case.kernel
        if key not in tuned:
            tuned[key] = _tuned(case, a, b)
        case.unroll = tuned[key]
        calls.append(_timer(case, a[: case.rows], b, case.unroll))
    for i in range(repeat):
        progress(f"N = {n}: round {i + 1} of {repeat}")
        yardsticks.measure_clock(1)
        yardsticks.measure_peak(_native.isas()[-1], 1, "f32")
        for case, call in zip(cases, calls, strict=True):
            case.seconds.append(call())


def _tuned(case: _Case, a: Any, b: Any) -> Unroll:
    unrolls = case.build.unrolls(case.kernel)
    if len(unrolls) == 1:
        return unrolls[0]
    step = min(case.rows, ROW_STEP)
    rows = min(case.rows, max(step, TUNE_MACS // (case.n * case.n) // step * step))
    timers = {unroll: _timer(case, a[:rows], b, unroll) for unroll in unrolls}
    return tuning.fastest(tuning.sweep(timers, 3))


def _timer(case: _Case, a: Any, b: Any, unroll: Unroll) -> Callable[[], float]:
    rounds = tuning.rounds_of(len(a), case.n, case.n)
    special = case.special is not False

    def run() -> float:
        times = case.build.seconds(case.kernel, a, b, case.n, unroll, special, rounds)
        return max(statistics.median(times), 1e-9)

    return run


# ------------------------------------------------------------------------------------ rows


def _matmul_rows(cases: Sequence[_Case], isa: str, last: int, yardsticks: Yardsticks) -> list[Row]:
    by_place = {(*case.line, case.n): case for case in cases}
    best: dict[Any, float] = {}
    for case in cases:
        best[case.line] = max(best.get(case.line, 0.0), _gops(case))
    bandwidth: dict[float, float] = {}
    rows = []
    for case in cases:
        baseline = by_place.get((case.build.name, BASELINES.get(case.kernel, ""), None, case.n))
        row = _row(case, isa, yardsticks)
        if baseline is not None:
            row |= _speedup(case, baseline)
        if case.n == last:
            scalar = by_place.get((case.build.name, _scalar_of(case.kernel), None, last))
            row["scalar_speedup"] = significant(_gops(case) / _gops(scalar)) if scalar else None
            if case.kernel not in SCALARS:
                nbytes = case.bytes_per_weight
                if nbytes not in bandwidth:
                    bandwidth[nbytes] = _bandwidth(nbytes * last * last)
                row |= _roof(case, best[case.line], bandwidth[nbytes], row["gb_s"])
        rows.append(row)
    return rows


def _bandwidth(nbytes: float) -> float:
    """Measure the GB/s at which a thread reads `nbytes`, which may be in a cache."""
    return _native.bandwidth_gb_s(1, max(int(nbytes), LEAST_BYTES))


def _gops(case: _Case) -> float:
    """Return the 10^9 multiplications and additions per second of the median."""
    return float(2e-9 * case.macs / (spread(case.seconds)["time_us"] * 1e-6))


def _scalar_of(kernel: str) -> str:
    """Return the scalar kernel that Figure 7 compares with: the plain one of this arithmetic."""
    base = kernel.partition("-")[0]
    return f"{BASELINES.get(base, base)}-scalar"


def _row(case: _Case, isa: str, yardsticks: Yardsticks) -> Row:
    gops, clock = _gops(case), yardsticks.clock_hz(1)
    peak = yardsticks.peak_gops(_native.isas()[-1], 1, "f32")
    assert case.unroll is not None
    blocks = -(-case.rows // case.unroll[0])
    times = spread(case.seconds)
    nbytes = case.bytes_per_weight * case.n * case.n * blocks
    return {
        "row": "matmul",
        "build": case.build.name,
        "compiler": case.build.compiler,
        "kernel": case.kernel,
        "shape": f"{case.n}x{case.n}",
        "special": case.special,
        "n": case.n,
        "rows": case.rows,
        "threads": 1,
        "isa": isa,
        "unroll": list(case.unroll),
        **times,
        "gops": significant(gops),
        "bytes_per_weight": case.bytes_per_weight,
        "gb_s": significant(nbytes / times["time_us"] / 1e3),
        "peak_gops": significant(peak),
        "fraction_of_peak": significant(gops / peak),
        "clock_ghz": significant(clock / 1e9),
        "macs_per_cycle": significant(gops * 1e9 / 2 / clock),
    }


def _speedup(case: _Case, baseline: _Case) -> Row:
    """Return the speed-up over the baseline: of the medians, and the extremes of the rounds."""
    per_round = [b / a for a, b in zip(case.seconds, baseline.seconds, strict=True)]
    return {
        "speedup": significant(_gops(case) / _gops(baseline)),
        "speedup_min": significant(min(per_round)),
        "speedup_max": significant(max(per_round)),
    }


def _roof(case: _Case, core_gops: float, bandwidth: float, gb_s: float) -> Row:
    """Return what bounds a kernel: its own speed with b in the cache, or the reads of b.

    One thread reads as many bytes as b has, and each weight read serves unroll[0] multiply-adds.
    """
    assert case.unroll is not None
    per_byte = 2 * min(case.unroll[0], case.rows) / case.bytes_per_weight
    memory_gops = bandwidth * per_byte
    return {
        "bandwidth_gb_s": significant(bandwidth),
        "fraction_of_bandwidth": significant(gb_s / bandwidth),
        "core_gops": significant(core_gops),
        "memory_gops": significant(memory_gops),
        "bound": "memory" if memory_gops < core_gops else "instructions",
        "fraction_of_roof": significant(_gops(case) / min(memory_gops, core_gops)),
    }


# ------------------------------------------------------------------------------- Sterna's kernels


def _layer_rows(
    names: Sequence[str],
    isa: str | None,
    repeat: int,
    working_set_mb: int | None,
    progress: Progress,
) -> list[Row]:
    """Measure GEMV out of cache, with its cycles, and GEMM of many tokens, compared with f32."""
    if not names:
        return []
    how: dict[str, Any] = {
        "isas": None if isa is None else [isa],
        "repeat": repeat,
        "working_set_mb": working_set_mb,
        "progress": progress,
    }
    measured = roofline.run(names, threads=[resolve_threads()], shape=GEMV_SHAPE, **how)
    gemv = [{**row, "row": "gemv"} for row in measured if row["row"] == "decode"]
    gemm = linear.run([GEMM_SHAPE], format_names=names, n=(GEMM_TOKENS,), **how)
    rows = gemv + [{**row, "row": "gemm"} for row in gemm]
    for row in rows:
        row["n"] = 1 if row["row"] == "gemv" else GEMM_TOKENS
        row["speedup"] = _over(row, rows, "f32")
    return rows


def _over(row: Row, rows: Sequence[Row], name: str) -> float | None:
    base: Mapping[str, Any] | None = next(
        (r for r in rows if (r["row"], r["format"]) == (row["row"], name)), None
    )
    return significant(base["time_us"] / row["time_us"]) if base else None
