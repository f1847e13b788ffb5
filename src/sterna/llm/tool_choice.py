"""`ToolChoice`: which tools the model sees, and which it may or must call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sterna.checks import checked_flag
from sterna.errors import RequestError, shown

if TYPE_CHECKING:
    from sterna.engine.decoding.grammars import TextArgument, ToolCall
    from sterna.llm.tool_call_formats import ToolCallFormat

__all__ = ["ToolChoice", "function_of"]

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class ToolChoice:
    """The tools of a request.

    Attributes:
        shown: the tools that the model sees, in OpenAI's form or as bare functions.
        names: the tools that it may call.
        required: whether it must call one.
        parallel: whether it may call several.
        texts: by name, the tools whose only argument is a text; with its grammar, if it has one.
    """

    shown: tuple[dict[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    required: bool = False
    parallel: bool = True
    texts: Mapping[str, TextArgument | None] = field(default_factory=dict)

    @classmethod
    def of_tools(
        cls,
        tools: Sequence[Mapping[str, Any]] | None,
        choice: object = None,
        parallel: object = None,
    ) -> ToolChoice:
        """Return the choice among tools that `tool_choice` and `parallel_tool_calls` make.

        choice: "auto" or None, "none", "required", the tool to call, or OpenAI's `allowed_tools`
        with a mode and a list of tools; a tool is {"type": "function", "function": {"name": ...}}
        or {"name": ...}. parallel: whether several calls are allowed, which None means. Tools
        without a name are shown, but not called. RequestError.
        """
        shown_tools = tuple(map(dict, tools or ()))
        names = (function_of(tool).get("name") for tool in shown_tools)
        every = frozenset(name for name in names if isinstance(name, str) and name)
        several = parallel is None or checked_flag("parallel_tool_calls", parallel)
        if choice in (None, "auto"):
            return cls(shown_tools, every, False, several)
        if choice == "none":
            return cls()
        if not every:
            raise RequestError("tool_choice: needs tools, but there are none; give tools")
        if choice == "required":
            return cls(shown_tools, every, True, several)
        chosen, required = _chosen(choice)
        if not chosen or not chosen <= every:
            raise _wrong(f"must name tools of {', '.join(sorted(every))}", choice)
        return cls(shown_tools, chosen, required, several)

    @property
    def schemas(self) -> dict[str, Any]:
        """The JSON schema of each tool's arguments, by name."""
        return {f["name"]: f.get("parameters") for f in self._functions()}

    def calls(self, call_format: ToolCallFormat) -> Iterator[ToolCall]:
        """Yield the rules of all calls that are allowed.

        Arguments follow a strict schema. If a call is required, they follow any schema as far as it
        can be enforced.
        """
        for function in self._functions():
            if function["name"] not in self.names:
                continue
            strict = bool(function.get("strict")) or function["name"] in self.texts
            schema = function.get("parameters") if strict or self.required else None
            text = self.texts.get(function["name"])
            for call in call_format.tool_calls(function["name"], schema or ANY_OBJECT, strict):
                yield replace(call, text=text) if text else call

    def _functions(self) -> Iterator[Mapping[str, Any]]:
        for function in map(function_of, self.shown):
            if isinstance(function.get("name"), str):
                yield function


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the function of a tool, which may be a bare one."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return function if isinstance(function, Mapping) else {}


def _chosen(choice: object) -> tuple[frozenset[str], bool]:
    """Return the names of the tools of a choice object, and whether a call is required."""
    if not isinstance(choice, Mapping):
        raise _wrong("must be none, auto, required or a tool", choice)
    if choice.get("type") == "allowed_tools":
        inside = choice.get("allowed_tools", choice)
        tools = inside.get("tools") if isinstance(inside, Mapping) else None
        if not isinstance(tools, (list, tuple)) or inside.get("mode") not in ("auto", "required"):
            raise _wrong("must have tools, and a mode of auto or required", choice)
        return frozenset(map(_name, tools)), inside["mode"] == "required"
    return frozenset([_name(choice)]), True


def _name(tool: Any) -> str:
    name = function_of(tool).get("name")
    if not isinstance(name, str):
        raise _wrong("must name a function", tool)
    return name


def _wrong(rule: str, value: object) -> RequestError:
    return RequestError(f"tool_choice: {rule}, but got {shown(value)}")
