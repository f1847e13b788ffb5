"""Schemas at random: what `json_schema` takes, it enforces.

STERNA_SCHEMAS says how many (2,000 take about a minute on one core). Each is compiled, or refused;
texts at random that its masks allow must be valid to jsonschema-rs.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import Any

import jsonschema_rs
import pytest
from test_constraints import walk

from sterna import LLM
from sterna.errors import RequestError

PATTERNS = ("^a", "b$", "^ab?$", "[0-9]+", "^x{2,4}$", "c", "^[^\\x00-\\x1f]$")
FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri")
NAMES = ("a", "ab", "b", "x", "xx", "12", "c")
VALUES: tuple[Any, ...] = (1, "a", None, True, 2.5, [1], {"a": 1}, "bb", "\n")
PARTS = 8  # schemas at random and their texts, divided so that cores share them


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


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schemas(part: int) -> None:
    llm, counted = LLM("nano", threads=1), Counter[str]()
    for seed in range(part, int(os.environ.get("STERNA_SCHEMAS", "2000")), PARTS):
        rng = random.Random(seed)
        made = schema(rng, 3)
        given = (made if isinstance(made, dict) else {}) | {"$defs": {"p": schema(rng, 1)}}
        judge = jsonschema_rs.Draft202012Validator(given, validate_formats=True)
        try:
            constraint = llm.constraints.json_schema(given)
        except RequestError:
            counted["refused"] += 1
            continue
        for _ in range(6):
            try:
                text = walk(llm, constraint, rng)
            except RequestError:  # no value is left where the schema has none
                counted["ended"] += 1
                continue
            # jsonschema-rs is given Python's floats, which have no number above 1e308.
            if text and "Infinity" not in json.dumps(json.loads(text)):
                counted["texts"] += 1
                assert judge.is_valid(json.loads(text)), (seed, given, text)
    assert counted["texts"] > counted["refused"]
