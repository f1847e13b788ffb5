"""Images in messages: parts of a content list, which templates get without the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sterna.errors import RequestError, shown

__all__ = ["as_text", "behind_results", "split_images", "with_results"]

#: The part that a template gets for an image.
IMAGE = {"type": "image"}
_KINDS = ("image", "image_url", "input_image")
#: Where parts have their image: transformers' names, then those of OpenAI's and Anthropic's APIs.
_FIELDS = ("image", "path", "url", "image_url", "source")


def split_images(messages: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return messages whose images are parts {"type": "image"}, and these images in order.

    An image is what `sterna.images.load_image` takes, in a part {"type": "image", "image": …}, or
    one in the form of OpenAI's or Anthropic's API. Messages are not checked otherwise.
    RequestError.
    """
    plain, images = [], list[Any]()
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, (list, tuple)) and any(map(_is_image, content)):
            parts = []
            for j, part in enumerate(content):
                if _is_image(part):
                    images.append(_image(part, f"messages[{i}].content[{j}]"))
                parts.append(dict(IMAGE) if _is_image(part) else part)
            message = {**message, "content": parts}
        plain.append(message)
    return plain, images


def as_text(messages: Sequence[Any], image: str) -> list[Any]:
    """Write messages with images as plain text, for templates that take no lists.

    image: the text that represents an image.
    """
    return [
        {**message, "content": _joined(message["content"], image)}
        if isinstance(message.get("content"), list) and any(map(_is_image, message["content"]))
        else message
        for message in messages
    ]


def with_results(messages: Sequence[Any]) -> bool:
    """Whether the result of a tool has images."""
    results = (m for m in messages if isinstance(m, Mapping) and m.get("role") == "tool")
    contents = (result.get("content") for result in results)
    return any(any(map(_is_image, one)) for one in contents if isinstance(one, (list, tuple)))


def behind_results(messages: Sequence[Any]) -> list[Any]:
    """Move images of tools' results into the user's message behind these, in the same order, for
    templates that show only the texts of results."""
    moved, images = list[Any](), list[Any]()
    for message in messages:
        if message.get("role") != "tool" and images:
            if message.get("role") == "user":
                message = {**message, "content": [*images, *_parts(message.get("content"))]}
            else:
                moved.append({"role": "user", "content": images})
            images = []
        content = message.get("content")
        if message.get("role") == "tool" and isinstance(content, list):
            images += [part for part in content if _is_image(part)]
            message = {**message, "content": _joined([p for p in content if not _is_image(p)], "")}
        moved.append(message)
    return [*moved, {"role": "user", "content": images}] if images else moved


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _is_image(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def _image(part: Mapping[str, Any], where: str) -> Any:
    image = next((part[name] for name in _FIELDS if part.get(name) is not None), None)
    if isinstance(image, Mapping):
        if image.get("type") == "base64":  # Anthropic's
            return f"data:{image.get('media_type')};base64,{image.get('data')}"
        image = image.get("url")
    if image is None:
        raise RequestError(
            f'{where}: must have an image, but got {shown(sorted(part))}; pass {{"type": "image", '
            '"image": "photo.jpg"}'
        )
    return image


def _joined(parts: list[Any], image: str) -> str:
    texts = [image if _is_image(part) else part.get("text") for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))
