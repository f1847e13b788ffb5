"""Schemas at random: what `json_schema` takes, it enforces.

STERNA_SCHEMAS says how many (2,000 take about a minute on one core). Each is compiled, or refused;
texts at random that its masks allow must be valid to jsonschema-rs.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter

import jsonschema_rs
import pytest
from random_grammars import schema
from test_constraints import walk

from sterna import LLM
from sterna.errors import RequestError

PARTS = 8  # schemas at random and their texts, divided so that cores share them


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
