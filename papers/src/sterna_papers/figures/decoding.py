"""Times the decoding of random models: their tokens, their layers, and their kernels alone.

Models that fit into memory together are measured in turn; others run one after the other.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sterna import _native, formats
from sterna.bench.linear import formats_named
from sterna.bench.machine import Pace, Progress, Yardsticks, available_bytes
from sterna.bench.random_models import HEADROOM_BYTES, model_bytes, random_model
from sterna.bench.report import significant
from sterna.bench.shapes import shape_named
from sterna.bench.step_work import bytes_per_step
from sterna.bench.timed_runs import PROMPT_OF_TG, generate
from sterna.calibration import bandwidth
from sterna.engine import PAGE, Engine
from sterna.errors import RequestError
from sterna.loading import Model
from sterna.runtime import Threads

__all__ = ["FIELDS", "Measured", "Plan", "decode", "plans", "skipped_row", "together"]

SETTLE_S = 0.05
#: Fields of every row of a figure about decoding; docs/measurements/papers.md defines them.
FIELDS = (
    "model", "format", "head", "threads", "isa", "n", "tok_s", "tok_s_min", "tok_s_max", "repeat",
    "bytes_per_token", "gb_s", "bandwidth_gb_s", "fraction_of_bandwidth", "skipped",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """A model to make, and the number of tokens to decode."""

    shape: str
    format: str
    head: str
    n: int

    @property
    def positions(self) -> int:
        """Positions of the KV cache at the end."""
        return -(-(PROMPT_OF_TG + self.n) // PAGE) * PAGE

    @property
    def layer_bytes(self) -> int:
        """Bytes of weights and scales of the linear layers but the head."""
        return shape_named(self.shape).layer_bytes(self.format)

    @property
    def nbytes(self) -> int:
        """Bytes of weights, scales and KV cache."""
        return model_bytes(self.shape, self.format, self.head, self.positions)


def plans(models: Sequence[str], format_names: Sequence[str], head: str, n: int) -> list[Plan]:
    """List every model in every format, none twice; RequestError for a wrong name or count."""
    if not models:
        raise RequestError("models: must name at least one; try --models tiny")
    if n < 1:
        raise RequestError(f"tokens: must be at least 1, but got {n}")
    limit = min(shape_named(shape).context for shape in models)
    if PROMPT_OF_TG + n > limit:
        raise RequestError(
            f"tokens: must be at most {limit - PROMPT_OF_TG}, the shortest context of these models "
            f"less a prompt of {PROMPT_OF_TG}, but got {n}"
        )
    names = formats_named(format_names)
    made = [Plan(shape, name, head, n) for shape in dict.fromkeys(models) for name in names]
    for plan in made:
        _ = plan.nbytes  # an unknown head is an error now
        for M, K in shape_named(plan.shape).matrices().values():
            formats.get(plan.format).check_shape(M, K, plan.shape)
    return made


@dataclass(frozen=True)
class Measured:
    """The times of a model on some threads, in seconds, one for each round.

    layers: a token's time in the linear layers but the head, within the model. kernels: the time of
    the same layers alone, one after the other.
    """

    plan: Plan
    threads: int
    isa: str
    seconds: list[float]
    layers: list[float]
    kernels: list[float]
    bytes_per_token: float
    bandwidth_gb_s: float

    @property
    def token_s(self) -> float:
        """Median seconds of a token."""
        return statistics.median(self.seconds) / self.plan.n

    @property
    def layers_s(self) -> float:
        """Median seconds of a token in its layers."""
        return statistics.median(self.layers)

    @property
    def kernels_s(self) -> float:
        """Median seconds of a token's layers alone."""
        return statistics.median(self.kernels)

    def row(self) -> dict[str, Any]:
        """Return the row with FIELDS."""
        n = self.plan.n
        gb_s = self.bytes_per_token / self.token_s / 1e9
        bandwidth = self.bandwidth_gb_s
        return {
            "model": self.plan.shape,
            "format": self.plan.format,
            "head": self.plan.head,
            "threads": self.threads,
            "isa": self.isa,
            "n": n,
            "tok_s": significant(1 / self.token_s),
            "tok_s_min": significant(n / max(self.seconds)),
            "tok_s_max": significant(n / min(self.seconds)),
            "repeat": len(self.seconds),
            "bytes_per_token": round(self.bytes_per_token),
            "gb_s": significant(gb_s),
            "bandwidth_gb_s": significant(bandwidth),
            "fraction_of_bandwidth": significant(gb_s / bandwidth) if bandwidth else None,
            "skipped": None,
        }


def skipped_row(plan: Plan, why: str, threads: int, isa: str) -> dict[str, Any]:
    """Make a row with FIELDS for a model that was not measured."""
    row: dict[str, Any] = dict.fromkeys(FIELDS)
    names = {"model": plan.shape, "format": plan.format, "head": plan.head, "n": plan.n}
    return row | names | {"threads": threads, "isa": isa, "skipped": why}


