"""JSON schemas for llguidance: rewrites keywords that it would accept but not enforce.

llguidance itself refuses keywords that it cannot enforce (docs/how-to/constrain.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from sterna.engine.decoding.regex_dialects import CONTROL, to_rust, unsupported
from sterna.errors import ModelFormatError, RequestError, shown
from sterna.files.jsonfile import parse_json

__all__ = ["for_llguidance", "grammar_options", "read_schema", "unenforced"]

MAX_BYTES = 1 << 18  #: of a schema's JSON; OpenAI allows 15,000 characters of names in all
#: White space between tokens of JSON: enough for pretty-printing, but bounded, since some models
#: write it without end.
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{0,32}"
#: Characters allowed after a backslash. Each character has one spelling, or a property could escape
#: its schema, as "\u0061" for "a".
ESCAPES = '"\\bfnrt'

#: Patterns that one text may have to match at once. llguidance's work doubles with each beyond 16.
MOST_PATTERNS = 12
#: Characters of URIs that are no letters or digits.
_URI = "%#/:?=&+,;@!$'()*~-._"

_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"^(?:{_LEAP_YEAR}-02-29|[0-9]{{4}}-(?:02-(?:[01][0-9]|2[0-8])|(?:0[13-9]|1[0-2])-[0-3][0-9]))"
)
_TIME = "^[^:]*:[0-9]{2}:[0-5]"
#: Rules that llguidance's formats lack: 29 February exists in leap years only; seconds end at 59;
#: host names have a greatest length, and no labels that encode others (xn--).
_FORMATS: dict[str, list[dict[str, Any]]] = {
    "date": [{"pattern": _DATE}],
    "time": [{"pattern": _TIME}],
    "date-time": [{"pattern": _DATE}, {"pattern": _TIME}],
    "hostname": [{"pattern": "^(?:-?[^-])+$", "maxLength": 253}],
}

#: Keywords whose value is a schema, an object of schemas, or a list of schemas.
_ONE = """
    items additionalItems additionalProperties contains propertyNames not if then else
    unevaluatedItems unevaluatedProperties
