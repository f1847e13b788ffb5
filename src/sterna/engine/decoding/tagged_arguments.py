"""`TaggedArguments`: arguments of a tool call written one by one between tags, not as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sterna.engine.decoding.escaped_lark import JSON_STRING, string_of
from sterna.engine.decoding.json_schema_rewriting import for_llguidance, grammar_options
from sterna.engine.decoding.special_tokens import SpecialTokens

__all__ = [
    "ArgumentsForm",
    "TaggedArguments",
    "constants",
    "left_out_of_arguments",
    "narrowing",
    "resolved",
]

#: Keywords of an arguments schema that are enforced, or that are notes.
_KEPT = frozenset(
    """
    type properties required additionalProperties $defs definitions $schema title description
    examples default
    """.split()
)
#: Keywords that would restrict a raw text.
_NARROWS = ("pattern", "minLength", "maxLength", "format", "allOf", "not", "if")


class ArgumentsForm(Protocol):
    """How the arguments of a call are written, if they are no JSON object."""

    def rules(
        self, call: str, schema: dict[str, Any], special: SpecialTokens
    ) -> tuple[str, list[str]]:
        """Return the body of a call's rule, and the grammar lines that it needs.

        call: begins the names of the rules. TEXT is any text, NAME that of an argument.
        """

    def left_out(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield the parts of a schema that this form does not enforce."""

    def arguments(self, values: Mapping[str, Any]) -> str:
        """Return the arguments of a call."""

    def text_argument(self, name: str, lark: str, special: SpecialTokens) -> str:
        """Return the body of a call's rule whose only argument is a text of a Lark grammar."""


