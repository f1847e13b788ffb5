"""Llama 3.1 and later: JSON objects with "parameters", up to the end of the answer."""

from __future__ import annotations

from sterna.llm.tool_call_formats.base import ToolCallFormat

FORMAT = ToolCallFormat(
    trigger='{"name": ',
    begin='{"name": {}, "parameters": ',
    end="}",
    opens=('{"name":', '{"type": "function"'),
    key="parameters",
    within=True,
)
