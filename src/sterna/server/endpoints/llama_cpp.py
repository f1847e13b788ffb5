"""llama.cpp's own /completion, /infill and /props."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import Response

from sterna import __version__
from sterna.outputs import Completion, Piece
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError, field_error
from sterna.server.fill_in_the_middle import fill_prompt
from sterna.server.json_body import read
from sterna.server.llama_cpp_options import completion_options, default_options, generation_settings
from sterna.server.logprob_format import chat_logprob
from sterna.server.responder import respond
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sampling_fields import SamplingFields, checked_timeout
from sterna.server.service import Service
from sterna.server.sse import event
from sterna.server.structured_outputs import asked_of, constraint_for
from sterna.server.submission import submit_prompts

MAX_PROBS = 100


class LlamaCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """A prompt to continue: a text or token ids."""

    protocol: ClassVar[str] = "completions"
    prompt: str | list[int | str] = ""
    n_predict: int | None = None
    n_probs: int = 0
    return_tokens: bool = False


class InfillRequest(LlamaCompletionRequest, kw_only=True, forbid_unknown_fields=True):
    """The texts before and after the middle, how it begins, and other files."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, str]] | None = None


async def completion(request: Request) -> Response:
    """Continue a prompt, whole or as a stream."""
    return await _answer(request, await read(request, LlamaCompletionRequest))


async def infill(request: Request) -> Response:
    """Fill in the middle of a text, whole or as a stream."""
    return await _answer(request, await read(request, InfillRequest))


async def _answer(request: Request, body: LlamaCompletionRequest) -> Response:
    service = service_of(request)
    active = await service.begin(request, body.model, "llama", body)
    responder = LlamaResponder(body, active, service)
    return await respond(request, active, responder, bool(body.stream))


class LlamaResponder:
    """The response to a completion request of llama.cpp's form."""

    def __init__(
        self, body: LlamaCompletionRequest, active: ActiveRequest, service: Service
    ) -> None:
        self.body = body
        self.active = active
        self._service = service
        if not 0 <= body.n_probs <= MAX_PROBS:
            raise field_error("n_probs", f"must lie in 0..{MAX_PROBS}")
        if body.n_predict is not None:
            body.max_tokens = body.n_predict
        self._options = completion_options(
            body, active.model.llm, body.n_probs, active.warnings.append
        )
        self._deadline_s = checked_timeout(body, service.settings.timeout)

    async def submit(self) -> None:
        """Submit the prompt to the engine."""
        constraint = await constraint_for(self.active, asked_of(self.body))
        options = {**self._options, **self.active.options(constraint)}
        await submit_prompts(
            self.active,
            lambda: [self._encode()],
            options,
            salt=self.body.cache_salt or "",
            deadline_s=self._deadline_s,
        )

    def _encode(self) -> list[int]:
        body, llm = self.body, self.active.model.llm
        if isinstance(body, InfillRequest):
            begun = body.prompt if isinstance(body.prompt, str) else ""
            ids = fill_prompt(llm, body.input_prefix, body.input_suffix, begun)
            extra = "".join(f"{one.get('text', '')}\n" for one in body.input_extra or ())
            return [*llm.tokenizer.encode(extra), *ids] if extra else ids
        parts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        encoded: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                encoded += llm.tokenizer.encode(part, add_special=i == 0)
            else:
                encoded.append(part)
        return encoded

    def _token(self, piece: Piece) -> dict[str, Any]:
        if not self.body.n_probs or piece.logprob is None:
            return {}
        return {"completion_probabilities": [self._probabilities(piece.logprob)]}

    def _probabilities(self, logprob: Any) -> dict[str, Any]:
        tokenizer = self.active.model.llm.tokenizer
        return {"id": logprob.token, **chat_logprob(tokenizer, logprob, self.body.n_probs)}

    def _ended(self, done: Completion) -> dict[str, Any]:
        """Return the fields of the last chunk, or of the whole answer, except the text."""
        stats, kinds = done.stats, {"length": "limit", "stop": "eos"}
        computed, word = stats.n_prompt - stats.n_cached, done.stop_string
        kind = "word" if word is not None else kinds.get(done.finish_reason, "limit")
        return {
            "stop": True,
            "id_slot": self.active.slot,
            "model": self.active.name,
            "tokens_predicted": stats.n_generated,
            "tokens_evaluated": stats.n_prompt,
            "tokens_cached": stats.n_cached,
            "truncated": False,
            "has_new_line": "\n" in done.text,
            "stop_type": kind,
            "stopping_word": word or "",
            "generation_settings": self._settings(),
            "timings": {
                "cache_n": stats.n_cached,
                "prompt_n": computed,
                "prompt_ms": 1e3 * stats.ttft_s,
                "prompt_per_second": computed / stats.ttft_s if stats.ttft_s else 0.0,
                "predicted_n": stats.n_generated,
                "predicted_ms": 1e3 * stats.decode_s,
                "predicted_per_second": stats.decode_tok_s,
            },
        }

    def _settings(self) -> dict[str, Any]:
        body, active = self.body, self.active
        return generation_settings(
            active.model.llm,
            self._options,
            self._service.lora.used_by(active),
            stream=bool(body.stream),
            grammar=body.grammar or "",
        )

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return event(error.body())

    async def full(self) -> dict[str, Any]:
        """Return the whole answer."""
        (done,) = await self.active.result()
        probabilities = {}
        if self.body.n_probs:
            rows = [self._probabilities(one) for one in done.logprobs]
            probabilities = {"completion_probabilities": rows}
        tokens = done.tokens if self.body.return_tokens else []
        text = self.active.model.llm.tokenizer.decode(self.active.prompts[0], skip_special=False)
        head = {"index": 0, "content": done.text, "tokens": tokens, "prompt": text}
        return {**head, **probabilities, **self._ended(done)}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield a chunk for each piece, and one with the counts."""
        async for _, piece in self.active.pieces():
            head = {"index": 0, "content": piece.text, "tokens": [piece.token], "stop": False}
            yield event({**head, **self._token(piece)})
        (done,) = self.active.completions
        yield event({"index": 0, "content": "", "tokens": [], **self._ended(done)})


async def props(request: Request) -> Response:
    """Return the properties of the server and of a model, the default one if none is named."""
    service = service_of(request)
    name = request.query_params.get("model")
    async with service.models.use(name) as loaded:
        llm = loaded.llm
        params = generation_settings(llm, {**default_options(llm), **llm.defaults})
        settings = {"n_ctx": llm.context, "params": params}
        return as_json(
            {
                "default_generation_settings": settings,
                "total_slots": service.slots.count,
                "model_alias": loaded.name,
                "model_path": loaded.name,  # clients never see paths
                "chat_template": llm.template.source if llm.template else "",
                "modalities": {"vision": llm.renderer.images.sees, "audio": False},
                "build_info": f"sterna {__version__}",
                "is_sleeping": False,
            }
        )


ENDPOINTS = [
    Endpoint(
        "POST", "/completion", completion, "Continues a prompt (llama.cpp).", LlamaCompletionRequest
    ),
    Endpoint("POST", "/infill", infill, "Fills in the middle (llama.cpp).", InfillRequest),
    Endpoint("GET", "/props", props, "Properties of the server (llama.cpp)."),
]
