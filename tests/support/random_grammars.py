"""Grammars at random: JSON schemas, patterns, Lark and tools, also behind reasoning."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import tokenizers

from sterna import LLM
from sterna.chat.reasoning import ReasoningMarks
from sterna.engine.decoding.constraints import Constraint, Constraints
from sterna.engine.decoding.grammars import ToolCall
from sterna.tokenizer import Tokenizer

PATTERNS = ("^a", "b$", "^ab?$", "[0-9]+", "^x{2,4}$", "c", "^[^\\x00-\\x1f]$")
FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri")
NAMES = ("a", "ab", "b", "x", "xx", "12", "c")
VALUES: tuple[Any, ...] = (1, "a", None, True, 2.5, [1], {"a": 1}, "bb", "\n")


def some(rng: random.Random, share: float, **keywords: Any) -> dict[str, Any]:
    """Each keyword with this probability; a function makes its value."""
    return {k: v() for k, v in keywords.items() if rng.random() < share}


def simple(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind == 0:
        low = rng.randrange(-20, 20)
        return {"type": "integer"} | some(
            rng, 0.4, minimum=lambda: low, maximum=lambda: low + rng.randrange(30),
            exclusiveMinimum=lambda: rng.randrange(-20, 20), exclusiveMaximum=lambda: 25,
            multipleOf=lambda: rng.choice([2, 3, 5, 10]),
        )  # fmt: skip
    if kind == 1:
        low = round(rng.uniform(-9, 9), rng.randrange(4))
        return {"type": "number"} | some(
            rng, 0.4, minimum=lambda: low, maximum=lambda: low + rng.randrange(9),
            exclusiveMaximum=lambda: round(rng.uniform(-3, 9), 2),
            multipleOf=lambda: rng.choice([0.5, 0.1, 0.25, 2]),
        )  # fmt: skip
    if kind == 2:
        short = rng.randrange(4)
        return {"type": "string"} | some(
            rng, 0.35, minLength=lambda: short, maxLength=lambda: short + rng.randrange(5),
            pattern=lambda: rng.choice(PATTERNS), format=lambda: rng.choice(FORMATS),
        )  # fmt: skip
    if kind == 3:
        return {"enum": rng.sample(VALUES, 3)} | some(rng, 0.4, type=lambda: "string")
    if kind == 4:
        return {"const": rng.choice(VALUES)} | some(rng, 0.3, minLength=lambda: 2)
    if kind == 5:
        types = rng.sample(["string", "integer", "null", "boolean", "number"], 2)
        return {"type": types} | some(rng, 0.5, minimum=lambda: 3, maxLength=lambda: 2)
    loose = (True, {}, {"minimum": 5}, {"minLength": 2}, {"required": ["a"]}, {"type": "null"})
    return rng.choice(loose)


def schema(rng: random.Random, depth: int) -> Any:
    def inner() -> Any:
        return schema(rng, depth - 1)

    kind = rng.randrange(9) if depth else 0
    if kind < 3:
        return simple(rng)
    if kind < 5:
        return some(
            rng, 0.5, type=lambda: "object", minProperties=lambda: rng.randrange(3),
            properties=lambda: {name: inner() for name in rng.sample(NAMES, 2)},
            patternProperties=lambda: {rng.choice(PATTERNS): inner()},
            additionalProperties=lambda: rng.choice([False, inner()]),
            required=lambda: rng.sample(NAMES, rng.randrange(3)),
            maxProperties=lambda: rng.randrange(4),
        )  # fmt: skip
    if kind == 5:
        return some(
            rng, 0.5, type=lambda: "array", prefixItems=lambda: [inner()], items=inner,
            minItems=lambda: rng.randrange(3), maxItems=lambda: rng.randrange(4),
        )  # fmt: skip
    if kind == 6:
        whole = {rng.choice(["anyOf", "oneOf", "allOf"]): [inner(), inner()]}
        return whole | some(rng, 0.3, type=lambda: rng.choice(["object", "string", "integer"]))
    one = inner()
    if kind == 7:
        return {**one, "allOf": [inner()]} if isinstance(one, dict) else one
    return {"$ref": "#/$defs/p"} | (one if isinstance(one, dict) else {})


#: Special tokens of several families, two of which end a text.
SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|image|>",
    "<|eot|>",
)  # fmt: skip
REGEXES = ("[a-c]{1,9}", "(yes|no|perhaps)", "a*b?c{2}", "(?:ab|a.c)+", '"[^"]{0,7}"', ".{3}|x+y")
LARKS = (
    'start: "a" (/[bc]/ "d")* "e"',
    "start: word (SPACE word){1,4}\nword: /[a-z]+/\nSPACE: /[ \\n]/",
    "start: open TEXT close\nopen: <[{0}]>\nclose: <[{1}]>\nTEXT: /[a-z ]*/",
    'start: (<[{2}]> | /x/)+ "y"',
    'start: short rest\nshort[max_tokens=3]: /[a-z ]+/\nrest: " end"',
    'start: part*\npart[stop=";"]: /[a-z]+;?/',
    "start: part /[0-9]+/\npart[lazy]: /[a-z]*[.]/",
    'start: (name "=" %json {"type": ["integer", "null"]} ";")+\nname: /[a-z]{1,5}/',
)


def constraints_of_many(llm: LLM) -> Constraints:
    """A compiler for a small model's tokens and SPECIAL."""
    backend = tokenizers.Tokenizer.from_str(llm.tokenizer.to_json())
    backend.add_special_tokens(list(SPECIAL))
    ends = [*llm.tokenizer.eos_ids, backend.token_to_id("<|im_end|>")]
    tokenizer = Tokenizer.from_parts(Path("nano"), backend, {}, [{"eos_token_id": ends}])
    return Constraints(tokenizer, tokenizer.vocab_size)


def constraint(rng: random.Random, make: Constraints) -> Constraint:
    """A constraint at random; RequestError for one that is refused."""
    kind = rng.randrange(7)
    if kind < 3:
        made = make.json_schema({"$defs": {"p": schema(rng, 1)}, "allOf": [schema(rng, 3)]})
    elif kind == 3:
        made = make.regex(rng.choice(REGEXES))
    elif kind == 4:
        ids = sorted(set(make.tokenizer.added.values()) - set(make.tokenizer.eos_ids))
        lark = rng.choice(LARKS)
        for i, id in enumerate(rng.sample(ids, 3)):
            lark = lark.replace(f"{{{i}}}", str(id))
        made = make.lark(lark)
    elif kind == 5:
        made = make.choice(["".join(rng.choices("ab c", k=9)).strip() or "x" for _ in range(4)])
    else:
        opens = rng.choice(("<tool_call>", "<|call|>", "[CALL]"))
        ends = rng.choice(("</tool_call>", "</tool_call><|im_end|>", "", ")"))
        calls = [
            ToolCall(f"{opens}{name}(", schema(rng, 1), ends, strict=False) for name in ("f", "go")
        ]
        made = make.tools(calls, opens, rng.random() < 0.7, rng.random() < 0.5)
    if rng.random() < 0.2:
        made = made.after_reasoning(rng.random() < 0.5, ReasoningMarks())
    return made
