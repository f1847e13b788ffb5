"""`Loaded`: a model, its tokenizer and its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sterna import loading, models
from sterna.chat import ChatTemplate
from sterna.checkpoints.resolve import resolve
from sterna.checks import checked_flag, checked_items, checked_name, checked_whole
from sterna.engine import (
    Engine,
    EngineLoop,
    PrefixCache,
    PrefixStore,
    Request,
    Scheduler,
)
from sterna.engine.constraints import Constraints
from sterna.errors import ContextError, RequestError, shown
from sterna.llm.adapters import Adapters
from sterna.llm.defaults import sampling_of, suppressed_of
from sterna.models.longer import Longer
from sterna.outputs import Completion
from sterna.runtime import resolve_threads

__all__ = ["Loaded"]

#: What a cache on disk takes by default.
CACHE_DISK_BYTES = 10 << 30
SPECULATE = ("auto", "lookup", "off")


class Loaded:
    """What an `LLM` has; its docstring has the arguments."""

    def __init__(
        self,
        model: str | Path = "nano",
        *,
        threads: int | None = None,
        cores: str | None = None,
        isa: str | None = None,
        format: str | None = None,
        head: str | None = None,
        context: int | None = None,
        rope_scaling: str | None = None,
        kv_dtype: str | None = None,
        kv_bytes: int | None = None,
        prefix_cache: bool = True,
        cache_disk: str | Path | None = None,
        cache_disk_max: int = CACHE_DISK_BYTES,
        deterministic: bool | None = None,
        activations: str | None = None,
        i2s: str | None = None,
        cache: bool = True,
        mmap: bool = False,
        speculate: str = "auto",
        draft: Loaded | None = None,
        adapter: str | Path | Mapping[str, str | Path] | None = None,
        chat_template: str | Path | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._caching = checked_flag("prefix_cache", prefix_cache)
        self._disk = _checked_folder(cache_disk, prefix_cache)
        self._disk_bytes = checked_whole("cache_disk_max", cache_disk_max, 0, 1 << 62)
        checked_flag("cache", cache)
        checked_flag("mmap", mmap)
        self._speculate = checked_name("speculate", speculate, SPECULATE)
        path = resolve(model, inspect=models.require_architecture)
        self.name = str(model)
        team = resolve_threads(threads, cores)
        loaded = loading.load(
            path, format=format, head=head, cached=cache, threads=team, i2s=i2s, progress=progress,
            longer=Longer.of(context, rope_scaling),
            # What is copied near threads needs no memory of its own besides.
            mmap=mmap or bool(team.nodes),
        )  # fmt: skip
        self.engine = Engine(
            loaded, threads=team, isa=isa, kv_dtype=kv_dtype, context=context,
            deterministic=deterministic, kv_bytes=kv_bytes, activations=activations,
        )  # fmt: skip
        beside = loaded.companions
        assert beside is not None  # as of every model that is loaded from a path
        self.tokenizer, self._token_settings = beside.tokenizer(), beside.tokenizer_config
        if chat_template is None:
            self.template = beside.template()
        else:
            self.template = ChatTemplate.chosen(chat_template, self._token_settings)
        self._defaults = sampling_of(beside.generation_config, beside.generation_file)
        self._suppressed = suppressed_of(
            beside.generation_config, loaded.config.vocab_size, beside.generation_file
        )
        self.tokenizer.check(loaded.config.vocab_size)
        self._draft = self._checked_draft(draft) if draft is not None else None
        self.adapters = Adapters(self.engine, self.name)
        self.adapters.begin(adapter)
        self.last = Completion()
        loaded.keep()

    @property
    def engine(self) -> Engine:
        """What computes; requests that run stay with the one that they began on."""
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine
        if self._speculate == "auto":
            _ = engine.mtp  # made now, and not in the time of a request
        store, cache = None, None
        if self._disk is not None:
            store = PrefixStore(self._disk, engine, self._disk_bytes)
        if self._caching:
            cache = PrefixCache(engine.pool, engine.cache_pages, store)
        #: Through which all requests of this LLM share its engine.
        self.engine_loop = EngineLoop(Scheduler(engine, prefix_cache=cache))

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        return self.engine.model.json

    @property
    def context(self) -> int:
        """Positions that a sequence may have."""
        return self.engine.context

    def info(self) -> dict[str, Any]:
        """What runs: model, architecture, isa, threads, format, head, kv_dtype, activations,
        (what layers of integers round their inputs to, else None), context, n_params,
        n_active_params (of its own experts alone, as a token needs them), bytes_per_token (weights
        and scales that a decode step reads), mmap (whether weights are mapped), pooling (of a model
        of embeddings, else None), sampling (`defaults`), adapters (what each says of its base, by
        name)."""
        m = self.engine.model
        return {
            "model": self.name,
            "architecture": m.config.architecture,
            "isa": self.engine.isa,
            "threads": self.engine.threads,
            "format": m.format,
            "head": m.head,
            "kv_dtype": self.engine.kv_dtype,
            "activations": self.engine.activations,
            "context": self.context,
            "n_params": m.n_params,
            "n_active_params": m.n_active_params,
            "bytes_per_token": m.weight_bytes_per_token,
            "mmap": m.mapped,
            "pooling": m.config.pooling.kind if m.config.pooling else None,
            "sampling": self.defaults,
            "adapters": {name: adapter.base for name, adapter in self.adapters.items()},
        }

    @cached_property
    def constraints(self) -> Constraints:
        """Makes constraints: llm.generate(..., constraint=llm.constraints.regex("[0-9]+"))"""
        return Constraints(self.tokenizer, self.engine.model.config.vocab_size)

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling options that the model's generation_config.json or GGUF file sets."""
        return dict(self._defaults)

    def _checked_draft(self, draft: Loaded) -> Loaded:
        if not isinstance(draft, Loaded):
            raise RequestError(f"draft: must be an LLM, but got {shown(draft)}")
        if draft.engine.state_bytes:
            raise RequestError(
                "draft: what it drafts is taken back, so it must not be recurrent, but got "
                f"{draft.name} for {self.name}; leave it out"
            )
        if not self.tokenizer.same_ids(draft.tokenizer):
            raise RequestError(
                f"draft: must have the tokens of {self.name}, but {draft.name} has others; use a "
                "smaller model of the same family"
            )
        return draft

    def _answers(self, requests: Sequence[Request]) -> list[Completion]:
        """Their answers; the first error of one is raised."""
        for request in self.engine_loop.finished(requests):
            if request.error is not None:
                raise request.error
        return [request.completion for request in requests]

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt) if prompt else []
        else:
            tokens = self._checked_ids("prompt", prompt)
        if not tokens:
            raise RequestError("prompt: must not be empty; give the model a text to continue")
        if len(tokens) > self.context:
            raise ContextError(
                f"prompt: must fit the context of {self.context} tokens, but has {len(tokens)}; "
                f"{self._more_context(len(tokens))}"
            )
        return tokens

    def _more_context(self, least: int) -> str:
        """What helps where so many positions are needed at least."""
        most = self.engine.model.config.max_position
        longer = f"set the context to {least} or more (the model has {most}), or "
        return f"{longer if least <= most else ''}shorten it"

    def _checked_ids(self, name: str, given: object) -> list[int]:
        vocab = self.engine.model.config.vocab_size
        ids: list[int] = []
        for t in checked_items(name, given, "a string or a sequence of token ids"):
            whole = isinstance(t, (int, np.integer)) and not isinstance(t, bool)
            if not whole or not 0 <= t < vocab:
                raise RequestError(
                    f"{name}: token ids must be whole numbers in 0..{vocab - 1}, but got {shown(t)}"
                )
            ids.append(int(t))
        return ids


def _checked_folder(folder: object, caching: bool) -> str | Path | None:
    """`cache_disk`; RequestError."""
    if folder is None:
        return None
    if not isinstance(folder, (str, Path)) or not str(folder) or "\0" in str(folder):
        raise RequestError(f"cache_disk: must be the path of a folder, but got {shown(folder)}")
    if not caching:
        raise RequestError("cache_disk: needs prefix_cache, but that is False; leave one out")
    return folder
