"""`tools` and `tool_choice`: which tools the model sees, which it may or must call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sterna.chat import ChatTemplate
from sterna.engine.decoding.constraints import Constraint, ToolCall
from sterna.errors import RequestError
from sterna.llm import LLM
from sterna.server.chat_rendering import MAX_TOOLS
from sterna.server.errors import ApiError, invalid
from sterna.server.tool_call_formats import ToolCallFormat, format_of, known_format

__all__ = ["ToolChoice", "parse_tools"]

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class ToolChoice:
    """The tools of a request.

    Attributes:
        shown: the tools that the model sees, in OpenAI's form.
        names: the tools that it may call.
        required: whether it must call one.
        parallel: whether it may call several.
    """

    shown: tuple[dict[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    required: bool = False
    parallel: bool = True

    @property
    def schemas(self) -> dict[str, Any]:
        """The JSON schema of each tool's arguments, by name."""
        functions = map(_function, self.shown)
        return {f["name"]: f.get("parameters") for f in functions}

    def call_format(self, llm: LLM, template: ChatTemplate | None = None) -> ToolCallFormat | None:
        """Return how the model writes calls; None without tools. template: of the request."""
        return format_of(template or llm.template) if self.shown else None

    async def constraint(
        self, llm: LLM, answer: Constraint | None, template: ChatTemplate | None = None
    ) -> Constraint | None:
        """Make the constraint that allows either tool calls or an answer.

        answer: the constraint of the answer; None is any text. Arguments follow a strict schema. If
        a call is required, they follow any schema as far as it can be enforced.
        """
        call_format = self.call_format(llm, template) or known_format(template or llm.template)
        if call_format is None or not (self.shown or (answer and call_format.messages)):
            return answer
        functions = [_function(tool) for tool in self.shown]
        calls = [
            call
            for f in functions
            if f["name"] in self.names
            for call in self._calls(call_format, f)
        ]
        make = partial(
            llm.constraints.tools, calls, "" if call_format.messages else call_format.trigger,
            self.required, self.parallel, answer, frame=call_format.frame,
            messages=call_format.messages,
        )  # fmt: skip
        try:
            return await asyncio.to_thread(make)
        except RequestError as error:
            raise ApiError(400, str(error), param="tools") from None

    def _calls(self, call_format: ToolCallFormat, function: dict[str, Any]) -> Iterator[ToolCall]:
        strict = bool(function.get("strict"))
        schema = function.get("parameters") if strict or self.required else None
        return call_format.tool_calls(function["name"], schema or ANY_OBJECT, strict)


def parse_tools(
    tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None
) -> ToolChoice:
    """Check `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's chat. ApiError 400."""
    shown = tuple(_checked(i, tool) for i, tool in enumerate(tools or ()))
    if len(shown) > MAX_TOOLS:
        raise invalid("tools", f"must be at most {MAX_TOOLS}", len(shown))
    every = frozenset(_function(tool)["name"] for tool in shown)
    parallel = parallel is not False
    if choice in (None, "auto"):
        return ToolChoice(shown, every, False, parallel)
    if choice == "none":
        return ToolChoice()
    if not shown:
        raise ApiError(400, "tool_choice: needs tools", param="tool_choice")
    if choice == "required":
        return ToolChoice(shown, every, True, parallel)
    names, required = _chosen(choice)
    if not names or not names <= every:
        raise invalid("tool_choice", f"must name tools of {', '.join(sorted(every))}", choice)
    return ToolChoice(shown, names, required, parallel)


def _chosen(choice: Any) -> tuple[frozenset[str], bool]:
    """Return the tool names of a choice object, and whether a call is required."""
    if not isinstance(choice, dict):
        raise invalid("tool_choice", "must be none, auto, required or a tool", choice)
    if choice.get("type") == "allowed_tools":
        inside = choice.get("allowed_tools", choice)
        tools = inside.get("tools") if isinstance(inside, dict) else None
        if not isinstance(tools, list) or inside.get("mode") not in ("auto", "required"):
            raise invalid("tool_choice", "must have tools, and a mode of auto or required", choice)
        return frozenset(map(_name, tools)), inside["mode"] == "required"
    return frozenset([_name(choice)]), True


def _name(tool: Any) -> str:
    inside = tool.get("function", tool) if isinstance(tool, dict) else None
    name = inside.get("name") if isinstance(inside, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice", "must name a function", tool)
    return name


def _checked(i: int, tool: dict[str, Any]) -> dict[str, Any]:
    where, function = f"tools[{i}]", tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise invalid(where, 'must have the type "function" and a function', tool.get("type"))
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid(f"{where}.function.name", "must be a name", function.get("name"))
    if not isinstance(function.get("parameters", {}), dict):
        raise invalid(
            f"{where}.function.parameters", "must be a JSON schema", function["parameters"]
        )
    return tool


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = tool["function"]
    return function
