"""`tools` in OpenAI's form; `sterna.llm.tool_choice` has what the model may or must call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sterna.engine.decoding.grammars import TextArgument
from sterna.llm.tool_choice import ToolChoice
from sterna.server.custom_tools import function_of_custom, text_argument
from sterna.server.errors import invalid

__all__ = ["parse_tools"]


def parse_tools(
    tools: list[dict[str, Any]] | Mapping[str, dict[str, Any]] | None,
    choice: Any,
    parallel: bool | None,
    *,
    flat: bool = False,
) -> ToolChoice:
    """Check `tools`, `tool_choice` and `parallel_tool_calls` of OpenAI's chat.

    tools: functions and custom tools; a mapping has them by their places in the request, for
    errors. flat: a tool's fields are next to its type, as in responses. ApiError 400, or
    RequestError.
    """
    if not isinstance(tools, Mapping):
        tools = {f"tools[{i}]": tool for i, tool in enumerate(tools or ())}
    functions: list[dict[str, Any]] = []
    texts: dict[str, TextArgument | None] = {}
    for where, tool in tools.items():
        kind = tool.get("type")
        if kind not in ("function", "custom"):
            raise invalid(where, 'must have the type "function" or "custom"', kind)
        inside = where if flat else f"{where}.{kind}"
        declared = tool if flat else tool.get(kind)
        if not isinstance(declared, dict):
            raise invalid(inside, "must be an object", declared)
        fields = {key: value for key, value in declared.items() if key != "type" or not flat}
        function = _checked(inside, fields)
        if kind == "custom":
            texts[function["name"]] = text_argument(function, inside)
            function = function_of_custom(function)
            functions.append({"type": "function", "function": function})
        else:
            functions.append({**({} if flat else tool), "type": kind, "function": function})
    made = ToolChoice.of_tools(functions, _of_functions(choice), parallel)
    return replace(made, texts=texts)


def _checked(where: str, declared: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool without nulls. ApiError 400."""
    if not isinstance(declared.get("name"), str) or not declared["name"]:
        raise invalid(f"{where}.name", "must be a name", declared.get("name"))
    declared = {key: value for key, value in declared.items() if value is not None}
    if not isinstance(declared.get("parameters", {}), dict):
        raise invalid(f"{where}.parameters", "must be a JSON schema", declared["parameters"])
    return declared


def _of_functions(choice: Any) -> Any:
    """Return a choice in which custom tools are the functions that the model sees."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "custom":
        return {"type": "function", "function": choice.get("custom", choice)}
    inside = choice.get("allowed_tools", choice)
    if choice.get("type") == "allowed_tools" and isinstance(inside, dict):
        tools = inside.get("tools")
        if isinstance(tools, list):
            return {"type": "allowed_tools", **inside, "tools": list(map(_of_functions, tools))}
    return choice
