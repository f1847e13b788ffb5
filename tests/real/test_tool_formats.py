"""Calls of every family: what a published template writes, its grammar allows, and is parsed."""

from __future__ import annotations

from typing import Any

import assets
import pytest
from tool_calls import allowed, constrained, parsed, rendered, tool

from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.server.tool_call_formats import format_of

TEMPLATES = assets.llama_cpp() / "models" / "templates"
DEEP = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["on", "list"],
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "ratio": {"type": "number", "description": "How much."},
        "wet": {"type": "boolean", "description": "Whether."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Which."},
        "deep": {**DEEP, "description": "What.", "additionalProperties": False},
    },
    "required": ["city"],
}
ARGUMENTS = {
    "city": "Zürich <b> & 'x' \"東京\" 1", "days": 3, "ratio": 1.5, "wet": True,
    "tags": ["a", "b c"], "deep": {"on": False, "list": [1, 2]},
}  # fmt: skip
PLAIN = {**ARGUMENTS, "city": "Rome <b> & (x)"}
CALLS = {
    "one": [("get_weather", ARGUMENTS)],
    "two": [("get_weather", PLAIN), ("other-tool", {"city": "B"})],
    "none": [("other-tool", {})],
}
SCHEMAS = {"get_weather": SCHEMA, "other-tool": {**SCHEMA, "required": []}}
#: What fails, and why.
MISSES = {
    ("fireworks-ai-llama-3-firefunction-v2", ""): "reads `functions`, which nobody sets",
    ("Reka-Edge", "one"): "writes escapes of Unicode, which a constrained call never does",
    ("deepseek-ai-DeepSeek-V4", "none"): "writes a blank line in place of no arguments",
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "none"): "as DeepSeek-V4",
}
#: Templates that take an object in a schema for a dictionary whose values have a type.
FLAT = ("CohereForAI-c4ai-command-r-plus-tool_use",)
#: Templates that write the first of several calls, or refuse several.
SINGLE = ("meta-llama", "GigaChat3", "openai-gpt-oss")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def template(name: str) -> ChatTemplate:
    tokens = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
    return ChatTemplate.from_source((TEMPLATES / f"{name}.jinja").read_text(), tokens)


NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_what_the_template_writes(llm: LLM, name: str) -> None:
    """Rendered, allowed by the grammar, and parsed, in whole and in pieces."""
    source = template(name)
    for kind, calls in CALLS.items():
        missed = {(name, ""), (name, kind)} & MISSES.keys()
        single = kind == "two" and any(part in name for part in SINGLE)
        if missed or (single and "meta-llama" in name):
            continue
        shown = {"type": "object", "properties": {}} if name in FLAT else SCHEMA
        text = rendered(source, calls, [tool(n, shown) for n in SCHEMAS])
        constraint = constrained(llm.constraints, format_of(source), SCHEMAS)
        wanted = calls[:1] if single else calls
        for step in (0, 1, 7):
            found, content = parsed(source, text, SCHEMAS, step)
            assert found == wanted, (kind, step)
            assert content == "", (kind, step)
        assert allowed(constraint, llm.constraints, text) == text, kind
    assert len(NAMES) - len({n for n, _ in MISSES}) >= 65
