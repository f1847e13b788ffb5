"""The roofline of decoding: which of memory and core binds each format (arXiv 2508.06753, III-E).

An output vector is what one 256-bit int8 dot product updates: 8 outputs, 4 k each, so 32 weights,
whatever the unit's own width. With B bytes of weights per output vector, gamma the cycles a core
needs to compute one, and beta the bytes per cycle that memory gives a core while all of them read,
the effective bandwidth of a core is e_bw = min(beta, B / gamma) (equation 3).

gamma is measured on one core with weights that fill half of its L2 cache. It includes loads from
there, which the paper's gamma does not. The length of a cycle comes from a chain of dependent
additions, timed next to each measurement in cycles. beta is bandwidth / threads / frequency.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sterna import _native, formats
from sterna.bench.linear import Matrix, copies_of_a_round, formats_for, matrices
from sterna.bench.machine import Progress, Yardsticks, peak_kind, prepare_reading, teams, units
from sterna.bench.random_codes import Arena, arenas, codes_bytes, packed_bytes
from sterna.bench.report import fractions, significant, spread
from sterna.errors import RequestError
from sterna.formats import Format
from sterna.ops import is_fast
from sterna.runtime import Threads, cache_bytes, resolve_threads

__all__ = ["FIELDS", "SHAPE", "VECTOR_WEIGHTS", "run"]

VECTOR_WEIGHTS = 32  # weights of an output vector: 8 outputs x 4 k
SHAPE = "13824x2560"  # the matrix to read from memory: gate and up of the 2B BitNet
KINDS = ("int8", "f32", "bf16")
CACHED_ROUNDS = 100  # rounds of about 20 us; the fastest counts, as interference only adds time

#: The fields of every row; docs/explanation/benchmarks.md defines them.
FIELDS = tuple(
    """
    row format shape n threads isa kind clock_ghz bandwidth_gb_s beta_bytes_per_cycle peak_gops
    vector_bytes gamma_cycles core_bytes_per_cycle e_bw_bytes_per_cycle e_bw_gb_s bound gb_s gops
    fraction_of_roof fraction_of_bandwidth fraction_of_peak time_us time_us_min time_us_max repeat
    working_set_mb
    """.split()
)


@dataclass
class _Kernel:
    """A decode kernel with weights in the cache, and the cycles measured on them."""

    format: Format
    isa: str
    fast: bool  # bf16 products of a float format
    cached: Matrix
    weight: _native.Weight
    cycles: list[float] = field(default_factory=list)  # of a call, one per round

    @property
    def peak(self) -> tuple[str, int]:
        """The peak to compare with, as `peak_kind` returns it."""
        return peak_kind(self.format, self.isa, self.fast)

    @property
    def gamma(self) -> float:
        """Cycles per output vector."""
        vectors = self.cached.M * self.cached.K / VECTOR_WEIGHTS
        return statistics.median(self.cycles) / vectors

    @property
    def vector_bytes(self) -> float:
        """B: bytes of codes per output vector."""
        size = codes_bytes(self.format, self.cached.M, self.cached.K)
        return size * VECTOR_WEIGHTS / (self.cached.M * self.cached.K)


@dataclass
class _Attained:
    """A kernel on some threads, with weights out of cache."""

    kernel: _Kernel
    threads: Threads
    weights: list[_native.Weight]
    seconds: list[float] = field(default_factory=list)  # of a call, one per round


def _peak_gops(kernel: _Kernel, threads: int, yardsticks: Yardsticks) -> float:
    kind, products = kernel.peak
    return yardsticks.peak_gops(kernel.isa, threads, kind) / products


def run(
    format_names: Sequence[str] | None = None,
    *,
    threads: Sequence[int] | None = None,
    cores: str | None = None,
    isas: Sequence[str] | None = None,
    shape: str = SHAPE,
    repeat: int = 3,
    working_set_mb: int | None = None,
    deterministic: bool | None = None,
    progress: Progress = lambda _: None,
) -> list[dict[str, Any]]:
    """Return rows with FIELDS, of three kinds (the field `row`).

    There is a row "memory" per thread count, "peak" per unit, thread count and kind of product, and
    "decode" per format, unit and thread count.

    threads: None is 1 and the number of usable cores; isas: None is the one in use; format_names:
    None is all. shape: shape of the matrix to measure on. deterministic: as in `LLM`. Values are
    medians of `repeat` rounds; each round measures the machine and every kernel. Raises
    RequestError.
    """
    if repeat < 1:
        raise RequestError(f"repeat: must be at least 1, but got {repeat}")
    counts = sorted(teams(threads or sorted({1, resolve_threads(cores=cores)}), cores))
    unit_names = units(isas)
    matrix = matrices([shape])[0]
    names = formats_for(format_names, matrix)
    made = arenas([(name, matrix.M, matrix.K) for name in names], working_set_mb, progress)
    kernels = [_kernel(name, isa, deterministic) for isa in unit_names for name in names]
    prepare_reading((team, isa) for team in counts for isa in unit_names)
    yardsticks = Yardsticks()
    _measure_machine(yardsticks, counts, unit_names, progress)
    attained = [
        _attained(k, t, made[k.format.name], matrix, yardsticks) for k in kernels for t in counts
    ]
    for i in range(repeat):
        if i:
            _measure_machine(yardsticks, counts, unit_names, progress)
        for kernel in kernels:
            progress(f"round {i + 1} of {repeat}: {kernel.format.name} in cache")
            _measure_cycles(kernel, resolve_threads(1, cores))
        for case in attained:
            progress(f"round {i + 1} of {repeat}: {case.kernel.format.name} from memory")
            case.seconds += _seconds(case.kernel, case.weights, case.threads, 1)
    rows = _memory_rows(yardsticks, counts) + _peak_rows(yardsticks, counts, unit_names)
    rows += [_decode_row(case, matrix, yardsticks) for case in attained]
    return [{name: row.get(name) for name in FIELDS} for row in rows]


def _peak_units(names: Sequence[str]) -> list[str]:
    """List the requested units and all others with vectors, from the least able up."""
    return [isa for isa in _native.isas() if isa != "scalar" or isa in names]


def _kinds(isa: str) -> list[str]:
    """List a unit's kinds of products; bf16 only if a float format uses it there."""
    return [kind for kind in KINDS if kind != "bf16" or _native.fast_layouts(isa)]


