"""LFM2, whose template does not write calls: [f(a='x')] between its special tokens."""

from __future__ import annotations

from sterna.engine.decoding.grammars import Frame
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat
from sterna.llm.tool_call_formats.pythonic import PYTHONIC, PythonReader

KNOWN_BY = ("List of tools: ",)
FORMAT = LayoutFormat(
    trigger="<|tool_call_start|>",
    begin=f"{NAME}(",
    end=")",
    frame=Frame("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
    form=PYTHONIC,
    reader=PythonReader,
    writes=True,
)
