"""`ChatGeneration`: the next message of a conversation, in any chat protocol."""

from __future__ import annotations

import asyncio
from typing import Any

from sterna.chat.clock import clock
from sterna.chat.reasoning import ReasoningState
from sterna.llm.chat_renderer import after_reasoning
from sterna.server.active_request import ActiveRequest
from sterna.server.chat_rendering import TemplateInput, render_prompt
from sterna.server.generation_request import GenerationRequest
from sterna.server.output_parser import OutputParser
from sterna.server.sampling_fields import StructuredOutputs
from sterna.server.structured_outputs import constraint_for
from sterna.server.tool_choice import ToolChoice

__all__ = ["ChatGeneration"]


class ChatGeneration:
    """From messages, tools and formats to a submitted prompt, and to parsers of its answers.

    generation: without its prompt. Its max_tokens may be None, for as many as fit into the context.
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
        if generation.constraint is not None:
            generation.constraint = await asyncio.to_thread(
                after_reasoning, self._reasoning, generation.constraint
            )
        self.active.submit([generation])

    def _encode(self) -> None:
        llm, given = self.active.model.llm, self._template_input
        with clock() as stopped:
            prompt = render_prompt(llm, given)
        if stopped.read:
            self.generation.rendered_at = stopped.moment.isoformat(timespec="seconds")
        template = given.template
        self._reasoning = llm.renderer.reasoning_state(
            prompt, given.messages, given.continue_final_message, template
        )
        if template is not None:  # the engine knows only the turn ends of the model's own
            ends = {
                *self.generation.options.get("stop_token_ids", ()),
                *llm.renderer.turn_ends_of(template),
            }
            self.generation.options["stop_token_ids"] = sorted(ends)
        self.generation.prompt = llm.tokenizer.encode(prompt, add_special=False)

    def parser(self) -> OutputParser:
        """Make a new parser, for one of the answers."""
        call_format = self.tools.call_format(self.active.model.llm, self._template_input.template)
        opened = self._reasoning is ReasoningState.OPENED
        return OutputParser(call_format, self.tools.parallel, opened, self.tools.schemas)
