"""Images of a typed message: attached by a command, or dropped into the line."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

__all__ = ["message_content", "take_dropped"]

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")
# A path as terminals insert a dropped file: in quotes, or with backslashes.
_WORD = r"""'[^'\n]+'|"[^"\n]+"|(?:file://)?[/~](?:\\.|[^\s\\])+"""
_FIRST = re.compile(rf"\s*({_WORD})(?=\s|$)")
_LAST = re.compile(rf"(?<!\S)({_WORD})\s*$")


def take_dropped(text: str) -> tuple[list[str], str]:
    """Return the paths of images at the start and the end of a text, and the text without them.

    A path counts if it begins with / or ~, ends like an image's name, and exists.
    """
    first, last = list[str](), list[str]()
    while (match := _FIRST.match(text)) and (path := _image_path(match[1])):
        first.append(path)
        text = text[match.end() :].lstrip()
    while (match := _LAST.search(text)) and (path := _image_path(match[1])):
        last.insert(0, path)
        text = text[: match.start()].rstrip()
    return first + last, text


def _image_path(word: str) -> str | None:
    try:
        (path,) = shlex.split(word.removeprefix("file://"))
    except ValueError:
        return None
    path = os.path.expanduser(path)
    is_image = os.path.isabs(path) and path.lower().endswith(_ENDINGS) and os.path.isfile(path)
    return path if is_image else None


def message_content(text: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    """Return the content of a message with images before its text."""
    if not images:
        return text
    parts = [{"type": "image", "image": os.path.abspath(image)} for image in images]
    return [*parts, {"type": "text", "text": text}]
