"""`RequestFactory`: prompts and options become requests of the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sterna.chat.clock import clock
from sterna.checks import checked_whole
from sterna.engine import PREFILL_CHUNK, Engine, PromptLogprobsRequest, Request
from sterna.engine.decoding.constraints import Constraint, Constraints
from sterna.engine.decoding.draft_sources import (
    LONG,
    SHORT,
    DraftModel,
    ForcedTokens,
    PredictedOutput,
    PromptLookup,
)
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.mtp_drafts import MtpDrafts
from sterna.engine.decoding.reasoning_budget import ReasoningBudget, ReasoningMatcher
from sterna.engine.decoding.sequence_breakers import with_breaker_ids
from sterna.engine.decoding.speculation import DraftSource, Speculation
from sterna.engine.kv_cache.prefix_trie import common_prefix_length
from sterna.errors import RequestError
from sterna.llm.adapters import AdapterChoice, Adapters
from sterna.llm.chat_renderer import ChatRenderer, listed_messages
from sterna.llm.constraint_argument import constraint_of, constraint_of_format
from sterna.llm.context_overflow import SINKS, opening_of, without_oldest
from sterna.llm.generation_config import GenerationDefaults
from sterna.llm.options import checked_options
from sterna.llm.output_parser import OutputParser
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.sampling_params import MAX_LOGPROBS, SamplingParams
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.engine.images.prompt_images import PromptImage, PromptImages
    from sterna.llm.chat_request import ChatPrompt, ChatRequest

__all__ = ["SPECULATE", "RequestFactory"]

MAX_CHOICES = 1024
#: Values of `speculate`, as in `LLM`.
SPECULATE = ("auto", "lookup", "off")


class RequestFactory:
    """Makes the requests of one LLM.

    speculate: "auto", "lookup" or "off", as in `LLM`. draft: the engine of a draft model, if any.

    Attributes:
        encoder: Makes token ids of prompts.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        renderer: ChatRenderer,
        *,
        adapters: Adapters,
        constraints: Constraints,
        defaults: GenerationDefaults,
        speculate: str,
        draft: Engine | None,
    ) -> None:
        self._engine, self._tokenizer, self._renderer = engine, tokenizer, renderer
        self.encoder: PromptEncoder = PromptEncoder(tokenizer, engine)
        self._adapters, self._constraints, self._defaults = adapters, constraints, defaults
        self._speculate, self._draft = speculate, draft
        if speculate == "auto":
            _ = engine.mtp  # compiles the MTP layer now instead of during the first request

    def make(
        self,
        prompt: str | Sequence[int],
        options: Mapping[str, Any],
        params: SamplingParams | None = None,
        **request_args: Any,
    ) -> Request:
        """Make a request for one answer; arguments as in `make_several`."""
        (request,) = self.make_several(prompt, 1, options, params, **request_args)
        return request

    def make_several(
        self,
        prompt: str | Sequence[int],
        n: int,
        options: Mapping[str, Any],
        params: SamplingParams | None = None,
        *,
        ends: frozenset[int] = frozenset(),
        reasoning: ReasoningBudget | None = None,
        **request_args: Any,
    ) -> list[Request]:
        """Make requests for n answers to a prompt.

        options, params: as in `LLM.generate`. ends: ids that end an answer, in addition to the
        tokenizer's. reasoning: its budget. request_args: other arguments of `Request`; images: a
        list of `sterna.images.PromptImage`. RequestError.
        """
        checked_whole("n", n, 1, MAX_CHOICES)
        tokens = self.encoder.encode(prompt)
        params, others = checked_options(options, params)
        params = self._defaults.applied(params)
        others["constraint"] = constraint_of(self._constraints, others.get("constraint"))
        choices = [params] if n == 1 else [replace(params, choice=i) for i in range(n)]
        make = self._request
        return [make(tokens, one, others, ends, request_args, reasoning) for one in choices]

    def make_for_prompts(
        self,
        prompts: Sequence[str | Sequence[int]],
        options: Mapping[str, Any],
        params: SamplingParams | None,
    ) -> list[Request]:
        """Make a request for each prompt; arguments as in `make_several`.

        Their constraint is compiled once.
        """
        constraint = constraint_of(self._constraints, options.get("constraint"))
        options = {**options, "constraint": constraint}
        return [self.make(prompt, options, params) for prompt in prompts]

    def make_for_chats(
        self,
        conversations: Iterable[Any],
        options: Mapping[str, Any],
        params: SamplingParams | None,
    ) -> list[Request]:
        """Make a request for each conversation; options and params as in `LLM.chat`.

        The constraint of their contents is compiled once.
        """
        from sterna.llm.chat_request import ChatRequest

        content = self._content(ChatRequest.of_options((), options))
        options = {**options, "constraint": content, "response_format": None}
        chats = (ChatRequest.of_options(one, options, params) for one in conversations)
        return [self.make_chat(chat)[0] for chat in chats]

    def make_chat(self, chat: ChatRequest, **request_args: Any) -> list[Request]:
        """Make requests for the answers to a conversation.

        request_args: other arguments of `Request`, such as its key. RequestError as in `LLM.chat`.
        """
        dropped = 0
        if chat.context_overflow != "error":
            chat.messages, dropped = self.fitting(chat)
        prompt = self.chat_prompt(chat)
        if chat.context_overflow == "shift":
            request_args["shift_keep"] = self._kept_by_shifts(chat, prompt)
        answers, content = prompt.answers, self._content(chat)
        with _of_tools():
            constraint = answers.constraint(self._constraints, content)
        options = {**chat.options, "constraint": constraint}
        request_args.update(
            images=prompt.images,
            boundary=prompt.boundary,
            visible=answers.visible(self._tokenizer),
            marks=answers.part_marks,
        )
        budget = answers.budget(chat.reasoning_budget, chat.effort, self._tokenizer)
        extra = {"ends": prompt.ends, "reasoning": budget, **request_args}
        requests = self.make_several(prompt.tokens, chat.n, options, chat.params, **extra)
        for request in requests:
            request.completion.parser = answers.parser
            request.completion.rendered_at = prompt.rendered_at
            request.completion.dropped_turns = dropped
        return requests

    def fitting(self, chat: ChatRequest) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return the messages of a conversation that fit, and the number of turns left out."""

        def n_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
            return len(self._renderer.prepare(messages, **chat.prompt_options).tokens)

        messages = listed_messages(chat.messages)
        return without_oldest(messages, n_tokens, chat.room(self._engine.context))

    def _kept_by_shifts(self, chat: ChatRequest, prompt: ChatPrompt) -> int | None:
        """Count the first tokens of a prompt that stay: those of its system messages, or a few.

        They are what a conversation shares that has only these and another user's message. None,
        so that the answer ends with the context: they take more than half of it, or there are
        images, of which no part can be left out.
        """
        if prompt.images:
            return None
        opening = opening_of(listed_messages(chat.messages))
        other = replace(chat, messages=[*opening, {"role": "user", "content": "?"}])
        tokens = self._renderer.prepare(other.messages, **other.prompt_options).tokens
        same = common_prefix_length(np.array(prompt.tokens), np.array(tokens))
        keep = max(SINKS, same)
        return keep if keep <= self._engine.context // 2 else None

    def _content(self, chat: ChatRequest) -> Constraint | None:
        """Return the constraint of the content of answers."""
        constraint = chat.options.get("constraint")
        if chat.response_format is None:
            return constraint_of(self._constraints, constraint)
        if constraint is not None:
            raise RequestError("response_format: cannot be combined with constraint; leave one out")
        return constraint_of_format(self._constraints, chat.response_format)

    def chat_prompt(self, chat: ChatRequest) -> ChatPrompt:
        """Render and encode the prompt of a conversation. RequestError as in `LLM.chat`."""
        from sterna.llm.answer_format import AnswerFormat
        from sterna.llm.chat_request import ChatPrompt

        renderer, options = self._renderer, chat.prompt_options
        messages = listed_messages(chat.messages)
        with clock() as stopped:  # both renderings get the same time
            prompt = renderer.prepare(messages, **options)
            boundary = 0
            if self._engine.kv_cache.needs_snapshots:
                boundary = renderer.end_of_turn(prompt, messages, options)
        state = renderer.reasoning_state(
            prompt.text, messages, chat.continue_final_message, chat.template
        )
        ends = renderer.turn_ends
        if chat.template is not None:
            ends |= renderer.turn_ends_of(chat.template)
        moment = stopped.moment.isoformat(timespec="seconds") if stopped.read else None
        answers = AnswerFormat(chat.template or renderer.template, chat.tools, state)
        return ChatPrompt(prompt.tokens, prompt.images, answers, boundary, ends, moment)

    def make_scoring(
        self, prompt: str | Sequence[int], top: int, adapter: AdapterChoice, **request_args: Any
    ) -> PromptLogprobsRequest:
        """Make a request for the log-probabilities of a prompt's tokens."""
        checked_whole("top", top, 0, MAX_LOGPROBS)
        tokens = self.encoder.encode(prompt)
        request_args["adapter"] = self._adapters.chosen(adapter)
        return PromptLogprobsRequest(tokens, top, self._tokenizer, **self._limits, **request_args)

    @property
    def _limits(self) -> dict[str, int]:
        """The model's limits, as arguments of requests."""
        return {"context": self._engine.context, "vocab": self._engine.model.config.vocab_size}

    def check_options(self, options: Mapping[str, Any], chat: bool = False) -> None:
        """Raise RequestError unless `LLM.generate`, or with chat `LLM.chat`, takes options."""
        if chat:
            from sterna.llm.chat_request import ChatRequest

            request = ChatRequest.of_options((), options)
            self._content(request)
            options = request.options
        _, others = checked_options(options)
        self._adapters.chosen(others.get("adapter"))
        self._constraints.matcher(constraint_of(self._constraints, others.get("constraint")))
        self.encoder.encode_prediction(others.get("prediction"))

    def _request(
        self,
        tokens: list[int],
        params: SamplingParams,
        options: Mapping[str, Any],
        ends: frozenset[int],
        request_args: Mapping[str, Any],
        reasoning: ReasoningBudget | None = None,
    ) -> Request:
        model, context = self._engine.model, self._engine.context
        if model.config.pooling is not None:
            raise RequestError(f"generate: {model.name} makes vectors, not text; use embed")
        ends = frozenset() if params.ignore_eos else ends.union(self._tokenizer.eos_ids)
        most = params.max_tokens
        if request_args.get("shift_keep") is None:
            most = min(most, max(1, context - len(tokens)))
        matcher = self._constraints.matcher(options.get("constraint"), most, reasoning)
        prediction = self.encoder.encode_prediction(options.get("prediction"))
        images = self._images(tokens, request_args.get("images") or ())
        sampling = with_breaker_ids(params, self._tokenizer, tokens)
        drafts = self._speculation(len(tokens), sampling, prediction, matcher, images is not None)
        request_args = {
            **request_args,
            **self._limits,
            "images": images,
            "adapter": self._adapters.chosen(options.get("adapter")),
            "speculation": drafts,
        }
        request = Request(
            tokens, params, self._tokenizer, ends=ends, matcher=matcher, **request_args
        )
        request.completion.parser = OutputParser
        return request

    def _images(self, tokens: list[int], images: Sequence[PromptImage]) -> PromptImages | None:
        if not images:
            return None
        from sterna.engine.images.prompt_images import PromptImages

        encoder = self._engine.image_encoder
        if encoder is None:
            raise RequestError(
                f"images: {self._engine.model.name} reads only text; use a model that sees, such "
                "as Gemma 3"
            )
        return PromptImages(tokens, images, encoder, PREFILL_CHUNK)

    def _speculation(
        self,
        n_prompt: int,
        params: SamplingParams,
        prediction: list[int],
        matcher: GrammarMatcher | ReasoningMatcher | None,
        with_images: bool,
    ) -> Speculation | None:
        """Return the sources of drafts of an answer, best first; None without speculation.

        with_images: an MTP layer or a draft model does not draft, since it does not see the images.
        """
        by_model = self._speculate == "auto" and not with_images
        if self._speculate == "off":
            return None
        engine, sampling = self._engine, replace(params, logprobs=0).native
        sources: list[DraftSource] = [ForcedTokens(matcher)] if matcher else []
        if prediction:
            sources.append(PredictedOutput(n_prompt, prediction[: engine.context]))
        sources.append(PromptLookup(LONG))
        if by_model and self._draft is None and engine.mtp is not None:
            sources.append(MtpDrafts(engine, sampling, n_prompt))
        sources.append(PromptLookup(SHORT))
        if by_model and self._draft is not None:
            draft = self._draft
            cost = draft.model.weight_bytes_per_token / engine.model.weight_bytes_per_token
            sources.append(DraftModel(draft, sampling, n_prompt, cost))
        return Speculation(sources, engine.kv_cache)


@contextlib.contextmanager
def _of_tools() -> Iterator[None]:
    """Name the tools in errors of the grammar that allows their calls."""
    try:
        yield
    except RequestError as error:
        if str(error).startswith(("tools:", "constraint:")):
            raise
        raise RequestError(f"tools: {error}") from None
