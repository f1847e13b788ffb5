"""Muse: a recipient for each message, and calls as tags."""

from __future__ import annotations

from sterna.engine.decoding.grammars import Frame, Messages
from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_START = "<|message|><atem:function_calls>\n"
FORMAT = LayoutFormat(
    trigger="",
    begin=f' to={NAME}{_START}<atem:invoke name="{NAME}">\n',
    end="</atem:invoke>\n</atem:function_calls>",
    frame=Frame(separator="<|eom|><|start|>assistant"),
    messages=Messages(
        "<|eom|>", "<|start|>assistant", " to=self<|message|>", " to=user<|message|>"
    ),
    form=TaggedArguments('<atem:parameter name="{}">', "</atem:parameter>\n"),
)
