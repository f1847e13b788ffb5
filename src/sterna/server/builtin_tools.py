"""Built-in tools, such as web_search, that a provider runs itself. Sterna runs none.

Requests that mention them are answered without them, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sterna.errors import shown

__all__ = ["Warn", "client_tools", "skip_builtin_part"]

Warn = Callable[[str], None]

#: How calls and results of such tools are typed: items of responses, blocks of messages.
_PARTS = """
    _search_call _search_output code_interpreter_call image_generation_call mcp_ computer_call
    shell_call apply_patch_call additional_tools configuration_update program compaction_trigger
    server_tool_use _tool_result redacted_thinking tool_addition tool_removal container_upload
    fallback
""".split()


def client_tools(
    tools: Iterable[dict[str, Any]] | None, kinds: tuple[Any, ...], warn: Warn
) -> dict[str, dict[str, Any]]:
    """Return only the tools that the client runs, tools of a type in `kinds`, by their places.

    Tools without a type stay: the caller checks them.
    """
    tools_by_place = {}
    for i, tool in enumerate(tools or ()):
        kind, where = tool.get("type"), f"tools[{i}]"
        if kind is None or not isinstance(kind, str) or kind in kinds:
            tools_by_place[where] = tool
        else:
            warn(f"{where}: ignored, because tools of the type {shown(kind)} are not run here")
    return tools_by_place


def skip_builtin_part(kind: Any, where: str, warn: Warn) -> bool:
    """Return whether a part of a conversation belongs to a built-in tool and is skipped; warns."""
    if not isinstance(kind, str) or not any(part in kind for part in _PARTS):
        return False
    warn(f"{where}: ignored, because {shown(kind)} is of tools that are not run here")
    return True
