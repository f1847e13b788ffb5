"""End to end: prompt processing (pp) and generation (tg) in tokens per second, compared with what
the machine's memory and dot-product units allow, measured in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sterna import formats, loading
from sterna.bench.head import head_per_token
from sterna.bench.machine import Progress, Yardsticks, peak_kind
from sterna.bench.random_models import Zeros, random_model
from sterna.bench.report import Limits, fractions, significant, spread
from sterna.bench.step_work import (
    attended_bytes,
    attention_operations,
    bytes_per_step,
    operations_per_token,
)
from sterna.bench.timed_runs import PROMPT_OF_TG, Measured, generate, prompt, prompt_tokens
from sterna.checkpoints.resolve import resolve
from sterna.engine import (
    KV_DTYPES,
    PAGE,
    PREFILL_CHUNK,
    DecidingLogits,
    Engine,
    checked_kv_dtype,
)
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError
from sterna.runtime import resident_bytes, resolve_threads

__all__ = ["run"]

_SOURCE = 512  # positions that are computed once, then repeated to fill the cache


@dataclass
class _Test:
    """A test: pp, a prompt of n tokens, or tg, n steps of `batch` sequences; and its runs.

    depth: positions in the cache before the test. zeros: whether the weights that meet zeros of a
    random model are "read" or "left out"; None: the engine decides.
    """

    prompt: bool
    n: int
    batch: int = 1
    depth: int = 0
    zeros: str | None = None
    runs: list[Measured] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{'pp' if self.prompt else 'tg'}{self.n}"

    @property
    def context(self) -> float:
        """Mean positions that a token attends to."""
        return self.depth + (self.n / 2 if self.prompt else PROMPT_OF_TG + self.n / 2)

    @property
    def positions(self) -> int:
        """Positions of a sequence at its end."""
        return self.depth + (self.n if self.prompt else PROMPT_OF_TG + self.n)

    @property
    def seconds(self) -> list[float]:
        """Seconds of each run."""
        return [run.seconds for run in self.runs]

    def median(self, part: str) -> float:
        """Return the median over the runs of a field of `Measured`."""
        values: list[float] = [getattr(run, part) for run in self.runs]
        return statistics.median(values)

    def run(self, engine: Engine, source: EngineSequence) -> None:
        self.runs.append(
            prompt(engine, self.n, self.depth, source)
            if self.prompt
            else generate(engine, self.n, self.batch, self.depth, source)
        )


def run(
    model: str,
    *,
    format: str | None = None,
    head: str | None = None,
    pp: Sequence[int] = (128, 512),
    tg: Sequence[int] = (64,),
    batch: Sequence[int] = (1,),
    depth: Sequence[int] = (0,),
    threads: int | None = None,
    cores: str | None = None,
    isa: str | None = None,
    kv_dtype: str | None = None,
    deterministic: bool | None = None,
    activations: str | None = None,
    zeros: str | None = None,
    repeat: int = 3,
    progress: Progress = lambda _: None,
) -> list[dict[str, Any]]:
    """Return a row for each test; docs/explanation/benchmarks.md defines its fields.

    Args:
        model: "random:SHAPE", a folder or a built-in name.
        pp, tg: Prompt lengths and numbers of generated tokens; each is a test.
        batch: How many sequences decode together; each number is a test for each of `tg`.
        depth: Positions in the KV cache before a test, multiples of 64 (a page).
        zeros: Rates of zeros in a random model, for `Zeros.parse`. Every test then runs twice: the
            weights that meet zeros are read, and left out.
        repeat: Rounds, of which rows have the medians.
        progress: Called with the current activity.

    Raises RequestError if the model, the context or the memory does not suffice.
    """
    if repeat < 1 or not batch or any(n < 1 for n in (*pp, *tg, *batch)):
        raise RequestError("bench: pp, tg, batch and repeat must be at least 1")
    if not depth or any(d < 0 or d % PAGE for d in depth):
        raise RequestError(f"depth: must be multiples of {PAGE}, but got {list(depth)}")
    progress(f"loading {model}")
    # Zeros of random weights are not those of a trained model, unless the user has set their rates.
    ways: dict[str | None, bool | None] = (
        {"read": False, "left out": True} if zeros else {None: False if _is_random(model) else None}
    )
    tests = _tests(pp, tg, batch, depth, ways)
    pages = max((-(-test.positions // PAGE) * test.batch for test in tests), default=0)
    team = resolve_threads(threads, cores)
    context = max((test.positions for test in tests), default=0)
    dtype = checked_kv_dtype(kv_dtype or KV_DTYPES[0])
    opened = _open(model, format, head, pages * PAGE, dtype, context, zeros)
    make = partial(
        Engine,
        opened,
        threads=team,
        isa=isa,
        kv_dtype=kv_dtype,
        deterministic=deterministic,
        activations=activations,
    )
    engines = {z: make(skip_zeros=skip) for z, skip in ways.items()}
    return [{"model": model, **row} for row in _measured(engines, tests, repeat, progress)]


def _tests(
    pp: Sequence[int],
    tg: Sequence[int],
    batch: Sequence[int],
    depth: Sequence[int],
    ways: Iterable[str | None],
) -> list[_Test]:
    """List the tests at each depth; ways: what each test does with weights that meet zeros."""
    return [
        test
        for d in dict.fromkeys(depth)
        for z in ways
        for test in (
            *(_Test(True, n, depth=d, zeros=z) for n in pp),
            *(_Test(False, n, b, d, z) for n in tg for b in batch),
        )
    ]


def _measured(
    engines: Mapping[str | None, Engine], tests: Sequence[_Test], repeat: int, progress: Progress
) -> list[dict[str, Any]]:
    """Run all tests `repeat` times, in turn with the machine's limits; returns a row for each."""
    engine, *_ = engines.values()
    _check_room(engine, tests)
    kind, products = peak_kind(formats.get(engine.model.format), engine.isa, engine.fast)
    yardsticks = Yardsticks()
    prompt(engine, min(32, engine.context))  # starts the pool and allocates buffers
    sources = {z: EngineSequence() for z in engines}
    if any(test.depth for test in tests):
        progress("a context to measure at")
        for z, source in sources.items():
            engines[z].prefill(source, prompt_tokens(engine, _SOURCE), DecidingLogits(1))
    for i in range(repeat):  # interleaved, so that drift of the machine meets all tests alike
        progress("measuring memory bandwidth and peak")
        yardsticks.measure_bandwidth(engine.threads)
        yardsticks.measure_peak(engine.isa, engine.threads, kind)
        for test in tests:
            at = f" at depth {test.depth}" if test.depth else ""
            progress(f"{test.name}{at}, batch {test.batch}, run {i + 1} of {repeat}")
            test.run(engines[test.zeros], sources[test.zeros])
    peak = yardsticks.peak_gops(engine.isa, engine.threads, kind) / products
    limits = yardsticks.limits(engine.threads, peak)
    head_work = head_per_token(engine)
    return [{**_row(engine, test, limits), **head_work} for test in tests]


