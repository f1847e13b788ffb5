"""Schemas: what is enforced, what is refused, and what is left out where that is asked for."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema_rs
import pytest
from helpers import failure
from test_constraints import PERSON, accepts, walk

from sterna import LLM
from sterna.engine.decoding import json_schema_rewriting
from sterna.errors import RequestError

# ---------------------------------------------------------------------------------------- schemas


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=2)


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
    {
        "type": "object",
        "patternProperties": {"^a": {"type": "integer"}},
        "properties": {"ab": {"type": "string"}},
    },
    {
        "type": "object",
        "additionalProperties": {"type": "null"},
        "maxProperties": 2,
        "minProperties": 1,
    },
    {
        "type": "array",
        "prefixItems": [{"type": "boolean"}],
        "items": {"type": "integer"},
        "minItems": 2,
        "maxItems": 4,
    },
    {"type": "number", "exclusiveMinimum": -1.5, "maximum": 2, "multipleOf": 0.5},
    {"type": "integer", "minimum": -7, "exclusiveMaximum": 120, "multipleOf": 3},
    {"type": "string", "pattern": "^[ab]{2}c", "maxLength": 5},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "string", "pattern": r"^[^\x00-\x1fa]b\n\x41$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {"enum": [1, "one", None, {"a": [True]}]},
    {"const": {"b": ["x\n"]}},
    {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}]},
    {"oneOf": [{"type": "string", "maxLength": 1}, {"type": "boolean"}]},
    {
        "allOf": [
            {"type": "object", "required": ["x"]},
            {"properties": {"x": {"minimum": 9, "type": "integer"}}},
        ]
    },
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}},
                "additionalProperties": False,
            }
        },
    },
    {"type": ["integer", "string"], "minimum": 5, "maxLength": 1},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:40])
def test_texts_at_random_are_valid(llm: LLM, schema: Any) -> None:
    """jsonschema-rs accepts every text that masks allow."""
    constraint, judge = llm.constraints.json_schema(schema), jsonschema_rs.validator_for(schema)
    rng, texts = random.Random(1), set[str]()
    for _ in range(12):
        if text := walk(llm, constraint, rng):
            texts.add(text)
            assert judge.is_valid(json.loads(text, parse_float=float)), text
    assert texts


#: (pattern, what it matches in JavaScript, what it does not)
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    (r"^\S$", ["a", "é"], [" ", "\u00a0", "\ufeff", "\u3000"]),
    (r"^[^\s]$", ["a"], [" ", "\u00a0", "\u2028"]),
    (r"^[\Sx]\s$", ["a\u00a0", "x\ufeff"], ["a", "\u00a0 "]),
    (r"^.$", ["a", "\u0085"], ["\n", "\r", "\u2028"]),
    (r"^[.]\.$", [".."], ["a.", ".a"]),
    (r"^[[a&&b~]+$", ["[a&b~"], ["c"]),
    (r"^[^a&&b]$", ["c"], ["a", "&", "b"]),
    (r"^\\S\d\w$", ["\\S1_"], ["\\a1a", "\\S٣a", "\\S1é"]),
    (r"b", ["abc"], ["ac"]),
]


@pytest.mark.parametrize(("pattern", "valid", "invalid"), PATTERNS, ids=lambda p: str(p)[:12])
def test_patterns_are_those_of_javascript(
    llm: LLM, pattern: str, valid: list[str], invalid: list[str]
) -> None:
    for schema, form in (
        ({"type": "string", "pattern": pattern}, "{}"),
        (
            {
                "type": "object",
                "patternProperties": {pattern: {"const": 1}},
                "additionalProperties": False,
            },
            "{{{}:1}}",
        ),
    ):
        constraint = llm.constraints.json_schema(schema)
        for texts, expected in ((valid, True), (invalid, False)):
            written = [form.format(json.dumps(text, ensure_ascii=False)) for text in texts]
            assert [accepts(llm, constraint, w) for w in written] == [expected] * len(written)


DATES = (
    ["2024-02-29", "2000-02-29", "2023-02-28", "2023-12-31"],
    ["2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01"],
)
TIMES = (["10:00:59Z", "23:59:00.5+01:00"], ["10:00:60Z", "24:00:00Z", "10:00:00"])


def quoted(texts: list[str], form: str = "{}") -> list[str]:
    return [json.dumps(form.format(text)) for text in texts]


#: (schema, what is valid, what is not), after the JSON-Schema-Test-Suite and of our own.
CASES: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "string", "format": "date"}, quoted(DATES[0]), quoted(DATES[1])),
    ({"type": "string", "format": "time"}, quoted(TIMES[0]), quoted(TIMES[1])),
    (
        {"type": "array", "items": {"format": "date-time", "pattern": "^2"}},
        [f"[{', '.join(quoted(DATES[0], '{}T10:00:59Z'))}, 5]"],
        [
            f"[{text}]"
            for text in quoted(DATES[1], "{}T10:00:59Z") + quoted(TIMES[1], "2024-01-01T{}")
        ],
    ),
    (
        PERSON,
        ['{"name":"a","age":3,"of":null}'],
        ['{"name":"a","age":2,"of":null}', '{"name":"a"}', "[]"],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"a": 1,"b": "x"}'],
        ['{"a":"x"}', '{"\\u0061":"x"}', '{"a":1,"a":"x"}'],
    ),
    (
        {"type": "object", "properties": {"a/b": {"type": "null"}}},
        ['{"a/b":null}'],
        ['{"a\\/b":1}', '{"a/b":1}'],
    ),
    (
        {"type": "object", "properties": {"a\nb": {"type": "null"}}},
        ['{"a\\nb":null}'],
        ['{"a\\u000ab":1}'],
    ),
    ({"type": "string", "maxLength": 2}, ['"ab"', '"\\n\\n"', '"ü€"'], ['"abc"', '"\\n\\n\\n"']),
    ({"type": "number", "maximum": 5}, ["5", "-1.5"], ["5.01", "1e10", "6"]),
    ({"properties": {"a": False}}, ['{"b":1}', "1"], ['{"a":1}']),
    ({"type": "array", "items": False, "prefixItems": [{}]}, ["[]", "[1]"], ["[1,2]"]),
    (
        {"x-guidance": {"whitespace_pattern": "x*", "json_allowed_escapes": "u"}, "type": "array"},
        ["[1, 2]"],
        ["[1,xx2]", '["\\u0061"]'],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda s: json.dumps(s)[:30])
def test_what_is_enforced(llm: LLM, schema: Any, valid: list[str], invalid: list[str]) -> None:
    for given in (schema, json.dumps(schema)):
        constraint = llm.constraints.json_schema(given)
        assert [accepts(llm, constraint, text) for text in valid] == [True] * len(valid)
        assert [accepts(llm, constraint, text) for text in invalid] == [False] * len(invalid)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"type": "null"}}, ["not"]),
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"if": {}, "then": {}}, ["if"]),
        ({"dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, ["oneOf"]),
        ({"type": "string", "format": "colour"}, ["format", "colour"]),
        ({"type": "string", "pattern": "(?=a)b"}, ["look-around"]),
        ({"type": "object", "minProperties": 2}, ["minProperties", "2"]),
        ({"allOf": [{"properties": {"a": {"minProperties": 3}}}]}, ["/allOf/0/properties/a"]),
        ({"properties": {"a": {"$id": "x", "$ref": "#"}}}, ["/properties/a", "$id"]),
        ({"enum": ["ok", {"a": ["b\x00c"]}]}, ["control characters"]),
        ({"properties": {"a\x7f": {}}}, ["control characters"]),
        ({"type": "string", "pattern": "a\\x1fb"}, ["control characters"]),
        ({"type": "string", "pattern": "a\\u000bb"}, ["control characters"]),
        ({"patternProperties": {"a\x01": {}}}, ["control characters"]),
        ({"type": "string", "pattern": "[+--]"}, ["--"]),
        ({"type": "string", "pattern": "(?i)a"}, ["flags"]),
        ({"$ref": "https://example.com/schema"}, ["example.com"]),
        (False, ["schema"]),
        ("{", ["JSON"]),
        ('{"a": 1, "a": 2}', ["JSON"]),
        ([1], ["object or a boolean"]),
        ({"a": {1, 2}}, ["JSON"]),
        ("[" * 100_000, ["JSON"]),
        ({"enum": ["x" * (json_schema_rewriting.MAX_BYTES + 1)]}, ["bytes"]),
    ],
    ids=lambda s: str(s)[:30],
)
def test_what_is_refused(llm: LLM, schema: Any, words: list[str]) -> None:
    failure(lambda: llm.constraints.json_schema(schema), RequestError, *words)


def test_what_is_left_out_where_that_is_asked_for(llm: LLM) -> None:
    schema = {"type": "object", "minProperties": 2, "not": {"const": 1}}
    loose = llm.constraints.json_schema(schema, strict=False)
    assert any("minProperties" in what for what in loose.ignored)
    assert any("not" in what for what in loose.ignored)
    assert not accepts(llm, loose, "[]")
    assert llm.constraints.json_schema(PERSON).ignored == ()
