"""Descriptions of a model that several protocols share."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from sterna.formats.level_tables import without_table
from sterna.llm import LLM
from sterna.server.fill_in_the_middle import fill_tokens
from sterna.server.service import Service

__all__ = [
    "LATEST",
    "abilities",
    "dimensions",
    "known_name",
    "name_digest",
    "quantization",
    "timestamp",
]

LATEST = ":latest"


def known_name(service: Service, value: str | None) -> str | None:
    """Return the name of a model; clients of ollama add the tag "latest" to it."""
    if value is None or value in service.models.names:
        return value
    return value.removesuffix(LATEST)


def name_digest(name: str) -> str:
    """Return the SHA-256, in hex, that identifies a model in lists."""
    return hashlib.sha256(name.encode()).hexdigest()


def timestamp(seconds: float) -> str:
    """Return a time, in seconds since 1970, as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def abilities(llm: LLM) -> list[str]:
    """List the capabilities of a model, in ollama's words."""
    config = llm.model.config
    if config.pooling is not None or config.bidirectional:
        return ["embedding"]
    capabilities, template = ["completion"], llm.template
    if template is not None:
        capabilities.append("tools")  # described in the system prompt if the template has no place
        if template.reasoning_marks is not None:
            capabilities.append("thinking")
    if fill_tokens(llm.tokenizer) is not None:
        capabilities.append("insert")
    if llm.renderer.images.sees:
        capabilities.append("vision")
    return capabilities


def quantization(llm: LLM) -> str:
    """Name the format of the layers; where they have several, say how many bits a weight has."""
    model = llm.model
    name = without_table(model.format).upper()
    mixed = len({weight.format for _, weight in model.graph.layers()}) > 1
    return f"{name}, {model.bits:.1f} bits" if mixed else name


def dimensions(llm: LLM) -> dict[str, Any]:
    """Return llama.cpp's `meta` of a model."""
    model = llm.model
    return {
        "n_vocab": model.config.vocab_size,
        "n_ctx_train": model.config.max_position,
        "n_ctx": llm.context,
        "n_embd": model.config.hidden_size,
        "n_params": model.n_params,
    }