def _measure_machine(
    yardsticks: Yardsticks, counts: Sequence[Threads], names: Sequence[str], progress: Progress
) -> None:
    progress("memory bandwidth, peaks and clock")
    for threads in counts:
        yardsticks.measure_clock(threads)
        yardsticks.measure_bandwidth(threads)
        for isa in _peak_units(names):
            for kind in _kinds(isa):
                yardsticks.measure_peak(isa, threads, kind)


def _kernel(name: str, isa: str, deterministic: bool | None) -> _Kernel:
    f = formats.get(name)
    half = cache_bytes().get(2, 1 << 20) // 2
    for K in (2560, 1024, 512, 256):  # the longest rows that leave at least four tiles
        if (tiles := half // f.tile_bytes(K)) >= 4:
            break
    cached = Matrix(max(1, tiles) * f.tile_rows, K)
    arena = Arena(name, max(1, tiles) * f.tile_bytes(K))
    weight = arena.weights(cached.M, cached.K, 1)[0]
    return _Kernel(f, isa, is_fast(f, isa, deterministic), cached, weight)


def _seconds(
    kernel: _Kernel, weights: list[_native.Weight], threads: int, rounds: int
) -> list[float]:
    """Time one token's call, in seconds, for each round over the weights."""
    return _native.time_linear(weights, 1, kernel.isa, threads, rounds, not kernel.fast)


def _measure_cycles(kernel: _Kernel, one: int) -> None:
    clock = _native.cycles_per_second(one)
    times = _seconds(kernel, [kernel.weight], one, CACHED_ROUNDS)
    kernel.cycles.append(min(times) * clock)


def _attained(
    kernel: _Kernel, threads: Threads, arena: Arena, matrix: Matrix, yardsticks: Yardsticks
) -> _Attained:
    peak = _peak_gops(kernel, threads, yardsticks)
    copies = copies_of_a_round(peak, 2 * matrix.M * matrix.K)
    weights = arena.weights(matrix.M, matrix.K, copies)
    _seconds(kernel, weights[:1], threads, 1)  # starts the pool
    return _Attained(kernel, threads, weights)


def _memory_rows(yardsticks: Yardsticks, counts: Sequence[int]) -> list[dict[str, Any]]:
    return [{"row": "memory", **_memory(yardsticks, threads)} for threads in counts]


def _memory(yardsticks: Yardsticks, threads: int) -> dict[str, Any]:
    bandwidth, clock = yardsticks.bandwidth_gb_s(threads), yardsticks.clock_hz(threads)
    return {
        "threads": int(threads),
        "clock_ghz": significant(clock / 1e9),
        "bandwidth_gb_s": significant(bandwidth),
        "beta_bytes_per_cycle": significant(bandwidth * 1e9 / threads / clock),
    }


def _peak_rows(
    yardsticks: Yardsticks, counts: Sequence[int], names: Sequence[str]
) -> list[dict[str, Any]]:
    return [
        {
            "row": "peak",
            "isa": isa,
            "threads": int(threads),
            "kind": kind,
            "peak_gops": significant(yardsticks.peak_gops(isa, threads, kind)),
        }
        for isa in _peak_units(names)
        for kind in _kinds(isa)
        for threads in counts
    ]


def _decode_row(case: _Attained, matrix: Matrix, yardsticks: Yardsticks) -> dict[str, Any]:
    kernel, threads = case.kernel, case.threads
    clock = yardsticks.clock_hz(threads)
    bandwidth = yardsticks.bandwidth_gb_s(threads)
    beta = bandwidth * 1e9 / threads / clock
    core = kernel.vector_bytes / kernel.gamma
    roof_gb_s = min(beta, core) * threads * clock / 1e9
    times = spread(case.seconds)
    median = max(times["time_us"], 1e-3) * 1e-6
    nbytes = packed_bytes(kernel.format, matrix.M, matrix.K)
    gb_s = nbytes / median / 1e9
    reached = fractions(
        gb_s,
        2 * matrix.M * matrix.K / median / 1e9,
        yardsticks.limits(threads, _peak_gops(kernel, threads, yardsticks)),
    )
    return {
        "row": "decode",
        "format": kernel.format.name,
        "shape": str(matrix),
        "n": 1,
        "isa": kernel.isa,
        "kind": kernel.peak[0],
        **_memory(yardsticks, threads),
        "vector_bytes": round(kernel.vector_bytes, 3),
        "gamma_cycles": significant(kernel.gamma),
        "core_bytes_per_cycle": significant(core),
        "e_bw_bytes_per_cycle": significant(min(beta, core)),
        "e_bw_gb_s": significant(roof_gb_s),
        "bound": "memory" if beta <= core else "core",
        **reached,
        "fraction_of_roof": significant(gb_s / roof_gb_s),
        **times,
        "working_set_mb": round(len(case.weights) * nbytes / 1e6, 1),
    }
