"""`ChatGeneration`: the next message of a conversation, in any chat protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sterna.chat.clock import clock
from sterna.chat.reasoning import ReasoningState
from sterna.errors import RequestError
from sterna.llm.answer_format import AnswerFormat, without_reasoning
from sterna.llm.generation_config import chat_sampling
from sterna.llm.tool_choice import ToolChoice
from sterna.server.active_request import ActiveRequest
from sterna.server.chat_rendering import TemplateInput, prepare_prompt
from sterna.server.custom_tools import ChatParser, CustomCallParser
from sterna.server.errors import to_api_error
from sterna.server.generation_request import GenerationRequest
from sterna.server.structured_outputs import ConstraintSpec, constraint_for

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
        asked: Sequence[ConstraintSpec] = (),
        response_format: dict[str, Any] | None = None,
    ) -> None:
        self.active = active
        self.generation = generation
        self.tools = tools
        self._template_input, self._asked = template_input, asked
        self._response_format = response_format
        self._format = AnswerFormat(None, tools, ReasoningState.CLOSED)

    async def submit(self) -> None:
        """Render the prompt, build the constraint, and submit both to the engine."""
        llm = self.active.model.llm
        self._template_input.tools = list(self.tools.shown)
        await asyncio.to_thread(self._encode)
        generation = self.generation
        generation.options.update(chat_sampling(llm.defaults, generation.options))
        if generation.options.get("max_tokens") is None:
            generation.options["max_tokens"] = max(1, llm.context - len(generation.prompt))
        self.active.names["constraint"] = "tools"  # unless another field asks for one
        content = await constraint_for(self.active, self._asked, self._response_format)
        try:
            generation.constraint = await asyncio.to_thread(
                self._format.constraint, llm.constraints, content
            )
        except RequestError as error:
            named = to_api_error(error)
            if named.param not in ("constraint", "response_format"):
                named.param = "tools"
            raise named from None
        self.active.submit([generation])

    def _encode(self) -> None:
        llm, given = self.active.model.llm, self._template_input
        effort = given.template_options.get("reasoning_effort")
        budget = self.generation.reasoning_budget
        given.template_options = without_reasoning(given.template_options, budget)
        with clock() as stopped:
            prompt = prepare_prompt(llm, given)
        if stopped.read:
            self.generation.rendered_at = stopped.moment.isoformat(timespec="seconds")
        template = given.template
        state = llm.renderer.reasoning_state(
            prompt.text, given.messages, given.continue_final_message, template
        )
        if template is not None:  # the engine knows only the turn ends of the model's own template
            ends = {
                *self.generation.options.get("stop_token_ids", ()),
                *llm.renderer.turn_ends_of(template),
            }
            self.generation.options["stop_token_ids"] = sorted(ends)
        self._format = AnswerFormat(template or llm.template, self.tools, state)
        self.generation.visible = self._format.visible(llm.tokenizer)
        self.generation.marks = self._format.part_marks
        self.generation.reasoning = self._format.budget(budget, effort, llm.tokenizer)
        self.generation.prompt, self.generation.images = prompt.tokens, prompt.images

    def parser(self) -> ChatParser:
        """Make a new parser, for one of the answers."""
        parser, custom = self._format.parser(), self.tools.texts
        return CustomCallParser(parser, custom) if custom else parser