@dataclass(eq=False)
class _Live:
    """A model in memory on some threads, and its times so far."""

    plan: Plan
    model: Model
    engine: Engine
    seconds: list[float] = field(default_factory=list)
    layers: list[float] = field(default_factory=list)
    kernels: list[float] = field(default_factory=list)

    def time_tokens(self) -> None:
        time.sleep(SETTLE_S)  # until the threads of other pools have stopped spinning
        took, _, layers, *_ = generate(self.engine, self.plan.n, 1)
        self.seconds.append(took)
        self.layers.append(layers / self.plan.n)

    def time_kernels(self) -> None:
        """Time the layers' matrices alone, one shape after the other."""
        linears = [op.weight for op in self.model.graph.linears]
        shapes: dict[tuple[int, int], list[_native.Weight]] = {}
        for weight in linears[:-1]:
            shapes.setdefault((weight.M, weight.K), []).append(weight.native())
        engine = self.engine
        # One round, so that the other shapes lie between two passes, as in the model.
        self.kernels.append(
            sum(
                len(weights)
                * _native.time_linear(weights, 1, engine.isa, engine.threads, 1, not engine.fast)[0]
                for weights in shapes.values()
            )
        )

    def result(self, bandwidth: float) -> Measured:
        context = PROMPT_OF_TG + self.plan.n / 2
        return Measured(
            self.plan, int(self.engine.threads), self.engine.isa, self.seconds, self.layers,
            self.kernels, bytes_per_step(self.engine, context), bandwidth,
        )  # fmt: skip


def together(needs: Sequence[int], room: int) -> tuple[list[list[int]], list[int]]:
    """Return (groups of indices that fit into `room` bytes together; indices that never fit)."""
    groups: list[list[int]] = []
    left = 0
    for i, need in enumerate(needs):
        if need > room:
            continue
        if not groups or need > left:
            groups.append([])
            left = room
        groups[-1].append(i)
        left -= need
    return groups, [i for i, need in enumerate(needs) if need > room]


def room_bytes() -> int:
    """Return the bytes that models may take.

    A tenth of the free memory, and the buffer of the bandwidth measurement, stay free.
    """
    return max(0, available_bytes() * 9 // 10 - bandwidth.BYTES - HEADROOM_BYTES)


def decode(
    asked: Sequence[Plan],
    teams: dict[str, list[Threads]],
    isa: str,
    *,
    repeat: int,
    kernels: bool,
    progress: Progress,
) -> Iterator[Measured | tuple[Plan, str]]:
    """Yield each plan with its times on each of the `teams` of its shape, or why there are none.

    kernels: whether to time the layers alone, too. Each round of a group measures the machine, and
    then every model once. Raises RequestError for a repeat below 1.
    """
    if repeat < 1:
        raise RequestError(f"repeat: must be at least 1, but got {repeat}")
    room = room_bytes()
    groups, never = together([plan.nbytes for plan in asked], room)
    for i in never:
        needed = asked[i].nbytes / 1e9
        yield asked[i], f"needs {needed:.1f} GB of memory, but {room / 1e9:.1f} GB may be taken"
    for group in groups:
        yield from _group([asked[i] for i in group], teams, isa, repeat, kernels, progress)
        gc.collect()  # a graph's operations and values refer to each other


def _group(
    asked: Sequence[Plan],
    teams: dict[str, list[Threads]],
    isa: str,
    repeat: int,
    kernels: bool,
    progress: Progress,
) -> Iterator[Measured | tuple[Plan, str]]:
    live: list[_Live] = []
    for plan in asked:
        progress(f"{plan.shape} {plan.format}: making random weights")
        try:
            model = random_model(
                plan.shape, format=plan.format, head=plan.head, kv_positions=plan.positions
            )
        except RequestError as e:  # less memory is free than before
            yield plan, str(e)
            continue
        live += [
            _Live(plan, model, Engine(model, threads=t, isa=isa, skip_zeros=False))
            for t in teams[plan.shape]
        ]
        generate(live[-1].engine, 1, 1)  # starts the pool and allocates buffers
    counts = {int(case.engine.threads): case.engine.threads for case in live}
    yardsticks, pace = Yardsticks(), Pace(repeat * len(live))
    for i in range(repeat):
        progress(f"round {i + 1} of {repeat}: memory bandwidth")
        for team in counts.values():
            yardsticks.measure_bandwidth(team)
        for case in live:
            where = f"{case.plan.shape} {case.plan.format}, threads {int(case.engine.threads)}"
            progress(pace.step(f"round {i + 1} of {repeat}: {where}"))
            case.time_tokens()
            if kernels:
                case.time_kernels()
    yield from [case.result(yardsticks.bandwidth_gb_s(case.engine.threads)) for case in live]
