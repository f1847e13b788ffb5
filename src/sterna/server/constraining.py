"""From `response_format` and `structured_outputs` to what the engine makes an answer follow."""

from __future__ import annotations

import asyncio
from typing import Any

from sterna.errors import RequestError, shown
from sterna.llm import LLM
from sterna.server.errors import ApiError
from sterna.server.requests import StructuredOutputs

__all__ = ["constraint_of"]


async def constraint_of(
    llm: LLM, asked: StructuredOutputs | None, response_format: dict[str, Any] | None = None
) -> Any:
    """The constraint, None for none. ApiError 400: what is not enforced is not accepted."""
    wanted = _wanted(asked, response_format)
    if wanted is None:
        return None
    param, method, argument = wanted
    make = getattr(llm.constraints, method)
    try:
        # Another thread: a schema may take seconds, and others are to be answered meanwhile.
        return await asyncio.to_thread(make, *argument)
    except RequestError as error:
        raise ApiError(400, str(error), param=param) from None


def _wanted(
    asked: StructuredOutputs | None, response_format: dict[str, Any] | None
) -> tuple[str, str, tuple[Any, ...]] | None:
    """The field that asks for a constraint, and the method of `Constraints` with its argument."""
    found = []
    if asked is not None:
        for name, method in (
            ("json", "json_schema"), ("regex", "regex"), ("grammar", "lark"), ("choice", "choice"),
        ):  # fmt: skip
            value = getattr(asked, name)
            if value is not None:
                found.append((f"structured_outputs.{name}", method, (value,)))
    if response_format is not None:
        found += _of_format(response_format)
    if len(found) > 1:
        params = " and ".join(param for param, _, _ in found)
        raise ApiError(400, f"{params}: must not come together", param=found[0][0])
    return found[0] if found else None


def _of_format(given: dict[str, Any]) -> list[tuple[str, str, tuple[Any, ...]]]:
    kind = given.get("type")
    if kind == "text":
        return []
    if kind == "json_object":
        return [("response_format", "json_object", ())]
    if kind == "json_schema":
        inside = given.get("json_schema", given)  # responses have the schema beside the type
        schema = inside.get("schema") if isinstance(inside, dict) else None
        if isinstance(schema, (dict, bool)):
            return [("response_format", "json_schema", (schema,))]
        raise ApiError(
            400, "response_format.json_schema.schema: must be a JSON schema",
            param="response_format.json_schema.schema",
        )  # fmt: skip
    raise ApiError(
        400, f"response_format.type: must be text, json_object or json_schema, not {shown(kind)}",
        param="response_format.type",
    )  # fmt: skip
