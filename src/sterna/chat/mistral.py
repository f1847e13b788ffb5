"""Chat templates of Mistral's tekken.json files, whose repositories have none.

The version that such a file names decides where tools stand, and how calls and results are written.
Of all versions a turn is [INST]…[/INST], an answer, </s>; the system prompt has marks of its own.
"""

from __future__ import annotations

__all__ = ["template_of"]

_TEXT = (
    "{% macro text(content) %}{% if content is string %}{{ content }}{% elif content %}"
    "{% for part in content %}{% if part.type == 'text' %}"
    "{{ '\n\n' if loop.previtem and loop.previtem.type == 'text' }}{{ part.text }}"
    "{% elif part.type == 'thinking' %}{{ thought(part.thinking) }}"
    "{% elif part.type in ['image', 'image_url'] %}[IMG]{% endif %}{% endfor %}{% endif %}"
    "{% endmacro %}"
    "{% macro thought(content) %}[THINK]{% if content is string %}{{ content }}{% else %}"
    "{% for part in content %}{{ part.text }}{% endfor %}{% endif %}[/THINK]{% endmacro %}"
)
_TOOLS = (
    "{% macro available() %}[AVAILABLE_TOOLS][{% for tool in tools %}"
    '{{ {"type": "function", "function": {"name": tool.function.name, '
    '"description": tool.function.description or "", '
    '"parameters": tool.function.parameters or {}}} | tojson }}'
    "{{ ', ' if not loop.last }}{% endfor %}][/AVAILABLE_TOOLS]{% endmacro %}"
    "{% macro arguments(call) %}{% if call.function.arguments is string %}"
    "{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}"
    "{% endmacro %}"
)
#: Where the tools stand: before the first or the last message of the user.
_FIND = (
    "{% set at = namespace(first=-1, last=-1) %}{% for message in messages %}"
    "{% if message.role == 'user' %}{% if at.first < 0 %}{% set at.first = loop.index0 %}"
    "{% endif %}{% set at.last = loop.index0 %}{% endif %}{% endfor %}"
)
_TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}[SYSTEM_PROMPT]{{ text(message.content) }}[/SYSTEM_PROMPT]"
    "{% elif message.role == 'user' %}"
    "{% if tools and loop.index0 == at.@place %}{{ available() }}{% endif %}"
    "[INST]{{ text(message.content) }}[/INST]"
    "{% elif message.role == 'tool' %}[TOOL_RESULTS]@result[/TOOL_RESULTS]"
    "{% elif message.role == 'assistant' %}@reasoning"
    "{% if message.content is string %}{{ message.content.rstrip(' ') }}"
    "{% else %}{{ text(message.content) }}{% endif %}"
    "{% if message.tool_calls %}@calls{% endif %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)
_REASONING = "{% if message.reasoning_content %}{{ thought(message.reasoning_content) }}{% endif %}"
_IN_ONE = (
    "[TOOL_CALLS][{% for call in message.tool_calls %}"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ arguments(call) }}'
    '{% if call.id %}, "id": {{ call.id | tojson }}{% endif %}}'
    "{{ ', ' if not loop.last }}{% endfor %}]"
)
_EACH = (
    "{% for call in message.tool_calls %}[TOOL_CALLS]{{ call.function.name }}@id[ARGS]"
    "{{ arguments(call) }}{% endfor %}"
)
_CALL_ID = "{% if call.id %}[CALL_ID]{{ call.id }}{% endif %}"
_WITH_ID = "{{ message.tool_call_id }}[TOOL_CONTENT]{{ text(message.content) }}"
_WITHOUT_ID = "{{ text(message.content) }}"
#: Versions -> before which of the user's messages tools stand, a result, reasoning, and calls.
_VERSIONS = {
    "v7": ("last", _WITH_ID, "", _IN_ONE),
    "v11": ("last", _WITH_ID, "", _EACH.replace("@id", _CALL_ID)),
    "v13": ("first", _WITHOUT_ID, _REASONING, _EACH.replace("@id", "")),
}


def template_of(version: str) -> str | None:
    """Return the Jinja template of a tekken.json's version; None if it is not known."""
    if version not in _VERSIONS:
        return None
    parts = zip(("@place", "@result", "@reasoning", "@calls"), _VERSIONS[version], strict=True)
    turns = _TURNS
    for name, part in parts:
        turns = turns.replace(name, part)
    return _TEXT + _TOOLS + _FIND + turns
