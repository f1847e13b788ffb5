"""JSON Lines files: each line has a text or a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sterna.errors import ModelFormatError
from sterna.files.jsonfile import parse_json
from sterna.files.reading import read_file

__all__ = ["Document", "documents"]

MAX_BYTES = 1 << 30


class Document(NamedTuple):
    """A text, or messages if text is None; line: its number in the file, from 1."""

    line: int
    text: str | None
    messages: list[Any]


def documents(file: Path) -> Iterator[Document]:
    """Yield the documents of a file: a line is {"text": "…"}, {"messages": […]} or empty.

    Raises ModelFormatError that names the line, or the file if it has no document.
    """
    any_document = False
    for number, line in enumerate(bytes(read_file(file, MAX_BYTES)).splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = parse_json(line, file)
        except ModelFormatError as e:
            raise ModelFormatError(
                file=file, field=f"line {number}", expected="JSON", got=str(e)
            ) from None
        text = item.get("text") if isinstance(item, dict) else None
        messages = item.get("messages") if isinstance(item, dict) else None
        any_document = True
        if isinstance(text, str) and text:
            yield Document(number, text, [])
        elif isinstance(messages, list):
            yield Document(number, None, messages)
        else:
            raise ModelFormatError(
                file=file,
                field=f"line {number}",
                expected='{"messages": [...]} or {"text": "..."}',
                got="neither",
            )
    if not any_document:
        raise ModelFormatError(file=file, expected="an example a line", got="none")
