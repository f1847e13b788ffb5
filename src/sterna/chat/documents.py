"""Files of texts and conversations: JSON Lines; a line is one or the other."""

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
    """line: its number in the file, from 1; text, or messages where text is None."""

    line: int
    text: str | None
    messages: list[Any]


def documents(file: Path) -> Iterator[Document]:
    """The documents of a file, {"text": "…"} or {"messages": […]} a line, empty lines left out.

    Raises ModelFormatError that names the line, or the file where it has none.
    """
    found = False
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
        found = True
        if isinstance(text, str) and text:
            yield Document(number, text, [])
        elif isinstance(messages, list):
            yield Document(number, None, messages)
        else:
            raise ModelFormatError(
                file=file, field=f"line {number}",
                expected='{"messages": [...]} or {"text": "..."}', got="neither",
            )  # fmt: skip
    if not found:
        raise ModelFormatError(file=file, expected="an example a line", got="none")
