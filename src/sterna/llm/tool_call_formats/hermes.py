"""Hermes, Qwen 2.5 and 3, SmolLM3, Falcon 3: a JSON object in <tool_call> tags."""

from __future__ import annotations

from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

FORMAT = LayoutFormat(
    trigger="<tool_call>",
    begin=f'<tool_call>\n{{"name": "{NAME}", "arguments": ',
    end="}\n</tool_call>",
)
