"""Metrics for Prometheus, with the names of vLLM's, but prefixed sterna_."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sterna.engine import SchedulerLoad
from sterna.outputs import Completion, Stats
from sterna.server.model_manager import LoadedModel, ModelManager

__all__ = ["Metrics"]

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
#: Counters: the field of `Stats` that each sums, and its description.
TOKENS = {
    "prompt_tokens": ("n_prompt", "Prompt tokens."),
    "generation_tokens": ("n_generated", "Generated tokens."),
    "prefix_cache_queries": ("n_prompt", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("n_cached", "Prompt tokens found in the prefix cache."),
    "spec_decode_num_draft_tokens": ("n_drafted", "Draft tokens."),
    "spec_decode_num_accepted_tokens": ("n_accepted", "Draft tokens that were accepted."),
    "head_rows_rescored": (
        "head_rows_rescored",
        "Rows of an exact head that were computed in float.",
    ),
}
#: Histograms: the seconds of a `Stats` that each counts, and its buckets.
TIMES: dict[str, tuple[Callable[[Stats], float | None], tuple[float, ...]]] = {
    "time_to_first_token_seconds": (lambda s: s.ttft_s, SECONDS),
    "request_queue_time_seconds": (lambda s: s.queue_s, SECONDS),
    "request_prefill_time_seconds": (lambda s: s.ttft_s - s.queue_s, SECONDS),
    "request_decode_time_seconds": (lambda s: s.decode_s, SECONDS),
    "e2e_request_latency_seconds": (lambda s: s.total_s, SECONDS),
    "request_time_per_output_token_seconds": (
        lambda s: s.decode_s / (s.n_generated - 1) if s.n_generated > 1 else None,
        TOKEN_SECONDS,
    ),
}
#: Gauges: name, description, and value of a `SchedulerLoad`.
GAUGES: tuple[tuple[str, str, Callable[[SchedulerLoad], float]], ...] = (
    ("num_requests_running", "Requests that are running.", lambda x: x.running),
    ("num_requests_waiting", "Requests that wait to run.", lambda x: x.waiting),
    ("waiting_tokens", "Prompt tokens that wait to be computed.", lambda x: x.waiting_tokens),
    (
        "predicted_wait_seconds",
        "Predicted seconds until these are computed.",
        lambda x: x.predicted_s,
    ),
    ("kv_cache_usage_ratio", "Share of KV cache pages in use.", lambda x: x.pages_used / x.pages),
    ("kv_cache_pages", "KV cache pages.", lambda x: x.pages),
    ("kv_cache_pages_cached", "KV cache pages kept of earlier requests.", lambda x: x.cached_pages),
)


#: Gauges of memory: name, description, and bytes.
BYTES: tuple[tuple[str, str, Callable[[LoadedModel, SchedulerLoad], float]], ...] = (
    ("model_bytes", "Bytes of the weights of layers and head.", lambda x, _: x.weight_bytes),
    (
        "kv_cache_max_bytes",
        "Bytes that keys and values may take at most (--cache-ram).",
        lambda x, _: x.kv_bytes,
    ),
    (
        "kv_cache_running_bytes",
        "Bytes of the keys and values of running requests.",
        lambda x, load: load.pages_used * x.llm.engine.kv_cache.page_bytes,
    ),
    (
        "kv_cache_cached_bytes",
        "Bytes of the keys and values of cached prefixes, which running requests may share.",
        lambda x, load: load.cached_pages * x.llm.engine.kv_cache.page_bytes,
    ),
    (
        "image_bytes",
        "Bytes of features of images, and of the image that is being encoded.",
        lambda _, load: load.image_bytes,
    ),
)


_Count = Literal["hits", "misses", "bytes", "guessed", "guessed_right", "waited_s"]

#: Counters of weights that stay on disk: name, description, and field of the cache's counts.
ON_DISK: tuple[tuple[str, str, _Count], ...] = (
    ("weight_cache_hits", "Parts of weights that were in memory when needed.", "hits"),
    ("weight_cache_misses", "Parts of weights that had to be read from disk.", "misses"),
    ("weight_read_bytes", "Bytes of weights read from disk.", "bytes"),
    ("weight_guesses", "Parts of experts, absent, that the next router may choose.", "guessed"),
    ("weight_guesses_right", "Those of them that it chose.", "guessed_right"),
    ("weight_wait_seconds", "Seconds that threads waited for these reads.", "waited_s"),
)


class Metrics:
    """The metrics of one server, in their own registry."""

    def __init__(self, models: ModelManager) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Loads(models))
        ProcessCollector(registry=self._registry)  # process_resident_memory_bytes and others
        self._tokens = {
            name: Counter(f"sterna_{name}", text, ["model_name"], registry=self._registry)
            for name, (_, text) in TOKENS.items()
        }
        self._times = {
            name: Histogram(
                f"sterna_{name}",
                "Seconds.",
                ["model_name"],
                buckets=buckets,
                registry=self._registry,
            )
            for name, (_, buckets) in TIMES.items()
        }
        self._ended = Counter(
            "sterna_request_success",
            "Answers that have ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._http = Counter(
            "sterna_http_requests",
            "Responses.",
            ["method", "handler", "status"],
            registry=self._registry,
        )

        self._unknown = Counter(
            "sterna_unknown_fields",
            "Fields of requests that were left out.",
            ["handler"],
            registry=self._registry,
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def count_response(self, method: str, handler: str, status: int) -> None:
        """Count a response. handler: the path of the route, so that clients cannot add labels."""
        self._http.labels(method, handler, str(status)).inc()

    def count_unknown_fields(self, handler: str, n: int) -> None:
        """Count fields of a request that no endpoint knows. handler: the path of the route."""
        self._unknown.labels(handler).inc(n)

    def record(self, model: str, completions: Iterable[Completion]) -> None:
        """Count answers that have ended."""
        for done in completions:
            self._ended.labels(model, done.finish_reason).inc()
            for name, (field, _) in TOKENS.items():
                self._tokens[name].labels(model).inc(getattr(done.stats, field))
            if done.stats.n_generated:
                self._observe(model, done.stats)

    def _observe(self, model: str, stats: Stats) -> None:
        for name, (seconds, _) in TIMES.items():
            value = seconds(stats)
            if value is not None:
                self._times[name].labels(model).observe(max(0.0, value))


class _Loads(Collector):
    """The load of each engine at the time of the scrape."""

    def __init__(self, models: ModelManager) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        every = list(self._models.loaded.items())
        loads = [(name, loaded.engine.load()) for name, loaded in every]
        for name, text, value in GAUGES:
            family = GaugeMetricFamily(f"sterna_{name}", text, labels=["model_name"])
            for model, load in loads:
                family.add_metric([model], value(load))
            yield family
        errors = CounterMetricFamily(
            "sterna_disk_cache_errors",
            "Pages that could not be written to --cache-disk.",
            labels=["model_name"],
        )
        for model, load in loads:
            errors.add_metric([model], load.disk_errors)
        yield errors
        counts = [
            (name, loaded.llm.model.weight_cache.counts)
            for name, loaded in every
            if loaded.llm.model.weight_cache is not None
        ]
        for name, text, key in ON_DISK:
            counter = CounterMetricFamily(f"sterna_{name}", text, labels=["model_name"])
            for model, of_model in counts:
                counter.add_metric([model], of_model[key])
            yield counter
        for name, text, nbytes in BYTES:
            family = GaugeMetricFamily(f"sterna_{name}", text, labels=["model_name"])
            for (model, loaded), (_, load) in zip(every, loads, strict=True):
                family.add_metric([model], nbytes(loaded, load))
            yield family
