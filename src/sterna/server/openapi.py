"""The OpenAPI document, generated from the structs of the endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sterna import __version__
from sterna.server.routing import Endpoint
from sterna.server.unsupported_fields import unsupported_fields

__all__ = ["document"]

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document of some endpoints."""
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    schemas, components = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(bodies, schemas, strict=True))
    for body in bodies:
        _add_unread(components[body.__name__]["properties"], getattr(body, "protocol", ""))
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")  # Starlette: a parameter with slashes
        operation = _operation(endpoint, path)
        if endpoint.body is not None:
            content = {"application/json": {"schema": schema_of[endpoint.body]}}
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sterna", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """Describe an endpoint, without its body."""
    error = {"schema": {"$ref": "#/components/schemas/Error"}}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "responses": {
            "200": {"description": "The response."},
            "default": {"description": "An error.", "content": {"application/json": error}},
        },
    }
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if not endpoint.is_open:
        operation["security"] = [{"key": []}, {}]
    return operation


def _add_unread(properties: dict[str, Any], protocol: str) -> None:
    """Add the fields that an endpoint accepts without reading them."""
    for row in unsupported_fields(protocol).values() if protocol else ():
        described: dict[str, Any] = {"description": f"Not read: {row.why}."}
        if row.passes is not None:
            described["enum"] = [None, *row.passes]
        properties.setdefault(row.name, described)