@dataclass(frozen=True)
class TaggedArguments:
    """The form of tagged arguments, each a raw text if its schema allows a text, else JSON.

    opens: the tag before an argument, with {} for its name; closes: the tag after it. opens_other:
    (type of JSON schema, tag) for types whose tag differs from that of a text. quotes: whether
    texts are JSON as well.
    """

    opens: str
    closes: str
    opens_other: tuple[tuple[str, str], ...] = ()
    quotes: bool = False

    def rules(
        self, call: str, schema: dict[str, Any], special: SpecialTokens
    ) -> tuple[str, list[str]]:
        """Return the body and grammar lines; arguments come in the order of the schema."""
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            if schema.get("additionalProperties") is False or schema.get("maxProperties") == 0:
                return "", []
            return f"{call}_any*", self._any(f"{call}_any", special)
        body: list[str] = []
        lines: list[str] = []
        required = schema.get("required", [])
        for i, (name, subschema) in enumerate(properties.items()):
            rule = f"{call}_{i}"
            lines.append(f"{rule}: {self._argument(rule, name, subschema, schema, lines, special)}")
            body.append(rule + "?" * (name not in required))
        return " ".join(body), lines

    def text_argument(self, name: str, lark: str, special: SpecialTokens) -> str:
        """Return the body of a call's rule whose only argument is a text of a Lark grammar."""
        opens = special.quoted(self.opens.replace("{}", name))
        if self.quotes:
            inner = string_of(lark, JSON_STRING, '"')
            return f"{opens} {inner} {special.quoted(self.closes)}"
        return f"{opens} {special.after_lark(lark, self.closes)}"

    def _any(self, rule: str, special: SpecialTokens) -> list[str]:
        """Return lines of a rule of any argument."""
        tags = {self.opens: f"{rule}_text"}
        if self.quotes:
            tags[self.opens] = f"{rule}_json"
        tags |= {tag: f"{rule}_json" for _, tag in self.opens_other}
        options = []
        for tag, value in tags.items():
            before, after = map(special.quoted, tag.split("{}"))
            options.append(f"{before} NAME {after} {value}")
        json_value = f"%json {json.dumps({'x-guidance': grammar_options(strict=False)})}"
        lines = [f"{rule}: {' | '.join(options)}", *special.up_to(f"{rule}_text", self.closes)]
        return [*lines, f"{rule}_json: {json_value} {special.in_grammar(self.closes)}"]

    def _argument(
        self,
        rule: str,
        name: str,
        subschema: Any,
        schema: dict[str, Any],
        lines: list[str],
        special: SpecialTokens,
    ) -> str:
        """Return a rule's body: an argument, with its tags."""
        own, closes = resolved(subschema, schema), special.in_grammar(self.closes)
        options: dict[str, list[str]] = {}
        if chosen := constants(own):
            for value in chosen:
                raw = isinstance(value, str) and not self.quotes
                text = value if raw else json.dumps(value, ensure_ascii=False)
                options.setdefault(self.tag(value), []).append(special.in_grammar(text))
            options = {tag: [f"({' | '.join(v)}) {closes}"] for tag, v in options.items()}
        elif not self.quotes and _takes_text(own, schema):
            lines += special.up_to(f"{rule}_text", self.closes)
            options[self.opens] = [f"{rule}_text"]
        else:
            options = {tag: [f"{part} {closes}"] for tag, part in self._json(own, schema).items()}
        return " | ".join(
            f"{special.in_grammar(tag.replace('{}', name))} {value}"
            for tag, values in options.items()
            for value in values
        )

    def _json(self, own: dict[str, Any], schema: dict[str, Any]) -> dict[str, str]:
        """Return values of JSON by the tag that opens them."""
        whole = own | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        options = {"x-guidance": grammar_options(strict=False)}
        kinds = own.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not self.opens_other or kinds == [None]:
            tag = self.opens_other[0][1] if self.opens_other else self.opens
            return {tag: f"%json {json.dumps({**for_llguidance(whole), **options})}"}
        by_tag: dict[str, list[str]] = {}
        for kind in kinds:
            by_tag.setdefault(dict(self.opens_other).get(kind, self.opens), []).append(kind)
        made = {}
        for tag, some in by_tag.items():
            part = whole | {"type": some if len(some) > 1 else some[0]}
            made[tag] = f"%json {json.dumps({**for_llguidance(part), **options})}"
        return made

    def tag(self, value: Any) -> str:
        """Return the tag that opens an argument of this value."""
        kind = next((name for kind, name in _KINDS if isinstance(value, kind)), "null")
        return dict(self.opens_other).get(kind, self.opens)

    def arguments(self, values: Mapping[str, Any]) -> str:
        """Return the arguments of a call."""
        text_of_all = ""
        for name, value in values.items():
            raw = isinstance(value, str) and not self.quotes
            text = value if raw else json.dumps(value, ensure_ascii=False)
            text_of_all += f"{self.tag(value).replace('{}', name)}{text}{self.closes}"
        return text_of_all

    def left_out(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield the parts of a schema that this form does not enforce."""
        yield from left_out_of_arguments(schema)
        for name, subschema in (schema.get("properties") or {}).items():
            own = resolved(subschema, schema)
            narrowed = narrowing(own)
            raw = not self.quotes and _takes_text(own, schema)
            if narrowed and raw and not constants(own):
                yield f"{name}: {narrowed[0]} is not enforced of a text that stands as it is"


_KINDS = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def left_out_of_arguments(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keywords of an arguments schema that no form but JSON enforces."""
    for name in schema.keys() - _KEPT:
        yield f"{name} is not enforced of arguments that are written one by one"


def narrowing(subschema: Mapping[str, Any]) -> list[str]:
    """Return the keywords of a schema that would restrict a raw text."""
    return [key for key in _NARROWS if key in subschema]


def resolved(subschema: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Follow a schema's reference to a definition; {} if it is no schema."""
    for _ in range(8):
        place = subschema.get("$ref") if isinstance(subschema, dict) else None
        if not isinstance(place, str):
            break
        target: Any = schema
        for step in place.removeprefix("#").strip("/").split("/"):
            target = target.get(step, {}) if isinstance(target, dict) else {}
        subschema = target
    return subschema if isinstance(subschema, dict) else {}


def constants(subschema: Mapping[str, Any]) -> list[Any]:
    """Return the values of enum or const, if the schema has them."""
    values = subschema.get("enum", [subschema["const"]] if "const" in subschema else [])
    return [value for value in values if value != ""]


def _takes_text(subschema: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    """Whether the value may be a text."""
    kinds = subschema.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    several = subschema.get("anyOf") or subschema.get("oneOf")
    if isinstance(several, list):
        return any(_takes_text(resolved(one, schema), schema) for one in several)
    return True
