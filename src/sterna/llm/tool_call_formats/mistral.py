"""Mistral: a JSON list after the special token [TOOL_CALLS], up to the end of the answer."""

from __future__ import annotations

from sterna.llm.tool_call_formats.base import ToolCallFormat

FORMAT = ToolCallFormat(
    trigger="[TOOL_CALLS]",
    begin='[TOOL_CALLS][{"name": {}, "arguments": ',
    end="}]",
    opens=("[TOOL_CALLS]", '[{"name"'),
)
