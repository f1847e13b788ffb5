"""Granite 3, whose template does not write calls: a list of JSON objects after a token."""

from __future__ import annotations

from sterna.engine.decoding.grammars import Frame
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

KNOWN_BY = ("<|tool_call|> followed by a JSON list",)
FORMAT = LayoutFormat(
    trigger="<|tool_call|>",
    begin=f'{{"name": "{NAME}", "arguments": ',
    end="}",
    frame=Frame("<|tool_call|>[", ", ", "]"),
    writes=True,
)
