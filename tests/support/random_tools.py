"""Tools with random arguments, forms of calls, and calls at random that a constraint allows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.engine.decoding.constraints import Constraint

Flags = npt.NDArray[np.uint8]
MARKS = frozenset(bytes([mark]) for mark in b"\"'<]}),>")
NAMES = ("city", "max_days", "unit", "tags", "filter", "x")
#: Templates, each with a form of calls of its own: how a call is written, with {} for the rest.
FORMS = {
    "JSON": '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n'
    "</tool_call>",
    "named": "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}",
    "tags": "<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}"
    "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>",
    "typed": '<calls><call to="{{ f.name }}">{% for k, v in f.arguments.items() %}'
    '<arg name="{{ k }}" '
    'string="{{ "true" if v is string else "false" }}">{{ v if v is string else v | tojson }}</arg>'
    "{% endfor %}</call></calls>",
    "Python": "<|tool_call_start|>[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="
    "{% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% if not loop.last %}, {% endif %}"
    "{% endfor %})]<|tool_call_end|>",
    "Gemma": '<|tool_call>call:{{ f.name }}{{ "{" }}{{ "}" }}<tool_call|>',
}  # fmt: skip


def template(form: str) -> ChatTemplate:
    """A template that writes tools, and calls in a form."""
    source = (
        "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
        "<|{{ m.role }}|>\n{{ m.content }}{% for c in m.tool_calls or [] %}{% set f = c.function %}"
        + FORMS[form]
        + "{% endfor %}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
        + "{% endif %}"
    )
    return ChatTemplate.from_source(source, {})


def arguments(rng: random.Random) -> dict[str, Any]:
    """A schema of arguments, as tools have them."""
    return {**_object(rng, 2), "$defs": {"kind": {"enum": ["red", "blue"]}}}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(1, 5))
    required = [name for name in names if rng.random() < 0.6]
    properties = {name: _value(rng, depth) for name in names}
    found: dict[str, Any] = {
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": False,
    }  # fmt: skip
    return found


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-20, 20)
    leaves: list[dict[str, Any]] = [
        {"type": "string"}, {"enum": ["C", "F", "K elvin"], "type": "string"}, {"type": "boolean"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(30)},
        {"type": "number"}, {"const": "fixed"}, {"$ref": "#/$defs/kind"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ]  # fmt: skip
    kind = rng.randrange(5) if depth else 0
    if kind < 3:
        return rng.choice(leaves)
    if kind == 3:
        return {"type": "array", "items": _value(rng, depth - 1)}
    return _object(rng, depth - 1)


def walked(
    llm: LLM, constraint: Constraint, rng: random.Random, closing: Flags, most: int = 400
) -> str | None:
    """A text at random that a constraint allows; None where it has not ended in time.

    closing: of `closing_tokens`, which are likelier, so that texts end.
    """
    matcher, tokens = constraint.matcher(), list[int]()
    ends = list(llm.tokenizer.eos_ids)
    for _ in range(most):
        matcher.follow(np.array(tokens, np.int32))
        if matcher.ended:
            return llm.tokenizer.decode(tokens, skip_special=False)
        (mask,) = matcher.masks([], ends)
        flags = np.unpackbits(mask.view(np.uint8), bitorder="little")
        if flags[ends].any():
            return llm.tokenizer.decode(tokens, skip_special=False)
        likely = np.flatnonzero(flags & closing[: len(flags)])
        allowed = likely if len(likely) and rng.random() < 0.5 else np.flatnonzero(flags)
        tokens.append(int(allowed[rng.randrange(len(allowed))]))
    return None


def closing_tokens(llm: LLM) -> Flags:
    """Flags of the tokens that close something in any form."""
    closing = [llm.tokenizer.token_bytes(i)[:1] in MARKS for i in range(llm.tokenizer.vocab_size)]
    return np.array([*closing, *[False] * 64], np.uint8)
