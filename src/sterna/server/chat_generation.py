"""`ChatGeneration`: the next message of a conversation, in any chat protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from sterna.chat import ChatTemplate
from sterna.chat.clock import clock
from sterna.chat.reasoning import ReasoningState
from sterna.engine.decoding.thinking_budget import ThinkingBudget
from sterna.llm.chat_renderer import after_reasoning
from sterna.server.active_request import ActiveRequest
from sterna.server.chat_rendering import TemplateInput, prepare_prompt
from sterna.server.generation_request import GenerationRequest
from sterna.server.messages_parser import parser_of
from sterna.server.output_parser import OutputParser
from sterna.server.sampling_fields import StructuredOutputs
from sterna.server.structured_outputs import constraint_for
from sterna.server.thinking import thinking_of, thoughts_of, turn_off
from sterna.server.tool_call_formats import ToolCallFormat, known_format
from sterna.server.tool_choice import ToolChoice

__all__ = ["ChatGeneration"]


class ChatGeneration:
    """Turns messages, tools and formats into a submitted prompt, and makes parsers of its answers.

    generation: the request without its prompt. Its max_tokens may be None: as many as fit into the
    context.
    """

    def __init__(
        self,
        active: ActiveRequest,
        template_input: TemplateInput,
        generation: GenerationRequest,
        tools: ToolChoice,
        structured: StructuredOutputs | None = None,
        response_format: dict[str, Any] | None = None,
    ) -> None:
        self.active = active
        self.generation = generation
        self.tools = tools
        self._template_input, self._structured = template_input, structured
        self._format = response_format
        self._reasoning = ReasoningState.CLOSED

    async def submit(self) -> None:
        """Render the prompt, build the constraint, and submit both to the engine."""
        llm = self.active.model.llm
        self._template_input.tools = list(self.tools.shown)
        await asyncio.to_thread(self._encode)
        generation = self.generation
        if generation.options.get("max_tokens") is None:
            generation.options["max_tokens"] = max(1, llm.context - len(generation.prompt))
        answer = await constraint_for(llm, self._structured, self._format)
        generation.constraint = await self.tools.constraint(
            llm, answer, self._template_input.template
        )
        if generation.constraint is not None and not self._has_messages:
            generation.constraint = await asyncio.to_thread(
                after_reasoning, self._reasoning, generation.constraint,
                self._template.thoughts if self._template else None,
            )  # fmt: skip
        self.active.submit([generation])

    def _encode(self) -> None:
        llm, given = self.active.model.llm, self._template_input
        effort = given.template_options.get("reasoning_effort")
        given.template_options = turn_off(given.template_options, self.generation.thinking_budget)
        with clock() as stopped:
            prompt = prepare_prompt(llm, given)
        if stopped.read:
            self.generation.rendered_at = stopped.moment.isoformat(timespec="seconds")
        template = given.template
        self._reasoning = llm.renderer.reasoning_state(
            prompt.text, given.messages, given.continue_final_message, template
        )
        if template is not None:  # the engine knows only the turn ends of the model's own template
            ends = {
                *self.generation.options.get("stop_token_ids", ()),
                *llm.renderer.turn_ends_of(template),
            }
            self.generation.options["stop_token_ids"] = sorted(ends)
        self.generation.visible = self._marks()
        if self._template is not None:
            self.generation.thinking = self._thinking(self._template, effort)
        self.generation.prompt, self.generation.images = prompt.tokens, prompt.images

    def parser(self) -> OutputParser:
        """Make a new parser, for one of the answers."""
        tools, opened = self.tools, self._reasoning is ReasoningState.OPENED
        return parser_of(
            self._format_of_calls, bool(tools.shown), tools.parallel, tools.schemas,
            opened=opened, thoughts=self._template.thoughts if self._template else None,
        )  # fmt: skip

    @property
    def _template(self) -> ChatTemplate | None:
        return self._template_input.template or self.active.model.llm.template

    @property
    def _format_of_calls(self) -> ToolCallFormat | None:
        """The format of tool calls or, without tools, of answers that consist of messages."""
        found = self.tools.call_format(self.active.model.llm, self._template_input.template)
        known = None if found else known_format(self._template)
        return known if known and known.messages else found

    @property
    def _has_messages(self) -> bool:
        """Whether answers consist of messages, whose grammar includes the reasoning."""
        return bool(self._format_of_calls and self._format_of_calls.messages)

    def _thinking(self, template: ChatTemplate, effort: object) -> ThinkingBudget | None:
        thoughts = thoughts_of(template, self._format_of_calls, self.tools.required)
        # each answer of messages may begin with reasoning
        state = ReasoningState.FREE if self._has_messages else self._reasoning
        return thinking_of(
            template, thoughts, state, self.generation.thinking_budget,
            effort, self.active.model.llm.tokenizer,
        )  # fmt: skip

    def _marks(self) -> frozenset[int]:
        """Return the special tokens that must reach the parser."""
        template = self._template
        if template is None:
            return frozenset()
        call_format = self._format_of_calls
        texts = template.thoughts.marks if template.thoughts else ""
        if call_format:
            texts += call_format.marks
        return self.active.model.llm.tokenizer.special_in(texts)
