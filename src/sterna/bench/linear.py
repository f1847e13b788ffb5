"""Linear layers alone: y = x W^T for n tokens, with the matrix shapes of published models.

gemv is n = 1, a race against the memory bus; gemm is prefill, a race against the dot-product units.
Many copies of a matrix run in turn, like the layers of a model, so that weights come from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sterna import _native, formats
from sterna.bench.machine import (
    Known,
    Pace,
    Progress,
    Rows,
    Yardsticks,
    peak_kind,
    prepare_reading,
    teams,
    units,
)
from sterna.bench.random_codes import arenas, packed_bytes
from sterna.bench.report import fractions, spread
from sterna.bench.shapes import SHAPES, shape_named
from sterna.calibration import few_tokens, many_tokens, matrix_tokens
from sterna.errors import RequestError, shown
from sterna.ops import is_fast
from sterna.runtime import Threads

__all__ = [
    "DEFAULT_MODELS",
    "QUICK_FORMATS",
    "QUICK_MODELS",
    "Matrix",
    "copies_of_a_round",
    "formats_for",
    "formats_named",
    "left_out",
    "matrices",
    "run",
]

#: The models of the GEMV figures in arXiv 2508.06753 (Figures 5 to 7), and BitNet's 2B.
DEFAULT_MODELS = ("falcon3-1b", "mobilellm-1.5b", "llama3-8b", "bitnet-2b")
#: A choice that takes less than two minutes, and covers much of what people run.
QUICK_MODELS, QUICK_FORMATS = ("bitnet-2b",), ("i2", "t5", "q4_0", "q8_0")
MAX_SIZE = 1 << 20  # the greatest M or K: far above any layer
MANY_COPIES = 64
ROUND_S = 0.25  # seconds of a round over the copies, at the peak: GEMM needs fewer than GEMV


@dataclass(frozen=True)
class Matrix:
    """A weight's shape, and the model and layer that it comes from, if any."""

    M: int
    K: int
    model: str | None = None
    layer: str | None = None

    def __str__(self) -> str:
        return f"{self.M}x{self.K}"


@dataclass(frozen=True)
class _Case:
    matrix: Matrix
    format: str
    n: int
    threads: Threads
    isa: str
    deterministic: bool | None

    @property
    def peak(self) -> tuple[str, int]:
        """The peak to compare with, as `peak_kind` returns it."""
        return peak_kind(formats.get(self.format), self.isa, self.fast)

    @property
    def fast(self) -> bool:
        """Whether the kernel uses bf16 products."""
        return is_fast(formats.get(self.format), self.isa, self.deterministic)

    @property
    def kind(self) -> str:
        return self.peak[0]

    @property
    def operations(self) -> int:
        """Multiplications and additions of one call, without padding."""
        return 2 * self.matrix.M * self.matrix.K * self.n


def formats_named(names: Sequence[str] | None, *, integer: bool = False) -> list[str]:
    """Resolve names of formats, none twice; RequestError for an unknown name.

    "quick" is QUICK_FORMATS, and "all" is all formats, from the fewest bits up. None is all, or
    with `integer` the integer ones.
    """
    every = sorted(formats.names(), key=lambda name: (formats.get(name).bits, name))
    if not names:
        return [name for name in every if formats.get(name).integer or not integer]
    sets = {"all": every, "quick": QUICK_FORMATS}
    chosen = [name for given in names for name in sets.get(given, (given,))]
    return list(dict.fromkeys(formats.get(name).name for name in chosen))


def formats_for(names: Sequence[str] | None, matrix: Matrix, *, integer: bool = False) -> list[str]:
    """Resolve names as `formats_named`, but of "all" and "quick" keep only formats that fit K."""
    left = left_out(names, matrix, integer=integer)
    return [name for name in formats_named(names, integer=integer) if name not in left]


def left_out(
    names: Sequence[str] | None, matrix: Matrix, *, integer: bool = False
) -> dict[str, int]:
    """List the formats that `formats_for` leaves out -> the number that K must be a multiple of."""
    asked = {formats.get(name).name for name in names or () if name not in ("all", "quick")}
    known = (formats.get(name) for name in formats_named(names, integer=integer))
    unasked = (f for f in known if f.name not in asked)
    return {f.name: f.scales.block for f in unasked if matrix.K % f.scales.block}


def matrices(shapes: Sequence[str]) -> list[Matrix]:
    """Resolve names of models and "MxK" to matrices, in this order, none twice; RequestError."""
    by_shape: dict[tuple[int, int], Matrix] = {}
    for text in shapes:
        if text in SHAPES:
            for layer, (M, K) in shape_named(text).matrices().items():
                by_shape.setdefault((M, K), Matrix(M, K, text, layer))
            continue
        parts = text.lower().split("x")
        if len(parts) != 2 or not all(p.isascii() and p.isdigit() for p in parts):
            raise RequestError(
                f"shapes: each must be MxK, such as 2560x6912, or one of {', '.join(SHAPES)}, "
                f"but got {shown(text)}"
            )
        M, K = (int(part) if len(part) < 20 else MAX_SIZE + 1 for part in parts)
        if not (1 <= M <= MAX_SIZE and 1 <= K <= MAX_SIZE):
            raise RequestError(f"shapes: M and K must lie in 1..{MAX_SIZE}, but got {shown(text)}")
        by_shape.setdefault((M, K), Matrix(M, K))
    return list(by_shape.values())


