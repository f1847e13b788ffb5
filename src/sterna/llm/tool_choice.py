"""`ToolChoice`: which tools the model sees, and which it may or must call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sterna.engine.decoding.constraints import ToolCall
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
    """

    shown: tuple[dict[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    required: bool = False
    parallel: bool = True

    @classmethod
    def of_tools(cls, tools: Sequence[Mapping[str, Any]] | None) -> ToolChoice:
        """Let the model call any of the tools that have a name, or none."""
        shown = tuple(map(dict, tools or ()))
        names = (function_of(tool).get("name") for tool in shown)
        return cls(shown, frozenset(name for name in names if isinstance(name, str) and name))

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
            strict = bool(function.get("strict"))
            schema = function.get("parameters") if strict or self.required else None
            yield from call_format.tool_calls(function["name"], schema or ANY_OBJECT, strict)

    def _functions(self) -> Iterator[Mapping[str, Any]]:
        for function in map(function_of, self.shown):
            if isinstance(function.get("name"), str):
                yield function


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the function of a tool, which may be a bare one."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
    return function if isinstance(function, Mapping) else {}
