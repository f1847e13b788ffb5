"""Solar Open: messages of reasoning, of text, and of calls."""

from __future__ import annotations

from sterna.engine.decoding.grammars import Frame, Messages
from sterna.engine.decoding.special_tokens import ID
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

FORMAT = LayoutFormat(
    trigger="<|tool_calls|>",
    begin=f"<|tool_call:begin|>{ID}<|tool_call:name|>{NAME}<|tool_call:args|>",
    end="<|tool_call:end|>",
    frame=Frame("<|tool_calls|>", "", "<|calls|>"),
    messages=Messages("<|end|>", "<|begin|>assistant", "<|think|>", "<|content|>"),
)
