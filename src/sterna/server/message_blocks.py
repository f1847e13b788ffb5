"""Blocks of Anthropic's messages as messages of OpenAI's chat, which templates expect."""

from __future__ import annotations

import json
from typing import Any

from sterna.errors import shown
from sterna.server.builtin_tools import Warn, skip_builtin_part
from sterna.server.chat_messages import content_of_parts
from sterna.server.errors import field_error, invalid

__all__ = ["joined", "messages_of_blocks"]

Parts = list[dict[str, Any]]


def messages_of_blocks(
    role: Any, blocks: list[Any], where: str, warn: Warn
) -> list[dict[str, Any]]:
    """Convert a message with blocks. Results of tools become messages of their own."""
    results: list[dict[str, Any]] = []
    parts: Parts = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        place, kind = f"{where}[{i}]", block.get("type") if isinstance(block, dict) else None
        if kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning.append(block["thinking"])
        elif kind == "tool_use" and isinstance(block.get("name"), str):
            function = {"name": block["name"], "arguments": json.dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            content = _result(block, place, warn)
            results.append(
                {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
            )
        elif (of_block := _parts(block, place, warn)) is not None:
            parts += of_block
        elif not skip_builtin_part(kind, place, warn):
            raise field_error(
                place,
                "must be text, image, document, search_result, thinking, tool_use "
                f"or tool_result, but is {shown(kind)}",
            )
    if parts or reasoning or calls:
        message: dict[str, Any] = {"role": role, "content": content_of_parts(parts, where)}
        if reasoning:
            message["reasoning_content"] = "\n".join(reasoning)
        if calls:
            message["tool_calls"] = calls
        results.append(message)
    return results


def _parts(block: Any, where: str, warn: Warn) -> Parts | None:
    """Return the parts of chat that a block of content makes; None for any other block."""
    kind = block.get("type") if isinstance(block, dict) else None
    if (kind == "text" and isinstance(block.get("text"), str)) or kind == "image":
        return [block]
    if kind not in ("document", "search_result"):
        return None
    if (block.get("citations") or {}).get("enabled"):
        warn(f"{where}.citations: ignored, because answers have no citations")
    if kind == "document":
        return _tagged(block, ("title", "context"), _of_source(block.get("source"), where, warn))
    content = block.get("content")
    return _tagged(block, ("title", "source"), _of_blocks(content, f"{where}.content", warn))


def _of_source(source: Any, where: str, warn: Warn) -> Parts:
    """Return the parts of a document. ApiError 400 for PDFs and files."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "text" and isinstance(source.get("data"), str):
        return [{"type": "text", "text": source["data"]}]
    if kind == "content":
        return _of_blocks(source.get("content"), f"{where}.source.content", warn)
    raise invalid(f"{where}.source", "must have the type text or content: PDFs are not read", kind)


def _of_blocks(content: Any, where: str, warn: Warn) -> Parts:
    """Return the parts of a text or of blocks of content. ApiError 400."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise invalid(where, "must be a text or blocks", content)
    made: Parts = []
    for i, block in enumerate(content):
        of_block = _parts(block, f"{where}[{i}]", warn)
        if of_block is None:
            raise invalid(
                f"{where}[{i}]",
                "must be text, image, document or search_result",
                block.get("type") if isinstance(block, dict) else block,
            )
        made += of_block
    return made


def _tagged(block: dict[str, Any], names: tuple[str, ...], parts: Parts) -> Parts:
    """Put a block's parts between tags of its type, behind the fields that describe it."""
    tag = block["type"]
    about = [
        f"<{name}>{block[name]}</{name}>" for name in names if isinstance(block.get(name), str)
    ]
    opens = {"type": "text", "text": "\n".join([f"<{tag}>", *about])}
    return [opens, *parts, {"type": "text", "text": f"</{tag}>"}]


def _result(block: dict[str, Any], where: str, warn: Warn) -> str | Parts:
    """Return the content of a tool's result, which says so if it is an error."""
    content = block.get("content") or ""
    made = content_of_parts(_of_blocks(content, f"{where}.content", warn), f"{where}.content")
    return _as_error(made) if block.get("is_error") is True else made


def _as_error(content: str | Parts) -> str | Parts:
    """Return a result that says it is an error, for which chat templates have no field."""
    if isinstance(content, list):
        return [{"type": "text", "text": "Error:"}, *content]
    return content if content[:5].lower() == "error" else f"Error: {content}".rstrip()


def joined(blocks: Any, where: str) -> str:
    """Return the text of blocks, all of which are texts. ApiError 400."""
    if not isinstance(blocks, list) or not all(
        isinstance(b, dict) and b.get("type") == "text" and isinstance(b.get("text"), str)
        for b in blocks
    ):
        raise field_error(where, "must be a text or blocks of text")
    return "\n".join(block["text"] for block in blocks)
