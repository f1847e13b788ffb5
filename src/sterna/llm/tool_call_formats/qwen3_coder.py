"""Qwen3-Coder, Qwen 3.5 and 3.6: <function=name> tags with <parameter=name> tags."""

from __future__ import annotations

from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

FORMAT = LayoutFormat(
    trigger="<tool_call>",
    begin=f"<tool_call>\n<function={NAME}>\n",
    end="</function>\n</tool_call>",
    form=TaggedArguments("<parameter={}>\n", "\n</parameter>\n"),
    prints_values=True,
)
