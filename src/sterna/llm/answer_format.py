"""`AnswerFormat`: how a model's family writes the answers of a chat, and how they are parsed.

`LLM.chat` and all endpoints of the server constrain and parse answers by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sterna.chat.reasoning import ReasoningMarks, ReasoningState
from sterna.engine.decoding.answer_parts import CONTENT, OTHER, REASONING, PartMarks
from sterna.engine.decoding.grammars import CallGroup
from sterna.engine.decoding.reasoning_budget import ReasoningBudget
from sterna.llm.messages_parser import MessagesParser
from sterna.llm.output_parser import OutputParser
from sterna.llm.tool_call_formats import ToolCallFormat, format_of, known_format, other_formats
from sterna.llm.tool_choice import ToolChoice

if TYPE_CHECKING:
    from sterna.chat import ChatTemplate
    from sterna.engine.decoding.constraints import Constraint, Constraints
    from sterna.tokenizer import Tokenizer

__all__ = ["AnswerFormat"]

#: Tokens of reasoning for an effort, if the template does not read it; others have no limit.
EFFORTS = {"minimal": 256, "low": 1024, "medium": 4096}


@dataclass(frozen=True)
class AnswerFormat:
    """How the answers to one prompt are written: reasoning, content and tool calls.

    template: chat template of the model or the request; None: plain text. tools: tools of the
    request. state: where in its reasoning an answer begins.
    """

    template: ChatTemplate | None
    tools: ToolChoice
    state: ReasoningState

    def parser(self) -> OutputParser:
        """Make a new parser, for one of the answers."""
        tools, call_format = self.tools, self._calls
        if call_format and call_format.messages:
            return MessagesParser(call_format, bool(tools.shown), tools.parallel, tools.schemas)
        opened = self.state is ReasoningState.OPENED
        marks = self.template.reasoning_marks if self.template else None
        return OutputParser(call_format, tools.parallel, opened, tools.schemas, marks, self._others)

    def visible(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the special tokens that must reach the parser."""
        if self.template is None:
            return frozenset()
        texts = self.template.reasoning_marks.marks if self.template.reasoning_marks else ""
        for call_format in filter(None, (self._calls, *self._others)):
            texts += call_format.marks
        return tokenizer.special_in(texts)

    @property
    def part_marks(self) -> PartMarks:
        """The marks by which reasoning and content follow each other."""
        messages = self._calls.messages if self._calls else None
        if messages is None:
            own = self.template.reasoning_marks if self.template else None
            marks = own or ReasoningMarks()
            opened, closes = marks.opens.strip(), marks.closes.strip()
            begins = REASONING if self.state is ReasoningState.OPENED else ""
            return PartMarks(begins, ((opened, REASONING),), {REASONING: ((closes, CONTENT),)})
        headers = [(mark, CONTENT) for mark in (messages.content, *messages.other)]
        if messages.reasoning:
            headers.insert(0, (messages.reasoning, REASONING))
        opens = self._calls.opens if self._calls else ()
        starts = (messages.starts, *opens, *(mark for mark, _ in headers))
        others = tuple((mark.lstrip(), OTHER) for mark in starts if mark.strip())
        ends = ((messages.ends, OTHER),)
        return PartMarks("", others, {OTHER: tuple(headers), REASONING: ends, CONTENT: ends})

    def constraint(self, constraints: Constraints, content: Constraint | None) -> Constraint | None:
        """Make the constraint that allows either tool calls or content, behind any reasoning.

        content: the constraint of the content; None is any text. RequestError if the schema of a
        tool cannot be enforced.
        """
        combined, call_format = content, self._calls
        if call_format is not None:
            calls = list(self.tools.calls(call_format))
            if calls or (content and call_format.messages):
                combined = constraints.tools(
                    calls,
                    "" if call_format.messages else call_format.trigger,
                    self.tools.required,
                    self.tools.parallel,
                    content,
                    frame=call_format.frame,
                    messages=call_format.messages,
                    others=self._groups[1:],
                )
        if combined is None or self._has_messages or self.state is ReasoningState.CLOSED:
            return combined
        return combined.after_reasoning(self.state is ReasoningState.OPENED, self._marks)

    def budget(
        self, budget: int | None, effort: object, tokenizer: Tokenizer
    ) -> ReasoningBudget | None:
        """Return the budget of an answer's reasoning; None for no limit.

        effort: the request's reasoning_effort, which sets a budget if the template does not read
        it.
        """
        if budget is None and self.template and not self.template.takes_effort:
            budget = EFFORTS.get(str(effort))
        # each answer of messages may begin with reasoning
        state = ReasoningState.FREE if self._has_messages else self.state
        if budget is None or state is ReasoningState.CLOSED or self._marks is None:
            return None
        opened = state is ReasoningState.OPENED
        return ReasoningBudget.of_marks(self._marks, opened, budget, tokenizer)

    @cached_property
    def _calls(self) -> ToolCallFormat | None:
        """The format of tool calls or, without tools, of answers that consist of messages."""
        if self.tools.shown:
            return format_of(self.template)
        known = known_format(self.template)
        return known if known and known.messages else None

    @cached_property
    def _others(self) -> tuple[ToolCallFormat, ...]:
        """More formats in which tools may be called."""
        return other_formats(self.template) if self.tools.shown else ()

    @cached_property
    def _groups(self) -> list[CallGroup]:
        """The ways in which tools may be called."""
        formats = [*filter(None, (self._calls, *self._others))]
        groups = [CallGroup([*self.tools.calls(one)], one.trigger, one.frame) for one in formats]
        return [group for group in groups if group.calls]

    @property
    def _has_messages(self) -> bool:
        """Whether answers consist of messages, whose grammar includes the reasoning."""
        return bool(self._calls and self._calls.messages)

    @property
    def _marks(self) -> ReasoningMarks | None:
        """The markers of reasoning; None if answers have none."""
        messages = self._calls.messages if self._calls else None
        if messages is None:
            marks = self.template.reasoning_marks if self.template else None
            calls = tuple(group.opening for group in self._groups)
            return replace(marks, calls=calls) if marks else None
        if not messages.reasoning:
            return None
        closing = messages.separator + ("" if self.tools.required else messages.content)
        return ReasoningMarks(messages.reasoning, messages.ends, closing=closing)
