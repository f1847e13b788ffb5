"""Figures for Prometheus, in the words that vLLM's dashboards know, under the name sterna_."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sterna.engine import SchedulerLoad
from sterna.outputs import Completion, Stats
from sterna.server.model_manager import ModelManager

__all__ = ["Metrics"]

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
#: What is counted of each request, and the field of `Stats`.
TOKENS = {
    "prompt_tokens": ("n_prompt", "Tokens of prompts."),
    "generation_tokens": ("n_generated", "Tokens of answers."),
    "prefix_cache_queries": ("n_prompt", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("n_cached", "Tokens of prompts that were not computed again."),
    "spec_decode_num_draft_tokens": ("n_drafted", "Tokens that were guessed."),
    "spec_decode_num_accepted_tokens": ("n_accepted", "Tokens that were guessed rightly."),
    "head_rows_rescored": ("head_rows_rescored", "Rows of an exact head computed as floats."),
}
#: What is timed of each request, and the seconds of a `Stats`.
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
#: Gauges and the field of `SchedulerLoad` that each shows.
GAUGES: tuple[tuple[str, str, Callable[[SchedulerLoad], float]], ...] = (
    ("num_requests_running", "Requests that have pages.", lambda x: x.running),
    ("num_requests_waiting", "Requests that have none yet.", lambda x: x.waiting),
    ("waiting_tokens", "Tokens of prompts to be computed.", lambda x: x.waiting_tokens),
    ("predicted_wait_seconds", "Until these are computed.", lambda x: x.predicted_s),
    ("kv_cache_usage_ratio", "Pages in use, of all.", lambda x: x.pages_used / x.pages),
    ("kv_cache_pages", "Pages.", lambda x: x.pages),
    ("kv_cache_pages_cached", "Pages kept of earlier requests.", lambda x: x.cached_pages),
)


class Metrics:
    """The figures of one server, in a registry of their own."""

    def __init__(self, models: ModelManager) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Loads(models))
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
            "sterna_request_success", "Answers that ended.", ["model_name", "finished_reason"],
            registry=self._registry,
        )  # fmt: skip
        self._http = Counter(
            "sterna_http_requests", "Responses.", ["method", "handler", "status"],
            registry=self._registry,
        )  # fmt: skip

    def text(self) -> bytes:
        """All of them, in the text format."""
        return generate_latest(self._registry)

    def count_response(self, method: str, handler: str, status: int) -> None:
        """A response; handler: the route's path, so that clients cannot make up names."""
        self._http.labels(method, handler, str(status)).inc()

    def record(self, model: str, completions: Iterable[Completion]) -> None:
        """What became of an answer."""
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
    """How busy engines are at the moment when somebody asks."""

    def __init__(self, models: ModelManager) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        loads = [(name, loaded.engine.load()) for name, loaded in list(self._models.loaded.items())]
        for name, text, value in GAUGES:
            family = GaugeMetricFamily(f"sterna_{name}", text, labels=["model_name"])
            for model, load in loads:
                family.add_metric([model], value(load))
            yield family