def copies_of_a_round(peak_gops: float, operations: int) -> int:
    """Return how many calls of `operations` fit into ROUND_S at the peak: a round's limit."""
    return max(1, int(ROUND_S * peak_gops * 1e9 / max(1, operations)))


def run(
    shapes: Sequence[str] = DEFAULT_MODELS,
    *,
    format_names: Sequence[str] | None = None,
    n: Sequence[int] = (1,),
    threads: Sequence[int] | None = None,
    cores: str | None = None,
    isas: Sequence[str] | None = None,
    repeat: int = 5,
    working_set_mb: int | None = None,
    deterministic: bool | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return a row per shape, format, n, thread count and unit (docs/explanation/benchmarks.md).

    Rows have the medians of `repeat` rounds. A round measures the machine and then every case once,
    so that drift meets all alike. working_set_mb: 10^6 bytes of copies per format; None is enough
    to be out of cache, if memory suffices. deterministic: as in `LLM`. Raises RequestError.
    """
    if repeat < 1:
        raise RequestError(f"repeat: must be at least 1, but got {repeat}")
    if not n or any(not 1 <= count <= 1 << 16 for count in n):
        raise RequestError(f"n: must be token counts in 1..65536, but got {list(n)}")
    cases = [
        _Case(matrix, name, count, team, unit, deterministic)
        for matrix in matrices(shapes)
        for name in formats_for(format_names, matrix, integer=True)
        for count in dict.fromkeys(n)
        for team in teams(threads, cores)
        for unit in units(isas)
    ]
    if not cases:
        raise RequestError("shapes: must name at least one matrix; try --shapes bitnet-2b")
    return _Run(cases, working_set_mb, progress).rows(repeat, known)


class _Run:
    def __init__(self, cases: list[_Case], working_set_mb: int | None, progress: Progress) -> None:
        self.cases, self.progress = cases, progress
        self.yardsticks = Yardsticks()
        shapes = [(case.format, case.matrix.M, case.matrix.K) for case in cases]
        self.arenas = arenas(shapes, working_set_mb, progress)

    def rows(self, repeat: int, known: Known) -> Rows:
        held = sum(arena.nbytes for arena in self.arenas.values())
        self.progress(f"{len(self.cases)} cases, {repeat} rounds each, with {held / 1e9:.1f} GB")
        self._measure_machine("warming up")
        prepare_reading((case.threads, case.isa) for case in self.cases)
        weights = {case: self._weights(case) for case in self.cases}
        for case, copies in weights.items():  # starts the pool and allocates buffers
            _time(case, copies[:1])
        times: dict[_Case, list[float]] = {case: [] for case in self.cases}

        def rows() -> Rows:
            return [self._row(case, len(weights[case]), s) for case, s in times.items() if s]

        known(rows)
        pace = Pace(repeat * len(self.cases))
        for i in range(repeat):
            what = f"round {i + 1} of {repeat}"
            self._measure_machine(what)
            # What was measured before leaves the machine in a state that halves the first time.
            _time(self.cases[0], weights[self.cases[0]])
            for case in self.cases:
                self.progress(pace.step(f"{what}: {case.matrix} {case.format}, n {case.n}"))
                times[case].append(_time(case, weights[case]))
        return rows()

    def _measure_machine(self, what: str) -> None:
        self.progress(f"{what}: memory bandwidth and peak")
        for threads in sorted({case.threads for case in self.cases}):
            self.yardsticks.measure_bandwidth(threads)
        for isa, threads, kind in sorted({(c.isa, c.threads, c.kind) for c in self.cases}):
            self.yardsticks.measure_peak(isa, threads, kind)

    def _weights(self, case: _Case) -> list[_native.Weight]:
        copies = copies_of_a_round(self._peak(case), case.operations)
        weights = self.arenas[case.format].weights(case.matrix.M, case.matrix.K, copies)
        for weight in weights:  # as in models loaded on this machine
            weight.direct_tokens = few_tokens.known(case.threads, case.isa).get(case.format, 0)
            weight.joint_tokens = many_tokens.known(case.threads, case.isa).get(case.format, 0)
            weight.tile_tokens = matrix_tokens.known(case.threads, case.isa).get(case.format, 0)
        return weights

    def _peak(self, case: _Case) -> float:
        kind, products = case.peak
        return self.yardsticks.peak_gops(case.isa, case.threads, kind) / products

    def _row(self, case: _Case, copies: int, seconds: list[float]) -> dict[str, Any]:
        f, matrix = formats.get(case.format), case.matrix
        nbytes = packed_bytes(f, matrix.M, matrix.K)
        times = spread(seconds)
        median = times["time_us"] * 1e-6
        reached = fractions(
            nbytes / median / 1e9,
            case.operations / median / 1e9,
            self.yardsticks.limits(case.threads, self._peak(case)),
        )
        return {
            "test": "gemv" if case.n == 1 else "gemm",
            "model": matrix.model,
            "layer": matrix.layer,
            "format": case.format,
            "shape": str(matrix),
            "n": case.n,
            "threads": int(case.threads),
            "isa": case.isa,
            "kind": case.kind,
            **reached,
            **times,
            "working_set_mb": round(copies * nbytes / 1e6, 1),
        }


def _time(case: _Case, weights: list[_native.Weight]) -> float:
    """Return the seconds of one call, from a round over the copies."""
    # The first round also touches fresh memory for outputs, which matters if copies are few.
    rounds = 1 if len(weights) >= MANY_COPIES else 2
    seconds = _native.time_linear(weights, case.n, case.isa, case.threads, rounds, not case.fast)[
        -1
    ]
    return max(seconds, 1e-9)
