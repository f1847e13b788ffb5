"""Turns the fields that ask for a form of the answer into a constraint of the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sterna.engine.decoding.constraints import Constraint
from sterna.errors import RequestError
from sterna.llm.constraint_argument import schema_of_format
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError
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
    specs = [*asked, *(_of_format(response_format) if response_format is not None else ())]
    if len(specs) > 1:
        params = " and ".join(one.param for one in specs)
        raise ApiError(400, f"{params}: cannot be combined", param=specs[0].param)
    if not specs:
        return None
    param, method, argument, options = specs[0]
    active.names["constraint"] = param.partition(".")[0]
    make = getattr(active.model.llm.constraints, method)
    try:
        # In another thread, because a schema may take seconds.
        made: Constraint = await asyncio.to_thread(partial(make, *argument, **options))
    except RequestError as error:
        relaxed = param == "response_format" and "strict" not in options
        remedy = "; strict: false ignores what cannot be enforced" if relaxed else ""
        raise ApiError(400, f"{error}{remedy}", param=param) from None
    if made.ignored:
        _log.warning("%s: is not enforced in full: %s", param, "; ".join(made.ignored))
    return made


def asked_of(body: SamplingFields) -> list[ConstraintSpec]:
    """Return what vLLM's and llama.cpp's fields of a request ask for."""
    specs = []
    for name, method in (
        ("json", "json_schema"),
        ("regex", "regex"),
        ("grammar", "grammar"),
        ("choice", "choice"),
    ):
        value = getattr(body.structured_outputs, name, None)
        if value is not None:
            specs.append(ConstraintSpec(f"structured_outputs.{name}", method, (value,), {}))
    for name in ("grammar", "json_schema"):
        if value := getattr(body, name):
            specs.append(ConstraintSpec(name, name, (value,), {}))
    return specs


def _of_format(response_format: Any) -> list[ConstraintSpec]:
    schema_and_strict = schema_of_format(response_format)
    if schema_and_strict is None:
        return []
    schema, strict = schema_and_strict
    options = {} if strict else {"strict": False}
    return [ConstraintSpec("response_format", "json_schema", (schema,), options)]
