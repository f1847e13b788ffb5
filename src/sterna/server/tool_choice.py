"""`tools` in OpenAI's form; `sterna.llm.tool_choice` has what the model may or must call."""

from __future__ import annotations

from typing import Any

from sterna.llm.tool_choice import ToolChoice
from sterna.server.errors import invalid

__all__ = ["parse_tools"]


def parse_tools(
    tools: list[dict[str, Any]] | None, choice: Any, parallel: bool | None
) -> ToolChoice:
    """Check `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's chat.

    ApiError 400, or RequestError.
    """
    checked = [_checked(i, tool) for i, tool in enumerate(tools or ())]
    return ToolChoice.of_tools(checked, choice, parallel)


def _checked(i: int, tool: dict[str, Any]) -> dict[str, Any]:
    where, function = f"tools[{i}]", tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise invalid(where, 'must have the type "function" and a function', tool.get("type"))
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise invalid(f"{where}.function.name", "must be a name", function.get("name"))
    given = {key: value for key, value in function.items() if value is not None}
    if not isinstance(given.get("parameters", {}), dict):
        raise invalid(f"{where}.function.parameters", "must be a JSON schema", given["parameters"])
    return {**tool, "function": given}
