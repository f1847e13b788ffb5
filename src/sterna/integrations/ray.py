"""Sterna on Ray: `build_app` for Serve, `Predictor` for `Dataset.map_batches`.

Weights do not go through the object store: every actor opens the model by its path or name, which
must mean the same on every node. All actors compute the same bits, so a row does not change if Ray
computes it again on another node. Needs `pip install 'sterna[ray]'`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from sterna.engine import Request
from sterna.errors import RequestError, shown
from sterna.llm import LLM
from sterna.llm.chat_request import ChatRequest

__all__ = ["Predictor", "build_app"]


class Predictor:
    """A class for `map_batches` that answers the prompts of a batch; an actor opens the model once.

    >>> ds.map_batches(Predictor, concurrency=2, num_cpus=8, batch_size=64,
    ...                fn_constructor_kwargs={"model": "nano", "threads": 8})

    It adds the columns OUTPUT (text), OUTPUT_finish_reason and OUTPUT_tokens (their number).

    Args:
        model: A name, file or folder, as for `LLM`.
        threads: Threads of an actor. Ray does not keep an actor to its CPUs.
        cores: The CPUs of an actor, for nodes that have other work.
        column: The column of prompts, or, with chat=True, of lists of messages.
        output: The column of answers, and the prefix of the two others.
        options: Of `LLM.generate`, or with chat of `LLM.chat`. The default seed is 0, so that a row
            computed again is the same.
        model_options: Of `LLM`.
    """

    def __init__(
        self,
        model: str,
        *,
        threads: int,
        cores: str | None = None,
        column: str = "prompt",
        output: str = "text",
        chat: bool = False,
        options: Mapping[str, Any] | None = None,
        model_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._llm = LLM(model, threads=threads, cores=cores, **(model_options or {}))
        self._column, self._output, self._chat = column, output, chat
        self._options = {"seed": 0, **(options or {})}
        self._llm.requests.check_options(self._options, chat)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with its answers; RequestError without the column, or for a prompt."""
        if self._column not in batch:
            raise RequestError(
                f"column: must be one of {', '.join(batch)}, but got {shown(self._column)}"
            )
        rows = list(batch[self._column])
        requests = [self._request(one) for one in rows]
        for request in self._llm.engine_loop.finished(requests):
            if request.error is not None:
                raise request.error
        done = [request.completion for request in requests]
        return {
            **batch,
            self._output: [one.text for one in done],
            f"{self._output}_finish_reason": [one.finish_reason for one in done],
            f"{self._output}_tokens": [len(one.tokens) for one in done],
        }

    def _request(self, row: Any) -> Request:
        requests = self._llm.requests
        if self._chat:
            return requests.make_chat(ChatRequest.of_options(list(row), self._options))[0]
        return requests.make(str(row), self._options)


def build_app(
    model: str,
    *,
    threads: int,
    cores: str | None = None,
    served_name: str | None = None,
    api_keys: tuple[str, ...] = (),
    max_ongoing_requests: int = 256,
    by_session: bool = False,
    deployment_options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
) -> Any:
    """Build an application for `ray.serve.run`: each replica is the server of `sterna serve`.

    Args:
        model: A name, file or folder, as for `LLM`.
        threads: Threads of a replica, and the CPUs that Ray counts for it.
        cores: The CPUs of a replica.
        served_name: The model's name for clients, by default `model`.
        api_keys: Keys that clients may use; none: all clients are accepted.
        max_ongoing_requests: Requests that Serve gives a replica at a time. The engine computes
            them together, so choose a large number.
        by_session: Send requests with the same `x-session-id` to the same replica, which has the
            beginning of their prompts in its cache; if it is full, to one of two others. Raises
            RequestError if Ray is too old.
        deployment_options: Of `serve.deployment`: num_replicas, autoscaling_config, …
        settings: Fields of `sterna.server.settings.Settings`.
        model_options: Of `LLM`.
    """
    from ray import serve

    fields = {"api_keys": api_keys, "hosts": ("*",), **(settings or {})}
    opener = partial(LLM, model, threads=threads, cores=cores, **(model_options or {}))
    build = partial(_app, served_name or model, opener, fields)
    options = {
        "name": "sterna",
        "ray_actor_options": {"num_cpus": threads},
        "max_ongoing_requests": max_ongoing_requests,
        **({"request_router_config": _sessions()} if by_session else {}),
        **(deployment_options or {}),
    }
    deployment: Any = serve.deployment(serve.ingress(_named(build))(), **options)
    return deployment.bind()


def _sessions() -> Any:
    """Configure Ray's own router by sessions, which chooses replicas by consistent hashing."""
    from ray import __version__
    from ray.serve.config import RequestRouterConfig

    if find_spec("ray.serve.experimental.consistent_hash_router") is None:
        raise RequestError(
            f"by_session: must have a Ray with ConsistentHashRouter, but this is {__version__}; "
            "pip install -U ray"
        )
    router: Any = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
    return RequestRouterConfig(request_router_class=router)


def _app(name: str, opener: Callable[[], LLM], fields: Mapping[str, Any]) -> Any:
    """Create the ASGI app, in the process that runs it."""
    from sterna.server.app import create_app
    from sterna.server.model_manager import ModelManager, ModelSource
    from sterna.server.service import Service
    from sterna.server.settings import Settings

    return create_app(Service(Settings(**fields), ModelManager({name: ModelSource(opener)}, {})))


def _named(build: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function of a partial, since Serve asks a builder for its name and signature."""

    def build_sterna() -> Any:
        return build()

    return build_sterna