""".split()
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


def read_schema(value: object) -> dict[str, Any] | bool:
    """Read a schema from JSON or from a value of JSON's types; raises RequestError."""
    if isinstance(value, str):
        data = value.encode(errors="surrogatepass")
    else:
        try:
            data = json.dumps(value, allow_nan=False, default=_plain).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise RequestError(f"schema: must be a value of JSON's types, but got {e}") from None
    if len(data) > MAX_BYTES:
        raise RequestError(f"schema: must have at most {MAX_BYTES} bytes, but has {len(data)}")
    try:
        schema = parse_json(data, Path("schema"))
    except ModelFormatError as e:
        if e.offset is not None:
            raise RequestError(
                f"schema: invalid JSON at byte {e.offset}: {str(e.got).removeprefix('the error ')}"
            ) from None
        raise RequestError(f"schema: must be JSON of one meaning, but got {e}") from None
    if not isinstance(schema, (dict, bool)):
        raise RequestError(f"schema: must be an object or a boolean, but got {shown(schema)}")
    return schema


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def for_llguidance(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """Return a schema of the same meaning to llguidance; raises RequestError if it is false."""
    if schema is False:
        raise RequestError("schema: must allow some value, but is false")
    made: dict[str, Any] = {} if schema is True else json.loads(json.dumps(schema))
    for _, part in list(_parts(made)):
        if isinstance(part.get("pattern"), str):
            part["pattern"] = to_rust(part["pattern"])
        if isinstance(part.get("$ref"), str):  # names such as Partial<Foo> are no URIs
            part["$ref"] = quote(part["$ref"], safe=_URI)
        if isinstance(part.get("patternProperties"), dict):
            named = part["patternProperties"]
            part["patternProperties"] = {to_rust(name): named[name] for name in named}
        name, all_of = part.get("format"), part.get("allOf", [])
        if isinstance(name, str) and name in _FORMATS and isinstance(all_of, list):
            part["allOf"] = [*all_of, *_FORMATS[name]]
    _check_patterns(made)
    return made


def _check_patterns(schema: dict[str, Any]) -> None:
    counted = _PatternCount(schema)
    try:
        counts = {place: counted.of(part) for place, part in _parts(schema)}
    except RecursionError:
        raise RequestError("schema: must not have so long a chain of references") from None
    for place, count in counts.items():
        if count > MOST_PATTERNS:
            raise RequestError(
                f"schema: must have at most {MOST_PATTERNS} patterns and formats for one value, "
                f"but {place or '/'} has {count}"
            )


class _PatternCount:
    """Counts the patterns and formats that a value must match: its schema's own, those of allOf and
    of references, and the most of any alternative."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}

    def of(self, schema: Any) -> int:
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0  # a reference to itself adds nothing
            of_all, *of_any = (
                list(map(self.of, schemas)) if isinstance(schemas, list) else []
                for schemas in map(schema.get, ("allOf", "anyOf", "oneOf"))
            )
            own = ("pattern" in schema) + ("format" in schema) + self.of(self._target(schema))
            alternatives = sum(max(counts, default=0) for counts in of_any)
            self._known[id(schema)] = own + sum(of_all) + alternatives
        return self._known[id(schema)]

    def _target(self, schema: dict[str, Any]) -> Any:
        """Return the part that a schema refers to; None if it is none of these."""
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        target: Any = self._root
        for name in filter(None, unquote(pointer[1:]).split("/")):
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                target = target.get(name) if isinstance(target, dict) else None
        return target


def grammar_options(strict: bool) -> dict[str, Any]:
    """Return llguidance's options, all of them, so that a schema's "x-guidance" sets none."""
    return {
        "item_separator": ",",
        "key_separator": ":",
        "whitespace_flexible": True,
        "whitespace_pattern": WHITE_SPACE,
        "coerce_one_of": not strict,
        "lenient": not strict,
        "json_allowed_escapes": ESCAPES,
        "json_allow_general_unicode_escapes": False,
    }


def unenforced(schema: Any) -> list[str]:
    """Return the keywords that llguidance accepts without enforcing them, each with its place."""
    return [
        f"{place or '/'}: {what}" for place, part in _parts(schema) for what in _wrong(place, part)
    ]


def _wrong(place: str, part: dict[str, Any]) -> Iterator[str]:
    if place and "$id" in part:
        # Next to a $ref, draft 7 and llguidance disagree about the target of the reference.
        yield "$id must be the whole schema's, not that of a part"
    least, required = part.get("minProperties", 0), part.get("required", [])
    names = len(set(map(str, required))) if isinstance(required, list) else 0
    if isinstance(least, (int, float)) and least > max(1, names):
        # A name written twice is one property, so an object has fewer than are written.
        yield f"minProperties must be at most 1, or the number of those required, but is {least}"
    if any(CONTROL.search(text) for text in _texts(part)):
        yield "control characters must not be in names and values"
    for pattern in [part.get("pattern"), *_keys(part.get("patternProperties"))]:
        if isinstance(pattern, str) and (why := unsupported(pattern)):
            yield why


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _texts(part: dict[str, Any]) -> Iterator[str]:
    """Yield texts that a value may have to contain."""
    yield from _keys(part.get("properties"))
    yield from _within([part.get("const"), part.get("enum"), part.get("required")])


def _within(value: Any) -> Iterator[str]:
    """Yield every text in a value, names of properties included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _within(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _within(item)


def _parts(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object schema in a schema, with its JSON pointer."""
    if not isinstance(schema, dict):
        return
    yield place, schema
    for name in _ONE:
        yield from _parts(schema.get(name), f"{place}/{name}")
    for name in _NAMED:
        inner = schema.get(name)
        for key, value in inner.items() if isinstance(inner, dict) else ():
            yield from _parts(value, f"{place}/{name}/{key}")
    for name in _LISTED:
        inner = schema.get(name)
        for i, value in enumerate(inner if isinstance(inner, list) else ()):
            yield from _parts(value, f"{place}/{name}/{i}")
