"""Hermes, Qwen 2.5 and 3, SmolLM3, Falcon 3: a JSON object in <tool_call> tags."""

from __future__ import annotations

from sterna.llm.tool_call_formats.base import ToolCallFormat

FORMAT = ToolCallFormat(
    trigger="<tool_call>",
    begin='<tool_call>\n{"name": {}, "arguments": ',
    end="}\n</tool_call>",
    opens=("<tool_call>",),
    closes="</tool_call>",
)
