"""POST /v1/completions: continues prompts, or scores them (`echo` with `logprobs`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from sterna.llm import LLM
from sterna.outputs import Completion, TokenLogprob
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError, field_error
from sterna.server.fill_in_the_middle import fill_prompt
from sterna.server.json_body import read
from sterna.server.logprob_format import TextLogprobs
from sterna.server.responder import respond
from sterna.server.routing import Endpoint, service_of
from sterna.server.sampling_fields import (
    SamplingFields,
    checked_n,
    checked_priority,
    checked_timeout,
    sampling_options,
)
from sterna.server.service import Service
from sterna.server.sse import DONE, event
from sterna.server.structured_outputs import asked_of, constraint_for
from sterna.server.submission import submit_prompts

MAX_TOKENS = 16  #: the default, as OpenAI defines it
MAX_PROMPTS = 256
MAX_LOGPROBS = 100


class CompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """A request to continue prompts: texts, token ids, or lists of both."""

    protocol: ClassVar[str] = "completions"
    prompt: str | list[int | str | list[int]]
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None
    add_special_tokens: bool = True


async def completions(request: Request) -> Response:
    """Continue prompts, whole or as a stream."""
    body = await read(request, CompletionRequest)
    service = service_of(request)
    active = await service.begin(request, body.model, "cmpl", body)
    return await respond(
        request, active, CompletionResponder(body, active, service), bool(body.stream)
    )


class CompletionResponder:
    """The response to a completion request. The choices of a prompt are consecutive."""

    def __init__(self, body: CompletionRequest, active: ActiveRequest, service: Service) -> None:
        self.body = body
        self.active = active
        self.service = service
        self.llm: LLM = active.model.llm
        self.n: int = checked_n(body)
        _check(body, self.n)
        self.prompts: list[list[int]] = []
        self.scores: list[list[TokenLogprob | None]] = []

    async def submit(self) -> None:
        """Score the prompts if asked to, and submit them to the engine."""
        body, active = self.body, self.active
        self.prompts = await asyncio.to_thread(_prompts, self.llm, body)
        constraint = await constraint_for(active, asked_of(body), body.response_format)
        timeout = checked_timeout(body, self.service.settings.timeout)
        logprobs = 0 if body.logprobs is None else max(1, body.logprobs)
        options = sampling_options(body, self.llm, MAX_TOKENS, logprobs)
        options |= active.options(constraint)
        if self._scored and options["max_tokens"] == 1:
            # lm-eval expects an entry for the token even if it ends the text.
            options["ignore_eos"] = True
        if self._scored:
            self.service.limits.require_room(active.model.engine.load(), len(self.prompts))
            score = partial(active.model.engine.score, adapter=active.adapter)
            key = active.key
            scored = [score(prompt, logprobs, key=key) for prompt in self.prompts]
            self.scores = await active.run(asyncio.gather(*scored))
        await submit_prompts(
            active,
            lambda: self.prompts,
            options,
            self.n,
            salt=body.cache_salt or body.prompt_cache_key or "",
            priority=checked_priority(body),
            deadline_s=timeout,
        )

    @property
    def _scored(self) -> bool:
        return self.body.echo and self.body.logprobs is not None

    def _echo(self, choice: int) -> tuple[str, TextLogprobs | None]:
        """Return the prompt and its log-probabilities, as far as a choice repeats them."""
        prompt = self.prompts[choice // self.n]
        text = self.llm.tokenizer.decode(prompt) if self.body.echo else ""
        if self.body.logprobs is None:
            return text, None
        logprobs = TextLogprobs(self.llm.tokenizer, self.body.logprobs)
        if self.body.echo:
            logprobs.extend(prompt, self.scores[choice // self.n])
        return text, logprobs

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return event(error.body())

    async def full(self) -> dict[str, Any]:
        """Return the response with all choices."""
        done = await self.active.result()
        choices = []
        for i, one in enumerate(done):
            text, logprobs = self._echo(i)
            if logprobs is not None:
                for entry in one.logprobs:
                    logprobs.add(entry.token, entry)
            choice = {
                "index": i,
                "text": text + one.text,
                "logprobs": logprobs.take() if logprobs else None,
                "finish_reason": self._finish(one),
            }
            choices.append({**choice, **self._ids(i, one.tokens)})
        return {
            **await self.active.head("text_completion"),
            "choices": choices,
            "usage": self.active.usage(),
            "receipt": self.active.receipt(),
        }

    def _ids(self, choice: int, tokens: list[int], first: bool = True) -> dict[str, Any]:
        """Return the ids of tokens and, with a choice's first ones, of its prompt, if asked for."""
        if not self.body.return_token_ids:
            return {}
        prompt = {"prompt_token_ids": self.prompts[choice // self.n]} if first else {}
        return {**prompt, "token_ids": tokens}

    def _finish(self, done: Completion) -> str:
        ended = done.tokens[-1:] and done.tokens[-1] in self.llm.tokenizer.eos_ids
        return "stop" if ended and self.body.ignore_eos is not True else done.finish_reason

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks: the pieces, the finish reasons, and the usage if asked for."""
        head = await self.active.head("text_completion")
        asked = self.body.stream_options
        wants_usage = asked is not None and asked.include_usage
        if wants_usage:
            head["usage"] = None

        def chunk(i: int, text: str, logprobs: Any, finish: str | None, more: Any) -> bytes:
            choice = {"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish}
            if asked is not None and wants_usage and asked.continuous_usage_stats:
                head["usage"] = self.active.usage()
            return event({**head, "choices": [{**choice, **more}]})

        logprobs: list[TextLogprobs | None] = []
        begun: set[int] = set()  # choices whose prompt was sent
        for i in range(len(self.prompts) * self.n):
            text, echoed = self._echo(i)
            logprobs.append(echoed)
            if self.body.echo:
                begun.add(i)
                yield chunk(i, text, echoed.take() if echoed else None, None, self._ids(i, []))
        async for i, piece in self.active.pieces():
            echoed = logprobs[i]
            if echoed is not None and piece.logprob is not None:
                echoed.add(piece.logprob.token, piece.logprob)
            if piece.text or echoed is not None or self.body.return_token_ids:
                ids = self._ids(i, [piece.token], i not in begun)
                begun.add(i)
                yield chunk(i, piece.text, echoed.take() if echoed else None, None, ids)
        *before, last = enumerate(self.active.completions)
        for i, done in before:
            yield chunk(i, "", None, self._finish(done), {})
        head["receipt"] = self.active.receipt()
        yield chunk(last[0], "", None, self._finish(last[1]), {})
        if wants_usage:
            yield event({**head, "choices": [], "usage": self.active.usage()})
        yield DONE


def _check(body: CompletionRequest, n: int) -> None:
    if body.best_of not in (None, n):
        raise field_error("best_of", f"must equal n or be omitted, but got {body.best_of}")
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise field_error("logprobs", f"must lie in 0..{MAX_LOGPROBS}, but got {body.logprobs}")
    if body.suffix is not None and body.echo:
        raise field_error("suffix", "cannot be combined with echo")


def _prompts(llm: LLM, body: CompletionRequest) -> list[list[int]]:
    """Return the token ids of each prompt. The engine checks the ids."""
    prompts: Any = body.prompt
    if isinstance(prompts, str) or (prompts and all(isinstance(p, int) for p in prompts)):
        prompts = [prompts]
    if any(isinstance(p, int) for p in prompts):
        raise field_error("prompt", "must be a text, token ids, or a list of either, but got both")
    if not prompts or len(prompts) > MAX_PROMPTS:
        raise field_error("prompt", f"must be 1 to {MAX_PROMPTS} prompts, but got {len(prompts)}")
    encode = llm.tokenizer.encode
    if body.suffix is not None:
        return [fill_prompt(llm, prompt, body.suffix) for prompt in prompts]
    return [encode(p, body.add_special_tokens) if isinstance(p, str) else p for p in prompts]


ENDPOINTS = [
    Endpoint("POST", "/v1/completions", completions, "Continues prompts.", CompletionRequest)
]
