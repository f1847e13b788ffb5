"""`ResponseTools`: the tools of a responses request, and how their calls are named in items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sterna.llm.tool_choice import ToolChoice
from sterna.server.builtin_tools import Warn, client_tools
from sterna.server.errors import invalid
from sterna.server.tool_choice import parse_tools

__all__ = ["ResponseTools", "name_in_namespace"]


@dataclass(frozen=True)
class ResponseTools:
    """The tools of a request.

    choice: with the names that the model sees. namespaces: (namespace, name) of each tool in a
    namespace, by the name that the model sees.
    """

    choice: ToolChoice = field(default_factory=ToolChoice)
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_request(
        cls, tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None, warn: Warn
    ) -> ResponseTools:
        """Read `tools`, `tool_choice` and `parallel_tool_calls`. ApiError 400, or RequestError."""
        every, namespaces = {}, {}
        for where, tool in client_tools(tools, ("function", "custom", "namespace"), warn).items():
            if tool.get("type") != "namespace":
                every[where] = tool
                continue
            for place, inner in _tools_within(where, tool):
                seen = name_in_namespace(tool["name"], inner["name"])
                namespaces[seen] = tool["name"], inner["name"]
                every[place] = {**inner, "name": seen}
        return cls(parse_tools(every, choice, parallel, flat=True), namespaces)

    def named(self, seen: str) -> dict[str, str]:
        """Return the fields of an item that name a tool. seen: the name that the model sees."""
        if seen not in self.namespaces:
            return {"name": seen}
        namespace, name = self.namespaces[seen]
        return {"name": name, "namespace": namespace}


def name_in_namespace(namespace: Any, name: str) -> str:
    """Return the name that the model sees of a tool in a namespace; None is no namespace."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.rstrip('_')}__{name}"


def _tools_within(where: str, tool: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tools of a namespace with their places. ApiError 400."""
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise invalid(f"{where}.name", "must be a name", tool.get("name"))
    inside = tool.get("tools")
    if not isinstance(inside, list):
        raise invalid(f"{where}.tools", "must be a list of tools", inside)
    for i, inner in enumerate(inside):
        place = f"{where}.tools[{i}]"
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise invalid(place, "must be a tool with a name", inner)
        yield place, inner
