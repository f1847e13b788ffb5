"""Schemas with malformed parts: refused if they are strict, else enforced without those parts."""

from __future__ import annotations

from typing import Any

import pytest
from test_escaped_lark import accepts

from sterna import LLM
from sterna.engine.decoding.malformed_schemas import without_malformed
from sterna.errors import RequestError


def about(value: Any, **more: Any) -> dict[str, Any]:
    """A schema of an object with one property."""
    return {
        "type": "object", "properties": {"a": value}, "required": ["a"],
        "additionalProperties": False, **more,
    }  # fmt: skip


STRING = {"type": "string"}
#: Schemas, and a text each that they forbid all the same.
MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "capitals": ({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}, '{"a":5}'),
    "no reference": (about({"$ref": "#/$defs/Partial<Foo>"}), '{"b":1}'),
    "bare reference": (about({"$ref": "Foo"}), '{"b":1}'),
    "remote reference": (about({"$ref": "https://x.example/y.json"}), '{"b":1}'),
    "reference of a number": (about({"$ref": 5}), '{"b":1}'),
    "unknown type": (about({"type": "any"}), '{"b":1}'),
    "unknown types": (about({"type": ["STRING", "float"]}), '{"b":1}'),
    "no type": (about({"type": None}), '{"b":1}'),
    "required": ({"type": "object", "required": "a"}, "[]"),
    "required numbers": ({"type": "object", "required": [1]}, "[]"),
    "enum": (about({"enum": "abc", **STRING}), '{"a":1}'),
    "empty enum": (about({"enum": [], **STRING}), '{"a":1}'),
    "properties": ({"type": "object", "properties": []}, "[]"),
    "property": (about("string"), '{"b":1}'),
    "items": (about({"type": "array", "items": "string"}), '{"a":1}'),
    "minimum": (about({"type": "integer", "minimum": "3", "maximum": 5}), '{"a":6}'),
    "minLength": (about({**STRING, "minLength": -1, "maxLength": 2}), '{"a":"abc"}'),
    "pattern": (about({**STRING, "pattern": "("}), '{"a":1}'),
    "format": (about({**STRING, "format": 3}), '{"a":1}'),
    "anyOf": (about({**STRING, "anyOf": {}}), '{"a":1}'),
    "a part of anyOf": (about({**STRING, "allOf": ["a", {"maxLength": 1}]}), '{"a":"bc"}'),
    "additionalProperties": ({"type": "object", "additionalProperties": "no"}, "[]"),
    "patternProperties": ({"type": "object", "patternProperties": {"(": {}}}, "[]"),
    "multipleOf": (about({"type": "number", "multipleOf": 0}), '{"a":""}'),
    "$schema": (about(STRING, **{"$schema": "http://x.example/unknown"}), '{"a":1}'),
    "$id": (about(STRING, **{"$id": "no uri %%"}), '{"a":1}'),
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_parts_are_left_out(llm: LLM, name: str) -> None:
    schema, forbidden = MALFORMED[name]
    with pytest.raises(RequestError):
        llm.constraints.json_schema(schema)
    made = llm.constraints.json_schema(schema, strict=False)
    assert made.ignored
    assert accepts(llm, made, '{"a":"b"}') or accepts(llm, made, '{"a":4}') or accepts(
        llm, made, '{"a":[1]}'
    )  # fmt: skip
    assert not accepts(llm, made, forbidden)


@pytest.mark.parametrize("name", ["Partial<Foo>", "My Type", "a/b~c", "Größe", "x%y"])
def test_references_to_names_that_are_no_uris(llm: LLM, name: str) -> None:
    """As generators of TypeScript write them; enforced in full."""
    pointer = name.replace("~", "~0").replace("/", "~1").replace("%", "%25")
    schema = about({"$ref": f"#/$defs/{pointer}"}, **{"$defs": {name: {"type": "integer"}}})
    made = llm.constraints.json_schema(schema)
    assert accepts(llm, made, '{"a":1}')
    assert not accepts(llm, made, '{"a":"1"}')
    assert without_malformed(schema) == (schema, [])


def test_sound_schemas_stay() -> None:
    schema: dict[str, Any] = {
        "$id": "https://x.example/a", "type": ["object", "null"], "nullable": True,
        "properties": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}, "c": {"$ref": "other"},
            "d": {"exclusiveMinimum": True, "minimum": 3}, "e": {"pattern": r"^\p{L}\d+$"},
            "f": {"$ref": "#here"}, "properties": True, "g": {"minLength": 2.0},
        },
        "$defs": {"b": {"$anchor": "here", "enum": [None]}}, "required": [],
        "patternProperties": {"^x-": False}, "items": [{}], "examples": "any", "default": {},
    }  # fmt: skip
    assert without_malformed(schema) == (schema, [])
    assert without_malformed(True) == (True, [])
