"""`RequestFactory`: prompts and options become requests of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sterna.chat.messages import json_objects
from sterna.checks import checked_flag, checked_whole
from sterna.engine import (
    PREFILL_CHUNK,
    Engine,
    PromptLogprobsRequest,
    Request,
)
from sterna.engine.adapters import cache_salt
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
from sterna.errors import RequestError
from sterna.llm.adapters import Adapters
from sterna.llm.chat_renderer import ChatRenderer
from sterna.llm.generation_config import GenerationDefaults
from sterna.llm.options import checked_options, split_template_options
from sterna.llm.output_parser import OutputParser
from sterna.llm.prompt_encoder import PromptEncoder
from sterna.sampling_params import MAX_LOGPROBS, SamplingParams
from sterna.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sterna.engine.prompt_images import PromptImage, PromptImages
    from sterna.llm.answer_format import AnswerFormat
    from sterna.llm.tool_choice import ToolChoice

__all__ = ["RequestFactory"]

MAX_CHOICES = 1024
MAX_BUDGET = 1 << 31


class RequestFactory:
    """Makes the requests of one LLM.

    speculate: "auto", "lookup" or "off", as in `LLM`. draft: the engine of a draft model, if any.
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
        self._encoder = PromptEncoder(tokenizer, engine)
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
        chat: bool = False,
        reasoning: ReasoningBudget | None = None,
        **request_args: Any,
    ) -> list[Request]:
        """Make requests for n answers to a prompt.

        options, params: as in `LLM.generate`. chat: end an answer with the end of a turn as well.
        reasoning: its budget. request_args: other arguments of `Request`; images: a
        list of `sterna.images.PromptImage`. RequestError.
        """
        checked_whole("n", n, 1, MAX_CHOICES)
        tokens = self._encoder.encode(prompt)
        params, others = checked_options(options, params)
        params = self._defaults.applied(params)
        ends = self._renderer.turn_ends if checked_flag("chat", chat) else frozenset[int]()
        choices = [params] if n == 1 else [replace(params, choice=i) for i in range(n)]
        make = self._request
        return [make(tokens, one, others, ends, request_args, reasoning) for one in choices]

    def prefix_keys(
        self, prompt: str | Sequence[int], salt: str, adapter: str | None
    ) -> tuple[npt.NDArray[np.int32], str]:
        """Return the token ids, int32, and the salt by which prefix caches know a prompt."""
        tokens = np.array(self._encoder.encode(prompt), np.int32)
        return tokens, cache_salt(salt, self._adapters.chosen(adapter))

    def make_chat(
        self,
        messages: object,
        options: Mapping[str, Any],
        params: SamplingParams | None = None,
        **request_args: Any,
    ) -> Request:
        """Make a request for the answer to a conversation; options, params as in `LLM.chat`."""
        template, others = split_template_options(options)
        tools = _tools(template, others)
        budget = _reasoning_budget(template, others)
        renderer = self._renderer
        prompt = renderer.prepare(messages, **template)
        answers = self._answer_format(messages, prompt.text, template, tools)
        if isinstance(content := others.get("constraint"), (Constraint, type(None))):
            others["constraint"] = answers.constraint(self._constraints, content)
        effort = (template.get("template_options") or {}).get("reasoning_effort")
        boundary = 0
        if self._engine.kv_cache.needs_snapshots:
            boundary = renderer.end_of_turn(prompt, messages, template)
        given = {
            "boundary": boundary, "images": prompt.images,
            "reasoning": answers.budget(budget, effort, self._tokenizer),
            "visible": answers.visible(self._tokenizer), "marks": answers.part_marks,
            **request_args,
        }  # fmt: skip
        request = self.make(prompt.tokens, others, params, chat=True, **given)
        request.completion.parser = answers.parser
        return request

    def _answer_format(
        self, messages: object, prompt: str, template: Mapping[str, Any], tools: ToolChoice
    ) -> AnswerFormat:
        """Return how answers to a rendered prompt are written. template: options of `render`."""
        from sterna.llm.answer_format import AnswerFormat

        continued = bool(template.get("continue_final_message"))
        state = self._renderer.reasoning_state(prompt, messages, continued)
        return AnswerFormat(self._renderer.template, tools, state)

    def make_scoring(
        self, prompt: str | Sequence[int], top: int, adapter: str | None, **request_args: Any
    ) -> PromptLogprobsRequest:
        """Make a request for the log-probabilities of a prompt's tokens."""
        checked_whole("top", top, 0, MAX_LOGPROBS)
        return PromptLogprobsRequest(
            self._encoder.encode(prompt), top, self._tokenizer, context=self._engine.context,
            vocab=self._engine.model.config.vocab_size, adapter=self._adapters.chosen(adapter),
            **request_args,
        )  # fmt: skip

    def check_options(self, options: Mapping[str, Any], chat: bool = False) -> None:
        """Raise RequestError unless `make`, or `make_chat` if `chat`, takes these options."""
        if chat:
            template, options = split_template_options(options)
            _tools(template, options)
            _reasoning_budget(template, options)
        _, others = checked_options(options)
        self._adapters.chosen(others.get("adapter"))
        self._constraints.matcher(others.get("constraint"))
        self._encoder.encode_prediction(others.get("prediction"))

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
        params = with_breaker_ids(params, self._tokenizer, model.config.vocab_size)
        ends = frozenset() if params.ignore_eos else ends.union(self._tokenizer.eos_ids)
        most = min(params.max_tokens, max(1, context - len(tokens)))
        matcher = self._constraints.matcher(options.get("constraint"), most, reasoning)
        prediction = self._encoder.encode_prediction(options.get("prediction"))
        images = self._images(tokens, request_args.get("images") or ())
        request_args = {**request_args, "images": images}
        request = Request(
            tokens, params, self._tokenizer, context=context, ends=ends, matcher=matcher,
            vocab=model.config.vocab_size, adapter=self._adapters.chosen(options.get("adapter")),
            speculation=self._speculation(
                len(tokens), params, prediction, matcher, with_images=images is not None
            ),
            **request_args,
        )  # fmt: skip
        request.completion.parser = OutputParser
        return request

    def _images(self, tokens: list[int], images: Sequence[PromptImage]) -> PromptImages | None:
        if not images:
            return None
        from sterna.engine.prompt_images import PromptImages

        encoder = self._engine.image_encoder
        if encoder is None:
            raise RequestError(
                f"images: {self._engine.model.name} reads text alone; use a model that sees, such "
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
        alone = with_images or self._speculate != "auto"
        if self._speculate == "off":
            return None
        engine, sampling = self._engine, replace(params, logprobs=0).native
        sources: list[DraftSource] = [ForcedTokens(matcher)] if matcher else []
        if prediction:
            sources.append(PredictedOutput(n_prompt, prediction[: engine.context]))
        sources.append(PromptLookup(LONG))
        if not alone and self._draft is None and engine.mtp is not None:
            sources.append(MtpDrafts(engine, sampling, n_prompt))
        sources.append(PromptLookup(SHORT))
        if not alone and self._draft is not None:
            draft = self._draft
            cost = draft.model.weight_bytes_per_token / engine.model.weight_bytes_per_token
            sources.append(DraftModel(draft, sampling, n_prompt, cost))
        return Speculation(sources, engine.kv_cache)


def _tools(template: dict[str, Any], others: dict[str, Any]) -> ToolChoice:
    """Take the choice of tools from the other options, and show the template its tools."""
    from sterna.llm.tool_choice import ToolChoice  # not every start needs it

    tools = ToolChoice.of_tools(
        json_objects(template.get("tools"), "tools"),
        others.pop("tool_choice", None), others.pop("parallel_tool_calls", None),
    )  # fmt: skip
    template["tools"] = tools.shown or None
    return tools


def _reasoning_budget(template: dict[str, Any], others: dict[str, Any]) -> int | None:
    """Take the budget from the other options; if it is 0, the template turns reasoning off."""
    from sterna.llm.answer_format import without_reasoning

    budget, variables = others.pop("reasoning_budget", None), template.get("template_options")
    if budget is None:
        return None
    checked_whole("reasoning_budget", budget, 0, MAX_BUDGET)
    if budget == 0 and isinstance(variables, (Mapping, type(None))):
        template["template_options"] = without_reasoning(dict(variables or {}), budget)
    return int(budget)
