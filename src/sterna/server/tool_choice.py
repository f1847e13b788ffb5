"""`tools` and `tool_choice`: which tools the model sees, which it may or must call."""

from __future__ import annotations

from typing import Any

from sterna.llm.tool_choice import ToolChoice, function_of
from sterna.server.chat_rendering import MAX_TOOLS
from sterna.server.errors import ApiError, invalid

__all__ = ["parse_tools"]


def parse_tools(
    tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None
) -> ToolChoice:
    """Check `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's chat. ApiError 400."""
    shown = tuple(_checked(i, tool) for i, tool in enumerate(tools or ()))
    if len(shown) > MAX_TOOLS:
        raise invalid("tools", f"must be at most {MAX_TOOLS}", len(shown))
    every = frozenset(function_of(tool)["name"] for tool in shown)
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
