"""Forms of an answer as callers give them: `constraint=` and `response_format=`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sterna.engine.decoding.constraints import Constraint, Constraints
from sterna.errors import RequestError, shown

__all__ = ["constraint_of", "constraint_of_format", "schema_of_format"]

#: Flags of Python's patterns, and their letters in Rust's.
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x"}


def constraint_of(constraints: Constraints, argument: object) -> Constraint | None:
    """Return the constraint that a caller gives; None for None.

    argument: an object of `LLM.constraints`, a JSON schema as a mapping, a pydantic class, or a
    compiled pattern for the whole answer. RequestError.
    """
    if argument is None or isinstance(argument, Constraint):
        return argument
    if isinstance(argument, Mapping):
        return constraints.json_schema(argument)
    if isinstance(argument, re.Pattern):
        return constraints.regex(_pattern(argument))
    schema = getattr(argument, "model_json_schema", None)
    if isinstance(argument, type) and callable(schema):
        return constraints.json_schema(schema())
    raise RequestError(
        "constraint: must be one of LLM.constraints, a JSON schema as a dict, a pydantic class or "
        f"a compiled pattern, but got {shown(argument)}"
    )


def constraint_of_format(constraints: Constraints, argument: object) -> Constraint | None:
    """Return the constraint of a `response_format`, as chat protocols have it; None for any text.

    argument: a mapping with a type, or a pydantic class, as in OpenAI's package. RequestError.
    """
    if isinstance(argument, type):
        return constraint_of(constraints, argument)
    schema = None if argument is None else schema_of_format(argument)
    return None if schema is None else constraints.json_schema(schema[0], strict=schema[1])


def schema_of_format(argument: object) -> tuple[Mapping[str, Any] | bool, bool] | None:
    """Return the schema of a `response_format` and whether it is strict; None for any text.

    The format of responses, and llama.cpp's json_object, have the schema next to the type.
    RequestError.
    """
    if not isinstance(argument, Mapping):
        raise RequestError(f"response_format: must be an object, but got {shown(argument)}")
    kind = argument.get("type")
    if kind == "text":
        return None
    if kind == "json_object" and not argument.get("schema"):
        return {"type": "object"}, True
    if kind not in ("json_schema", "json_object"):
        raise RequestError(
            f"response_format.type: must be text, json_object or json_schema, but got {shown(kind)}"
        )
    inner = argument.get("json_schema", argument) if kind == "json_schema" else argument
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, (Mapping, bool)):
        where = f"response_format.{kind}" if kind == "json_schema" else "response_format"
        raise RequestError(f"{where}.schema: must be a JSON schema, but got {shown(schema)}")
    return schema, inner.get("strict") is not False


def _pattern(argument: re.Pattern[Any]) -> str:
    """Return a compiled pattern in Rust's syntax, with its flags. RequestError."""
    if not isinstance(argument.pattern, str):
        raise RequestError("constraint: a pattern must be of text, but got one of bytes")
    flags = "".join(letter for flag, letter in _FLAGS.items() if argument.flags & flag)
    return f"(?{flags}:{argument.pattern})" if flags else argument.pattern
