"""`Asking`: prompts and options become requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sterna.checks import checked_flag, checked_whole
from sterna.engine import Request
from sterna.engine.drafts import (
    LONG,
    SHORT,
    DraftModel,
    Forced,
    Prediction,
    PromptLookup,
    Source,
    Speculation,
)
from sterna.engine.guide import Guide
from sterna.engine.mtp import MtpLayer
from sterna.errors import RequestError, shown
from sterna.llm.templates import Templates
from sterna.sampling_params import SamplingParams

__all__ = ["Asking"]

#: Options that are no `SamplingParams`.
BESIDE = ("prediction", "constraint", "adapter")
MAX_CHOICES = 1024


class Asking(Templates):
    """The part of an `LLM` that makes requests for its scheduler."""

    def requests(
        self,
        prompt: str | Sequence[int],
        n: int,
        options: Mapping[str, Any],
        *,
        chat: bool = False,
        **place: Any,
    ) -> list[Request]:
        """Requests for n answers to a prompt, for an `EngineLoop`; options as in `generate`.

        chat: whether the end of a turn ends an answer, too; place: arguments of `Request`.
        """
        checked_whole("n", n, 1, MAX_CHOICES)
        tokens, (params, beside) = self._encode(prompt), self._split(options)
        ends = self._turn_ends if checked_flag("chat", chat) else frozenset[int]()
        choices = [params] if n == 1 else [replace(params, choice=i) for i in range(n)]
        return [self._request(tokens, one, beside, ends, place) for one in choices]

    def check_options(self, options: Mapping[str, Any]) -> None:
        """RequestError unless these are options that `generate` takes."""
        if not isinstance(options, Mapping):
            raise RequestError(f"options: must be a mapping, but got {shown(options)}")
        _, beside = self._split(options)
        self.adapters.chosen(beside.get("adapter"))
        self.constraints.guide(beside.get("constraint"))
        self._predicted(beside.get("prediction"))

    def _request(
        self,
        tokens: list[int],
        params: SamplingParams,
        beside: Mapping[str, Any],
        ends: frozenset[int],
        place: Mapping[str, Any],
    ) -> Request:
        """A request whose answer ends with the tokenizer's ends, and with others.

        beside: the options that are no `SamplingParams`; place: other arguments of `Request`.
        """
        if self.engine.model.config.pooling is not None:
            raise RequestError(f"generate: {self.name} makes vectors of texts, not text; use embed")
        ends = frozenset() if params.ignore_eos else ends.union(self.tokenizer.eos_ids)
        most = min(params.max_tokens, max(1, self.context - len(tokens)))
        guide = self.constraints.guide(beside.get("constraint"), most)
        drafts = self._speculation(len(tokens), params, beside.get("prediction"), guide)
        adapter = self.adapters.chosen(beside.get("adapter"))
        return Request(
            tokens, params, self.tokenizer, context=self.context, ends=ends, adapter=adapter,
            vocab=self.engine.model.config.vocab_size, guide=guide, speculation=drafts, **place,
        )  # fmt: skip

    def _split(self, options: Mapping[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
        """Options of `generate`: how to sample, and the others."""
        beside = {name: options[name] for name in BESIDE if name in options}
        return self._params({k: v for k, v in options.items() if k not in BESIDE}), beside

    def _params(self, options: dict[str, Any]) -> SamplingParams:
        known = set(SamplingParams.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            names = ", ".join(sorted(known.union(BESIDE)))
            raise RequestError(f"options: must be among {names}, but got {shown(unknown[0])}")
        given = {
            k: v.item() if isinstance(v, np.generic) else v
            for k, v in options.items()
            if v is not None or k == "stop"
        }
        given["stop"] = SamplingParams.stops(given.get("stop"))
        given.setdefault("seed", SamplingParams.fresh_seed())
        params = SamplingParams(**{**self._defaults, **given})
        if not self._suppressed:
            return params
        return replace(params, bad_words=(*params.bad_words, *self._suppressed))

    def _predicted(self, prediction: str | Sequence[int] | None) -> list[int]:
        """Tokens of the text that an answer may have; RequestError."""
        if isinstance(prediction, str):
            return self.tokenizer.encode(prediction, add_special=False)
        return [] if prediction is None else self._checked_ids("prediction", prediction)

    def _speculation(
        self,
        n_prompt: int,
        params: SamplingParams,
        prediction: str | Sequence[int] | None,
        guide: Guide | None,
    ) -> Speculation | None:
        """Where drafts of an answer come from; None: there are none."""
        text = self._predicted(prediction)
        if self._speculate == "off":
            return None
        sources: list[Source] = [Forced(guide)] if guide else []
        sources += [Prediction(n_prompt, text[: self.context])] if text else []
        sources.append(PromptLookup(LONG))
        own = replace(params, logprobs=0).native
        if self._speculate == "auto" and self._draft is None and self.engine.mtp is not None:
            sources.append(MtpLayer(self.engine, own, n_prompt))
        sources.append(PromptLookup(SHORT))
        if self._draft is not None and self._speculate == "auto":
            engine, mine = self._draft.engine, self.engine.model.weight_bytes_per_token
            cost = engine.model.weight_bytes_per_token / mine
            sources.append(DraftModel(engine, own, n_prompt, cost))
        return Speculation(sources, self.engine)
