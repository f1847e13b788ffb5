"""Keyword options of `LLM.generate` and `LLM.chat`, typed for editors and type checkers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from sterna.errors import RequestError, shown
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sterna.chat import ChatTemplate
    from sterna.engine.decoding.constraints import Constraint
    from sterna.llm.adapters import AdapterChoice

__all__ = [
    "ChatOptions",
    "DecideOptions",
    "GenerateOptions",
    "PromptOptions",
    "SamplingOptions",
    "TemplateOptions",
    "checked_options",
    "refuse_unknown",
    "split_chat_options",
]


class SamplingOptions(TypedDict, total=False):
    """Keyword options of `LLM.generate` that are fields of `SamplingParams`; None: its default."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repeat_last_n: int | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None
    top_n_sigma: float | None
    typical_p: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    samplers: Sequence[str] | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str | Sequence[int]] | None
    min_tokens: int | None
    stop_token_ids: Sequence[int] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    logprobs: int | None
    choice: int | None


class GenerateOptions(SamplingOptions, total=False):
    """Options of `LLM.generate`: fields of `SamplingParams`, and these.

    Attributes:
        prediction: Predicted output, as text or token ids, such as a file to be edited. Affects
            speed, never the result.
        constraint: The form of the answer: a JSON schema as a dict, a pydantic class, a
            compiled pattern (`re.compile`) for the whole answer, or an object of `LLM.constraints`.
        adapter: The name of a loaded LoRA adapter, "__base__" for the model without one, or a scale
            for each of several: {"poet": 0.5, "brief": 1}. Default: the adapter given to `LLM`
            without a name, if any.
    """

    prediction: str | Sequence[int] | None
    constraint: Constraint | Mapping[str, Any] | re.Pattern[str] | type | None
    adapter: AdapterChoice


class TemplateOptions(TypedDict, total=False):
    """Options of the chat template.

    Attributes:
        tools: Functions that the model may call, as JSON objects in OpenAI's form.
        documents: Documents for retrieval, as JSON objects.
        template_options: More variables of the template, such as {"enable_thinking": False}.
        continue_final_message: Continue the last message instead of answering it. Default False.
    """

    tools: Sequence[Mapping[str, Any]] | None
    documents: Sequence[Mapping[str, Any]] | None
    template_options: Mapping[str, Any] | None
    continue_final_message: bool


class ChatOptions(GenerateOptions, TemplateOptions, total=False):
    """Options of `LLM.chat`: those of `generate`, those of the chat template, and these.

    Attributes:
        reasoning_budget: Tokens after which Sterna closes the reasoning with the family's own
            marker. Default: no limit.
        tool_choice: "auto", "none" (the model does not see the tools), "required" (the answer is a
            call), or the tool to call, as {"name": ...} or in OpenAI's form. Default "auto".
        parallel_tool_calls: Whether an answer may have several calls. Default True.
        response_format: The form of the content, as in chat protocols: {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"schema": ...}}, or a pydantic class.
        context_overflow: What to do with a conversation that does not fit into the context:
            "error" (the default), or "truncate-oldest-turn", which leaves out whole oldest turns
            and keeps the system prompt; `Completion.dropped_turns` counts them. With "shift", an
            answer that reaches the context's end goes on as well: the older half of the tokens
            behind the system prompt is left out, and the rest is computed again.
    """

    reasoning_budget: int | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: Mapping[str, Any] | type | None
    context_overflow: str


class DecideOptions(TypedDict, total=False):
    """Options of `LLM.decide`, whose docstring describes them."""

    options: Sequence[str] | Mapping[str, str] | None
    score: Sequence[int] | None
    neutral: str | None
    normalise: bool
    adapter: AdapterChoice


class PromptOptions(TemplateOptions, total=False):
    """Options of `LLM.chat_prompt`: those of the chat template, and these.

    Attributes:
        add_generation_prompt: End with the text that opens the answer. Default True.
        template: A template that replaces the model's own.
    """

    add_generation_prompt: bool
    template: ChatTemplate | None


#: What other libraries have as options, and Sterna as methods of `LLM`.
_OTHER_METHODS = {
    "n": "LLM.choices returns several answers",
    "stream": "LLM.stream and LLM.chat_stream yield pieces as they come",
    "sampling_params": "pass SamplingParams as the second argument, or its fields by name",
    "use_tqdm": "leave it out",
    "model": "the model is an argument of LLM",
}
SAMPLING = frozenset(SamplingParams.__dataclass_fields__)
REQUEST = frozenset(GenerateOptions.__annotations__) - SAMPLING
CHAT = frozenset(ChatOptions.__annotations__) - frozenset(GenerateOptions.__annotations__)


def refuse_unknown(place: str, kind: str, unknown: Collection[Any], known: Collection[str]) -> None:
    """Raise RequestError for the first of the unknown names, with the known one that it may mean:
    users of vLLM, transformers and llama.cpp know others."""
    if not unknown:
        return
    from sterna.files.other_names import likely_names  # not every start needs it

    first = min(unknown, key=str)
    near = likely_names(str(first), known)
    names = ", ".join(sorted(known))
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {names}"
    remedy = _OTHER_METHODS.get(str(first), remedy)
    if first in SAMPLING | REQUEST:  # of the constructor
        remedy = "it is an option of generate and chat"
    raise RequestError(f"{place}: unknown {kind} {shown(first)}; {remedy}")


def checked_options(
    options: Mapping[str, Any], params: SamplingParams | None = None
) -> tuple[SamplingParams, dict[str, Any]]:
    """Split options of `generate` into sampling parameters and the others, by name.

    A sampling option replaces the field of `params`; None leaves it alone. RequestError for an
    unknown option or a value out of range.
    """
    if not isinstance(options, Mapping):
        raise RequestError(f"options: must be a mapping, but got {shown(options)}")
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError(f"params: must be SamplingParams, but got {shown(params)}")
    refuse_unknown("options", "option", set(options) - SAMPLING - REQUEST, SAMPLING | REQUEST)
    fields = {n: value for n, value in options.items() if n in SAMPLING and value is not None}
    return (params or SamplingParams()).replaced(fields), {
        name: value for name, value in options.items() if name in REQUEST
    }


def split_chat_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options of `chat` into its own and those of `generate`."""
    own = {name: value for name, value in options.items() if name in CHAT}
    return own, {name: value for name, value in options.items() if name not in CHAT}