def _check_room(engine: Engine, tests: Sequence[_Test]) -> None:
    for test in tests:
        if test.positions > engine.context:
            raise RequestError(
                f"{test.name}: needs {test.positions} positions, but the context is "
                f"{engine.context}; ask for fewer tokens"
            )
        pages = engine.kv_cache.pool.count - (_SOURCE // PAGE if test.depth else 0)
        room = pages // -(-test.positions // PAGE)
        if test.batch > room:
            raise RequestError(
                f"batch: the KV cache has room for {room} sequences of {test.positions} "
                f"positions, but got {test.batch}"
            )


def _is_random(model: str) -> bool:
    """Whether the name is "random:SHAPE"."""
    return model.startswith("random:")


def _open(
    model: str,
    format: str | None,
    head: str | None,
    kv_positions: int,
    kv_dtype: str,
    context: int,
    zeros: str | None,
) -> loading.Model:
    if _is_random(model):
        return random_model(
            model.removeprefix("random:"),
            format=format or "i2",
            head=head or "bf16",
            kv_positions=kv_positions,
            kv_dtype=kv_dtype,
            context=context,
            zeros=Zeros.parse(zeros) if zeros else None,
        )
    if zeros:
        raise RequestError(f"zeros: must be of a random model, but got {model}; see --model")
    return loading.load(resolve(model), format=format, head=head, cached=False)


def _row(engine: Engine, test: _Test, limits: Limits) -> dict[str, Any]:
    m = engine.model
    tokens = test.n * test.batch
    rate = tokens / test.median("seconds")
    gops = rate * operations_per_token(engine, test.n if test.prompt else 1, test.context) / 1e9
    # A prompt reads the layers once per step of PREFILL_CHUNK tokens.
    tokens_per_step = min(test.n, PREFILL_CHUNK) if test.prompt else test.batch
    left_out = test.median("left_out")
    step_bytes = bytes_per_step(engine, test.context, test.batch) - left_out
    return {
        "test": test.name,
        "format": m.format,
        "head": m.head,
        "kv_dtype": engine.kv_dtype,
        "activations": engine.activations,
        "batch": test.batch,
        "depth": test.depth,
        "zeros": test.zeros,
        "left_out_mb": round(left_out / 1e6, 1),
        "shape": None,
        "n": test.n,
        "threads": int(engine.threads),
        "isa": engine.isa,
        "tok_s": significant(rate),
        "tok_s_min": significant(tokens / max(test.seconds)),
        "tok_s_max": significant(tokens / min(test.seconds)),
        **fractions(rate / tokens_per_step * step_bytes / 1e9, gops, limits),
        "bytes_per_token": round(step_bytes / (1 if test.prompt else test.batch)),
        **spread(test.seconds),
        "working_set_mb": round(m.weight_bytes_per_token / 1e6, 1),
        "rss_mb": round(resident_bytes() / 1e6, 1),
        "ttft_ms": round(test.median("first_s") * 1e3, 2),
        **_attention(engine, test, limits),
    }


def _attention(engine: Engine, test: _Test, limits: Limits) -> dict[str, Any]:
    """Return attention's share of a test's time, and its speed as a fraction of its limit."""
    took = max(test.median("attention_s"), 1e-9)
    tokens = test.n * test.batch
    gb_s = attended_bytes(engine, test.context) * tokens / took / 1e9
    gops = attention_operations(engine.model.graph, test.context) * tokens / took / 1e9
    median = max(test.median("seconds"), 1e-9)
    return {
        "attention_share": significant(took / median),
        "recurrent_share": significant(test.median("recurrent_s") / median),
        "attention_gb_s": None if test.prompt else significant(gb_s),
        "attention_of_bandwidth": None if test.prompt else significant(gb_s / limits.bandwidth),
        "attention_gops": significant(gops) if test.prompt else None,
        "attention_of_peak": significant(gops / limits.peak) if test.prompt else None,
    }
