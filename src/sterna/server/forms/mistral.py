"""Mistral: a list of objects behind the special token [TOOL_CALLS], to the end of the answer."""

from __future__ import annotations

from sterna.server.forms.base import Form

FORM = Form(
    trigger="[TOOL_CALLS]",
    begin='[TOOL_CALLS][{"name": {}, "arguments": ',
    end="}]",
    opens=("[TOOL_CALLS]", '[{"name"'),
)
