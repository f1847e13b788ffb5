"""Mistral: a JSON list after the special token [TOOL_CALLS], up to the end of the answer."""

from __future__ import annotations

from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_BEGIN = f'[{{"name": "{NAME}", "arguments": '
FORMAT = LayoutFormat(
    trigger="[TOOL_CALLS]", begin=f"[TOOL_CALLS]{_BEGIN}", end="}]", others=(_BEGIN,)
)
