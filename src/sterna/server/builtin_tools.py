"""Parts of requests that are for tools which a server runs itself: this one runs none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sterna.errors import shown

__all__ = ["Warn", "client_tools", "skip_builtin_part"]

Warn = Callable[[str], None]

#: What comes of such tools in conversations: items of responses, blocks of messages.
_PARTS = (
    "_search_call", "_search_output", "code_interpreter_call", "image_generation_call", "mcp_",
    "computer_call", "shell_call", "apply_patch_call", "custom_tool_call", "additional_tools",
    "configuration_update", "program", "compaction_trigger", "server_tool_use", "_tool_result",
    "redacted_thinking", "tool_addition", "tool_removal", "container_upload", "fallback",
)  # fmt: skip


def client_tools(tools: Iterable[Any] | None, kinds: tuple[Any, ...], warn: Warn) -> list[Any]:
    """The tools whose calls a client answers, of these types; the others are left out.

    What has no type, or is no object, stays for whoever checks it.
    """
    kept = []
    for i, tool in enumerate(tools or ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is None or not isinstance(kind, str) or kind in kinds:
            kept.append(tool)
        else:
            warn(f"tools[{i}]: left out, since tools of the type {shown(kind)} are not run here")
    return kept


def skip_builtin_part(kind: Any, where: str, warn: Warn) -> bool:
    """Whether a part of a conversation is of such a tool, and so is left out."""
    if not isinstance(kind, str) or not any(part in kind for part in _PARTS):
        return False
    warn(f"{where}: left out, since {shown(kind)} is of tools that are not run here")
    return True
