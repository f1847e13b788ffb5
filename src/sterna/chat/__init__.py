"""Chat templates: messages -> the text of a prompt.

template    `ChatTemplate`
sources     the Jinja sources and special tokens of a model's files
rendering   Jinja, imported once a conversation is rendered
messages    checks of messages, tools and variables
reasoning   <think> … </think> in prompts and answers
tools       tools in the system prompt, for templates that have no place for them
calls       arguments of tool calls, as text or objects
named       well-known templates by name
documents   documents for retrieval
sandbox, compiler, budget, limits, clock
            Jinja with bounded time and memory, and a clock that can be set
"""

from __future__ import annotations

from sterna.chat.messages import check_messages
from sterna.chat.template import ChatTemplate

__all__ = ["ChatTemplate", "check_messages"]
