"""`TaggedArguments`: arguments of a tool call written one by one between tags, not as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.json_schema_rewriting import for_llguidance, grammar_options

__all__ = ["TaggedArguments"]

#: Keywords of an arguments schema that are enforced, or that are notes.
_KEPT = {
    "type", "properties", "required", "additionalProperties", "$defs", "definitions", "$schema",
    "title", "description", "examples", "default",
}  # fmt: skip
#: Keywords that would restrict a raw text.
_NARROWS = ("pattern", "minLength", "maxLength", "format", "allOf", "not", "if")


@dataclass(frozen=True)
class TaggedArguments:
    """The form of tagged arguments, each a raw text if its schema allows a text, else JSON.

    opens: the tag before an argument, with {} for its name; closes: the tag behind it.
    """

    opens: str
    closes: str

    def rules(self, call: str, schema: dict[str, Any]) -> tuple[str, list[str]]:
        """Return the body of a call's rule, and the grammar lines that it needs.

        call: the rule's name. TEXT is any text. Arguments come in the order of the schema.
        """
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            if schema.get("additionalProperties") is False or schema.get("maxProperties") == 0:
                return "", []
            before, after = map(json.dumps, self.opens.split("{}"))
            return f"{call}_any*", [
                f"{call}_any: {before} NAME {after} {call}_text",
                f"{call}_text[lazy]: TEXT {json.dumps(self.closes)}",
                "NAME: /[^>\\n]+/",
            ]
        body: list[str] = []
        lines: list[str] = []
        required = schema.get("required", [])
        for i, (name, given) in enumerate(properties.items()):
            rule, opens = f"{call}_{i}", json.dumps(self.opens.replace("{}", name))
            lines.append(f"{rule}: {opens} {self._value(rule, given, schema, lines)}")
            body.append(rule + "?" * (name not in required))
        return " ".join(body), lines

    def _value(self, rule: str, given: Any, schema: dict[str, Any], lines: list[str]) -> str:
        found, closes = _resolved(given, schema), json.dumps(self.closes)
        constants = _constants(found)
        if constants:
            return f"({' | '.join(map(json.dumps, constants))}) {closes}"
        if _takes_text(found, schema):
            lines.append(f"{rule}_text[lazy]: TEXT {closes}")
            return f"{rule}_text"
        whole = found | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        options = {"x-guidance": grammar_options(strict=False)}
        return f"%json {json.dumps({**for_llguidance(whole), **options})} {closes}"

    def left_out(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield the parts of a schema that this form does not enforce."""
        for name in schema.keys() - _KEPT:
            yield f"{name} is not enforced of arguments that are written one by one"
        for name, given in (schema.get("properties") or {}).items():
            found = _resolved(given, schema)
            narrowed = [key for key in _NARROWS if key in found]
            if narrowed and _takes_text(found, schema) and not _constants(found):
                yield f"{name}: {narrowed[0]} is not enforced of a text that stands as it is"


def _resolved(given: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Follow a schema's reference to a definition; {} for what is no schema."""
    for _ in range(8):
        place = given.get("$ref") if isinstance(given, dict) else None
        if not isinstance(place, str):
            break
        found: Any = schema
        for step in place.removeprefix("#").strip("/").split("/"):
            found = found.get(step, {}) if isinstance(found, dict) else {}
        given = found
    return given if isinstance(given, dict) else {}


def _constants(found: dict[str, Any]) -> list[str]:
    """Return the texts of enum or const, if the schema has them."""
    values = found.get("enum", [found["const"]] if "const" in found else [])
    return [v if isinstance(v, str) else json.dumps(v) for v in values if v != ""]


def _takes_text(found: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the value may be a text."""
    kinds = found.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    several = found.get("anyOf") or found.get("oneOf")
    if isinstance(several, list):
        return any(_takes_text(_resolved(one, schema), schema) for one in several)
    return True
