"""Functionary 3.2: >>> before each message, whose first line is its recipient."""

from __future__ import annotations

from sterna.engine.decoding.grammars import Frame, Messages
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

FORMAT = LayoutFormat(
    trigger="",
    begin=f"{NAME}\n",
    end="",
    frame=Frame(separator=">>>"),
    messages=Messages(">>>", "", "", "all\n"),
)
