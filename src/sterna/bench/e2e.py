"""End to end: prompt processing (pp) and generation (tg) in tokens per second, beside what the
machine's memory and its dot-product units allow, measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from sterna import _native, models
from sterna.bench.random_models import random_model
from sterna.engine import PREFILL_CHUNK, Engine
from sterna.engine import Sequence as EngineSequence
from sterna.errors import RequestError
from sterna.llm import BUILT_IN
from sterna.runtime import resolve_threads

__all__ = ["bytes_per_token", "operations_per_token", "run"]

BANDWIDTH_BYTES = 1 << 30
PROMPT_OF_TG = 32  # tokens in the cache before generation is timed
Progress = Callable[[str], None]


def run(
    model: str,
    *,
    format: str | None = None,
    head: str | None = None,
    pp: Sequence[int] = (128, 512),
    tg: Sequence[int] = (64,),
    threads: int | None = None,
    cores: str | None = None,
    isa: str | None = None,
    kv_dtype: str = "f16",
    repeat: int = 3,
    progress: Progress = lambda _: None,
) -> list[dict[str, Any]]:
    """Rows (one per test) with the fields that docs/benchmarks.md defines; medians of `repeat`.

    model: "random:SHAPE", a folder or a built-in name. progress is called with what is under way.
    """
    if repeat < 1 or any(n < 1 for n in (*pp, *tg)):
        raise RequestError("bench: pp, tg and repeat must be at least 1")
    progress(f"loading {model}")
    team = resolve_threads(threads, cores)
    engine = Engine(_open(model, format, head), threads=team, isa=isa, kv_dtype=kv_dtype)
    longest = max((*pp, *(n + PROMPT_OF_TG for n in tg)), default=0)
    if longest > engine.context:
        raise RequestError(f"bench: needs {longest} positions, but the context is {engine.context}")
    progress("measuring memory bandwidth and peak")
    bandwidth = _native.bandwidth_gb_s(engine.threads, BANDWIDTH_BYTES)
    peak = _native.peak_gops(engine.isa, engine.threads)
    tests: list[tuple[str, Callable[[], tuple[float, float]], int, float]] = []
    for n in pp:
        tests.append((f"pp{n}", lambda n=n: _prompt(engine, n), n, n / 2))  # type: ignore[misc]
    for n in tg:
        tests.append((f"tg{n}", lambda n=n: _generate(engine, n), n, PROMPT_OF_TG + n / 2))  # type: ignore[misc]
    _prompt(engine, min(32, engine.context))  # the pool starts, buffers are allocated
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in tests}
    for i in range(repeat):  # interleaved, so that drift of the machine meets all tests alike
        for name, test, _, _ in tests:
            progress(f"{name}, run {i + 1} of {repeat}")
            times[name].append(test())
    rows = []
    for name, _, n, context in tests:
        seconds = statistics.median(t for t, _ in times[name])
        ttft = statistics.median(first for _, first in times[name])
        row = _row(engine, name, n, context, seconds, bandwidth, peak)
        rows.append({**row, "model": model, "ttft_ms": round(ttft * 1e3, 2)})
    return rows


def _open(model: str, format: str | None, head: str | None) -> models.Model:
    if model.startswith("random:"):
        return random_model(
            model.removeprefix("random:"), format=format or "i2", head=head or "bf16"
        )
    return models.load(BUILT_IN.get(model, model), format=format, head=head, cached=False)


def _prompt(engine: Engine, n: int) -> tuple[float, float]:
    """(seconds, seconds to the first token) of a prompt of n tokens."""
    vocab = engine.model.config.vocab_size
    sequence = EngineSequence()
    begin = time.perf_counter()
    engine.prefill(sequence, [(i * 7919 + 1) % vocab for i in range(n)])
    took = time.perf_counter() - begin
    engine.release(sequence)
    return took, took


def _generate(engine: Engine, n: int) -> tuple[float, float]:
    """(seconds for n tokens, seconds to the first) after a prompt of PROMPT_OF_TG tokens."""
    vocab = engine.model.config.vocab_size
    sequence = EngineSequence()
    start = time.perf_counter()
    logits = engine.prefill(sequence, [(i * 7919 + 1) % vocab for i in range(PROMPT_OF_TG)])
    first = time.perf_counter() - start
    begin = time.perf_counter()
    for _ in range(n):
        logits = engine.step([(sequence, [int(logits.argmax())], 1)])[0][0]
    took = time.perf_counter() - begin
    engine.release(sequence)
    return took, first


def bytes_per_token(engine: Engine, context: float) -> float:
    """Bytes that one decode step reads: every weight and scale once, and the KV cache."""
    return engine.model.weight_bytes_per_token + engine.kv_bytes_per_position * context


def operations_per_token(engine: Engine, n: int, context: float) -> float:
    """Multiplications and additions of a prompt token; the head counts once in n."""
    c = engine.model.config
    linears = [op.weight for op in engine.model.graph.ops if op.kind == "linear" and op.weight]
    layers = 2.0 * sum(w.M * w.K for w in linears[:-1])
    head = 2.0 * linears[-1].M * linears[-1].K
    attention = 4.0 * c.n_layers * c.n_heads * c.head_dim * context
    return layers + attention + head / n


def _row(
    engine: Engine, name: str, n: int, context: float, seconds: float, bandwidth: float, peak: float
) -> dict[str, Any]:
    m = engine.model
    rate = n / seconds
    prompt = name.startswith("pp")
    gops = rate * operations_per_token(engine, n if prompt else 1, context) / 1e9
    # A prompt reads the layers once per step of PREFILL_CHUNK tokens.
    steps_per_s = rate / min(n, PREFILL_CHUNK) if prompt else rate
    attained = steps_per_s * bytes_per_token(engine, context) / 1e9
    return {
        "test": name,
        "model": "",
        "format": m.format,
        "head": m.head,
        "threads": engine.threads,
        "isa": engine.isa,
        "tok_s": round(rate, 2),
        "gops": round(gops, 1),
        "peak_gops": round(peak, 1),
        "fraction_of_peak": round(gops / peak, 4),
        "bytes_per_token": round(bytes_per_token(engine, context)),
        "bandwidth_gb_s": round(bandwidth, 2),
        "fraction_of_bandwidth": round(attained / bandwidth, 4),
        "rss_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        "ttft_ms": None,
    }
