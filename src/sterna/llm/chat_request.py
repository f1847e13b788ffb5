"""`ChatRequest`: a conversation and how to answer it, in the library as in the server.

`RequestFactory.make_chat` renders it and makes the engine's requests. `LLM.chat`, `AsyncLLM`,
`Conversation`, files of rows, Ray and all endpoints of the server take this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sterna.chat.messages import json_objects
from sterna.chat.reasoning import with_switches
from sterna.checks import checked_name, checked_whole
from sterna.errors import RequestError
from sterna.llm.context_overflow import CONTEXT_OVERFLOW
from sterna.llm.options import ChatOptions, PromptOptions, split_chat_options
from sterna.llm.tool_choice import ToolChoice
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sterna.chat import ChatTemplate
    from sterna.images import PromptImage
    from sterna.llm.answer_format import AnswerFormat

__all__ = ["ChatPrompt", "ChatRequest", "conversations"]

MAX_BUDGET = 1 << 31


@dataclass
class ChatRequest:
    """A conversation and how to answer it.

    Attributes:
        messages: [{"role": "user", "content": "Hello"}, ...], as in `LLM.chat`.
        options: Of `LLM.generate`, such as max_tokens, constraint and adapter. A constraint applies
            to the content of the answer.
        params: Sampling parameters, which options replace.
        n: The number of answers.
        tools: The tools that the model sees, and those that it may or must call.
        documents, template_options, add_generation_prompt, continue_final_message, template: As in
            `LLM.chat_prompt`.
        reasoning_budget: Most tokens of reasoning. None: no limit; 0: the template turns it off.
        reasoning: Whether to reason, in the words of any family. None: as its template does.
        response_format: The form of the content, in place of a constraint.
        context_overflow: What to do if it does not fit into the context: one of
            CONTEXT_OVERFLOW.
    """

    messages: Sequence[Mapping[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    params: SamplingParams | None = None
    n: int = 1
    tools: ToolChoice = field(default_factory=ToolChoice)
    documents: Sequence[Mapping[str, Any]] | None = None
    template_options: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template: ChatTemplate | None = None
    reasoning_budget: int | None = None
    reasoning: bool | None = None
    response_format: Mapping[str, Any] | type | None = None
    context_overflow: str = "error"

    @classmethod
    def of_options(
        cls,
        messages: Any,
        options: Mapping[str, Any] | ChatOptions,
        params: SamplingParams | None = None,
    ) -> ChatRequest:
        """Make a request from the arguments of `LLM.chat`. RequestError."""
        of_chat, others = split_chat_options(options)
        budget = of_chat.pop("reasoning_budget", None)
        if budget is not None:
            checked_whole("reasoning_budget", budget, 0, MAX_BUDGET)
        overflow = of_chat.get("context_overflow", "error")
        checked_name("context_overflow", overflow, CONTEXT_OVERFLOW)
        tools = ToolChoice.of_tools(
            json_objects(of_chat.pop("tools", None), "tools"),
            of_chat.pop("tool_choice", None),
            of_chat.pop("parallel_tool_calls", None),
        )
        return cls(messages, others, params, tools=tools, reasoning_budget=budget, **of_chat)

    @property
    def prompt_options(self) -> PromptOptions:
        """The keyword arguments of `ChatRenderer.render`."""
        variables, on = self.template_options, self.reasoning
        if on is None and self.reasoning_budget == 0:
            on = False
        if on is not None and isinstance(variables, (Mapping, type(None))):
            variables = with_switches(variables or {}, on)
        return {
            "tools": self.tools.shown or None,
            "documents": self.documents,
            "template_options": variables,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": self.continue_final_message,
            "template": self.template,
        }

    def room(self, context: int) -> int:
        """Return the most tokens of a prompt that leave room for an answer."""
        wanted = self.options.get("max_tokens")
        if wanted is None and self.params is not None:
            wanted = self.params.max_tokens
        quarter = context // 4
        return context - (min(wanted, quarter) if isinstance(wanted, int) else quarter)

    @property
    def effort(self) -> object:
        """The reasoning effort that the template's variables ask for; None for none."""
        variables = self.template_options
        return variables.get("reasoning_effort") if isinstance(variables, Mapping) else None


@dataclass(frozen=True)
class ChatPrompt:
    """The rendered prompt of a `ChatRequest`.

    Attributes:
        tokens: Token ids, all those of images included. images: The images, with the positions of
        their tokens. answers: How answers to it are written. boundary: Number of tokens before the
        text that opens the answer; 0 where layers need no snapshot there. ends: Ids that end an
        answer, in addition to the tokenizer's. rendered_at: The time in ISO 8601 that the template
        got, if it asked for it.
    """

    tokens: list[int]
    images: tuple[PromptImage, ...]
    answers: AnswerFormat
    boundary: int
    ends: frozenset[int]
    rendered_at: str | None


def conversations(messages: Any) -> Iterator[Any] | None:
    """Iterate over a list of conversations; None if `messages` is one conversation."""
    if not isinstance(messages, (list, tuple)) or not messages:
        return None
    several = [isinstance(one, (list, tuple)) for one in messages]
    if not any(several):
        return None
    if not all(several):
        raise RequestError("messages: must be one conversation or a list of them, but got both")
    return iter(messages)
