"""The Jinja sources of a chat template and its special tokens, as a model's files hold them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError
from sterna.files.jsonfile import MAX_CONFIG_BYTES
from sterna.files.reading import read_file

__all__ = ["malformed", "named_templates", "read_text", "special_tokens"]

_REMEDY = "put a working chat_template.jinja into the model's folder"


def malformed(file: Path, expected: str, got: object) -> ModelFormatError:
    """The error for a file's chat template that breaks a rule."""
    return ModelFormatError(
        file=file, field="chat_template", expected=expected, got=got, remedy=_REMEDY
    )


def named_templates(file: Path, value: object) -> dict[str, str]:
    """Turn a template, or the list form [{"name", "template"}, ...], into templates by name."""
    if isinstance(value, str):
        return {"default": value}
    entries = value if isinstance(value, list) else [value]
    named = {}
    for entry in entries:
        name, source = (
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(source, str):
            expected = "a string, or a list of objects with a name and a template"
            raise malformed(file, expected, type(entry).__name__)
        named[name] = source
    return named


def special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return special tokens by the names that templates use: bos_token, eos_token …"""
    tokens = {"bos_token": "", "eos_token": ""}
    for key, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            tokens[key] = text
    return tokens


def read_text(path: Path) -> str | None:
    """Read a small UTF-8 file, None if there is none; ModelFormatError if it cannot be read."""
    if not os.path.exists(path):
        return None
    try:
        return read_file(path, MAX_CONFIG_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ModelFormatError(
            file=path, offset=error.start, expected="a text in UTF-8", got="invalid UTF-8"
        ) from None
