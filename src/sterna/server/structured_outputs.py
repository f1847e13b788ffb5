"""Turns the fields that ask for a form of the answer into a constraint of the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sterna.engine.decoding.constraints import Constraint
from sterna.errors import RequestError, shown
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError, invalid
from sterna.server.sampling_fields import SamplingFields

__all__ = ["ConstraintSpec", "asked_of", "constraint_for"]

_log = logging.getLogger("sterna.server")


class ConstraintSpec(NamedTuple):
    """A field that asks for a constraint, and the call of `Constraints` that makes it."""

    param: str
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


async def constraint_for(
    active: ActiveRequest,
    asked: Sequence[ConstraintSpec],
    response_format: dict[str, Any] | None = None,
) -> Constraint | None:
    """Make the constraint that a request asks for, or None; errors name the field that does.

    asked: by `asked_of`. ApiError 400 if it cannot be enforced in full, or if several fields ask
    for one. A schema with `strict: false` is enforced as far as possible, and the log names the
    unenforced keywords.
    """
    found = [*asked, *(_of_format(response_format) if response_format is not None else ())]
    if len(found) > 1:
        params = " and ".join(one.param for one in found)
        raise ApiError(400, f"{params}: cannot be combined", param=found[0].param)
    if not found:
        return None
    param, method, argument, options = found[0]
    active.names["constraint"] = param.partition(".")[0]
    make = getattr(active.model.llm.constraints, method)
    try:
        # In another thread, because a schema may take seconds.
        made: Constraint = await asyncio.to_thread(partial(make, *argument, **options))
    except RequestError as error:
        relaxed = param == "response_format" and method == "json_schema" and "strict" not in options
        remedy = "; strict: false ignores what cannot be enforced" if relaxed else ""
        raise ApiError(400, f"{error}{remedy}", param=param) from None
    if made.ignored:
        _log.warning("%s: is not enforced in full: %s", param, "; ".join(made.ignored))
    return made


def asked_of(body: SamplingFields) -> list[ConstraintSpec]:
    """Return what vLLM's and llama.cpp's fields of a request ask for."""
    found = []
    for name, method in (
        ("json", "json_schema"), ("regex", "regex"), ("grammar", "grammar"), ("choice", "choice"),
    ):  # fmt: skip
        value = getattr(body.structured_outputs, name, None)
        if value is not None:
            found.append(ConstraintSpec(f"structured_outputs.{name}", method, (value,), {}))
    for name in ("grammar", "json_schema"):
        if value := getattr(body, name):
            found.append(ConstraintSpec(name, name, (value,), {}))
    return found


def _of_format(given: Any) -> list[ConstraintSpec]:
    if not isinstance(given, dict):
        raise invalid("response_format", "must be an object", given)
    kind = given.get("type")
    if kind == "text":
        return []
    if kind == "json_object" and not given.get("schema"):
        return [ConstraintSpec("response_format", "json_object", (), {})]
    if kind in ("json_schema", "json_object"):
        # In Responses, and for json_object in llama.cpp, the schema is next to the type.
        inner = given.get("json_schema", given) if kind == "json_schema" else given
        where = f"response_format.{kind}" if kind == "json_schema" else "response_format"
        schema = inner.get("schema") if isinstance(inner, dict) else None
        if isinstance(schema, (dict, bool)):
            options = {"strict": False} if inner.get("strict") is False else {}
            return [ConstraintSpec("response_format", "json_schema", (schema,), options)]
        raise ApiError(400, f"{where}.schema: must be a JSON schema", param=f"{where}.schema")
    raise ApiError(
        400, f"response_format.type: must be text, json_object or json_schema, not {shown(kind)}",
        param="response_format.type",
    )  # fmt: skip
