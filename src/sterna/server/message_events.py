"""Content blocks of answers in Anthropic's Messages API, whole and streamed."""

from __future__ import annotations

from typing import Any

from sterna.chat.calls import object_of
from sterna.outputs import Delta
from sterna.server.sse import event

__all__ = ["BlockStream", "content_blocks"]


def content_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message of OpenAI's chat."""
    blocks: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        thought = message["reasoning_content"]
        blocks.append({"type": "thinking", "thinking": thought, "signature": ""})
    if message["content"]:
        blocks.append({"type": "text", "text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**block, "input": object_of(function["arguments"])})
    return blocks


class BlockStream:
    """The events of content blocks, of which one is open at a time."""

    def __init__(self) -> None:
        self._index, self._open = -1, ""

    def take(self, delta: Delta) -> list[bytes]:
        """Return the events for a delta of the answer."""
        events = []
        block = {
            "content": {"type": "text", "text": ""},
            "reasoning_content": {"type": "thinking", "thinking": "", "signature": ""},
            "tool_calls": {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}},
        }[delta.kind]
        if delta.kind != self._open or delta.id:
            events += self.close()
            self._index, self._open = self._index + 1, delta.kind
            events.append(self._event("content_block_start", content_block=block))
        if delta.text:
            added = {
                "content": {"type": "text_delta", "text": delta.text},
                "reasoning_content": {"type": "thinking_delta", "thinking": delta.text},
                "tool_calls": {"type": "input_json_delta", "partial_json": delta.text},
            }[delta.kind]
            events.append(self._event("content_block_delta", delta=added))
        return events

    def close(self) -> list[bytes]:
        """End the open block, if there is one."""
        was, self._open = self._open, ""
        return [self._event("content_block_stop")] if was else []

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "index": self._index, **fields}, kind)
