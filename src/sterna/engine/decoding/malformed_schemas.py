"""Malformed parts of JSON schemas, which are left out where a schema need not be enforced in full.

Generators of schemas write types in capitals, references to nothing, and values of wrong types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from sterna.engine.decoding.regex_dialects import to_rust

__all__ = ["without_malformed"]

_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_SCHEMAS = """
    additionalItems additionalProperties contains propertyNames not if then else unevaluatedItems
    unevaluatedProperties
""".split()
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_COUNTED = ("Length", "Items", "Properties", "Contains")
_COUNTS = [f"{end}{what}" for what in _COUNTED for end in ("min", "max")]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_schema(value: Any) -> bool:
    return isinstance(value, (dict, bool))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_type, value))
    return isinstance(value, str) and value in _TYPES


#: The check of each keyword's value.
_RULES: Mapping[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": _is_list,
    "required": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "items": lambda value: _is_schema(value) or _is_list(value),
    "pattern": lambda value: _is_text(value) and _is_pattern(value),
    "format": _is_text,
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "$schema": lambda value: not _is_text(value) or "json-schema.org/" in value,
    "$id": lambda value: _is_text(value) and value.isprintable() and " " not in value,
    **dict.fromkeys(("minimum", "maximum"), _is_number),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        lambda value: _is_number(value) or isinstance(value, bool),
    ),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_SCHEMAS, _is_schema),
    **dict.fromkeys(_NAMED, lambda value: isinstance(value, dict)),
    **dict.fromkeys(_LISTED, _is_list),
}


def without_malformed(schema: dict[str, Any] | bool) -> tuple[dict[str, Any] | bool, list[str]]:
    """Return a schema without its malformed parts, and a list of these with their places."""
    if isinstance(schema, bool):
        return schema, []
    made: dict[str, Any] = json.loads(json.dumps(schema))
    return made, list(_mended(made, made, ""))


def _mended(part: dict[str, Any], root: dict[str, Any], place: str) -> Iterator[str]:
    """Remove the malformed parts of a schema, and yield a description of each."""
    where = place or "/"
    if _lower(part.get("type")) != part.get("type"):
        part["type"] = _lower(part["type"])
        yield f"{where}: type is read in small letters"
    for name in [name for name, is_valid in _RULES.items() if name in part]:
        if not _RULES[name](part[name]):
            del part[name]
            yield f"{where}: {name} is malformed, and is left out"
    if "$ref" in part and not _is_reference(part["$ref"], root):
        del part["$ref"]
        yield f"{where}: $ref refers to no part of the schema, and is left out"
    for pattern in [key for key in part.get("patternProperties", ()) if not _is_pattern(key)]:
        del part["patternProperties"][pattern]
        yield f"{where}: a pattern of patternProperties is malformed, and is left out"
    for inner, key, name in list(_within(part)):
        if isinstance(inner[key], dict):
            yield from _mended(inner[key], root, f"{place}/{name}")
        elif not isinstance(inner[key], bool):
            inner[key] = True
            yield f"{place}/{name}: is no schema, and is left out"


def _lower(kind: Any) -> Any:
    """Return types as JSON schemas spell them, which some generators write in capitals."""
    if isinstance(kind, list):
        return list(map(_lower, kind))
    return kind.lower() if isinstance(kind, str) and kind.lower() in _TYPES else kind


def _within(part: dict[str, Any]) -> Iterator[tuple[Any, Any, str]]:
    """Yield the places of schemas within a schema: the container, the key, and its name."""
    for name in (*_SCHEMAS, "items"):
        if name in part and not isinstance(part[name], list):
            yield part, name, name
    for name in _NAMED:
        for key in part.get(name, ()):
            yield part[name], key, f"{name}/{key}"
    for name in (*_LISTED, "items"):
        if isinstance(part.get(name), list):
            for i in range(len(part[name])):
                yield part[name], i, f"{name}/{i}"


def _is_reference(value: Any, root: dict[str, Any]) -> bool:
    """Whether a reference leads to a part of the schema, as far as that is easily seen."""
    if not isinstance(value, str):
        return False
    if not value.startswith("#"):  # of a part with an $id, or of a draft
        return '"$id"' in json.dumps(root) or "json-schema.org/" in value
    if not value.startswith("#/"):
        return value == "#" or json.dumps(value[1:]) in json.dumps(root)
    target: Any = root
    for name in unquote(value[2:]).split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        elif isinstance(target, dict) and name in target:
            target = target[name]
        else:
            return False
    return _is_schema(target)


def _is_pattern(pattern: str) -> bool:
    """Whether llguidance reads a pattern."""
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(to_rust(pattern)))
