"""Llama 3.1 and later: JSON objects with "parameters", up to the end of the answer."""

from __future__ import annotations

from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_BEGIN = f'{{"name": "{NAME}", "parameters": '
FORMAT = LayoutFormat(
    trigger='{"name": ', begin=_BEGIN, end="}", others=(f"<|python_tag|>{_BEGIN}",)
)
