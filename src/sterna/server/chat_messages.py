"""Messages of OpenAI's chat, the form into which all endpoints bring theirs, for the library."""

from __future__ import annotations

from typing import Any

from sterna.chat import ChatTemplate
from sterna.chat.image_parts import split_images
from sterna.errors import ModelFormatError, RequestError
from sterna.images import MAX_IMAGES
from sterna.llm import LLM
from sterna.llm.chat_request import ChatRequest
from sterna.server.custom_tools import arguments_of
from sterna.server.errors import ApiError, field_error, invalid
from sterna.server.request_images import RequestImage, image_of_part

__all__ = [
    "MAX_MESSAGES",
    "MAX_TOOLS",
    "check_message",
    "content_of_parts",
    "fetched",
    "join_text_parts",
    "library_messages",
    "prompt_tokens",
    "render_prompt",
    "request_template",
]

MAX_MESSAGES = 4096
MAX_TOOLS = 128
ASKING = ("system", "developer", "user")
ROLES = (*ASKING, "assistant", "tool", "function")
#: Types of content parts that are texts, and the field that has the text.
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def render_prompt(llm: LLM, chat: ChatRequest) -> str:
    """Render the prompt, with a placeholder for each image.

    RequestError or ApiError 400 if the template refuses it.
    """
    return llm.renderer.render(library_messages(llm, chat), **chat.prompt_options)


def prompt_tokens(llm: LLM, chat: ChatRequest, image_hosts: tuple[str, ...]) -> list[int]:
    """Return the token ids of the prompt, whose images it fetches. Raises as `render_prompt`."""
    messages = fetched(library_messages(llm, chat), image_hosts)
    return llm.renderer.prepare(messages, **chat.prompt_options).tokens


def library_messages(llm: LLM, chat: ChatRequest) -> list[dict[str, Any]]:
    """Return the messages of OpenAI's chat in the form of `LLM.chat`; images are `RequestImage`.

    ApiError 400 for a message that is wrong, and for an image if the model sees none.
    """
    for name, items, most in (
        ("messages", chat.messages, MAX_MESSAGES),
        ("tools", chat.tools.shown, MAX_TOOLS),
    ):
        if len(items) > most:
            raise field_error(name, f"must be at most {most}, but got {len(items)}")
    messages = [_message(i, dict(message)) for i, message in enumerate(chat.messages)]
    images = split_images(messages)[1]
    if len(images) > MAX_IMAGES:
        raise field_error("messages", f"must have at most {MAX_IMAGES} images")
    if images:
        _require_vision(llm, images[0])
    return messages


def fetched(messages: list[dict[str, Any]], hosts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return messages with sources for `load_image` in place of `RequestImage`s; blocks.

    hosts: from which images may be fetched. ApiError 400, 503.
    """
    for message in messages:
        if isinstance(message.get("content"), list):
            message["content"] = [_with_source(part, hosts) for part in message["content"]]
    return messages


def _with_source(part: Any, hosts: tuple[str, ...]) -> Any:
    image = part.get("image")
    return {**part, "image": image.source(hosts)} if isinstance(image, RequestImage) else part


def _require_vision(llm: LLM, image: RequestImage) -> None:
    """Raise ApiError 400, at an image, unless the model reads images."""
    try:
        _ = llm.renderer.images.processor
    except RequestError as error:
        raise ApiError(400, str(error), param=image.where) from None


def request_template(llm: LLM, source: str | None, trusted: bool) -> ChatTemplate | None:
    """Make a request's own chat template. ApiError 400 if it is invalid or not allowed."""
    if source is None:
        return None
    if not trusted:
        raise field_error(
            "chat_template",
            "is not accepted from requests; start the server with "
            "--chat-template, or with --trust-request-chat-template",
        )
    try:
        return llm.renderer.template_from(source)
    except (ModelFormatError, RequestError) as error:
        raise ApiError(400, str(error), param="chat_template") from None


def check_message(message: dict[str, Any], where: str) -> None:
    """Raise ApiError 400 unless a message has a role, and content, which answers may lack."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}", role)
    if not isinstance(content, (str, list)) and (content is not None or role in ASKING):
        raise invalid(f"{where}.content", "must be a text or parts", content)


def _message(i: int, message: dict[str, Any]) -> dict[str, Any]:
    """Put a message into templates' form: content as one text unless it has images."""
    where, role = f"messages[{i}]", message.get("role")
    check_message(message, where)
    plain = {**message, "role": "system" if role == "developer" else role}
    if isinstance(message.get("content"), list):
        plain["content"] = content_of_parts(message["content"], f"{where}.content")
    if message.get("tool_calls"):
        plain["tool_calls"] = _calls(f"{where}.tool_calls", message["tool_calls"])
    elif plain.pop("function_call", None) is not None:  # the form before tools
        call = {"type": "function", "function": message["function_call"]}
        plain["tool_calls"] = _calls(f"{where}.function_call", [call])
    return plain


def content_of_parts(parts: list[Any], where: str) -> str | list[dict[str, Any]]:
    """Return the text of content parts, or parts for a template if there are images among them.

    Images become `RequestImage`. Parts that this function has made stay unchanged. ApiError 400 for
    files, audio, and images that are no URL.
    """
    content: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        fields = part if isinstance(part, dict) else {}
        image = fields.get("image")  # JSON cannot contain one: it was made here
        if not isinstance(image, RequestImage):
            image = image_of_part(fields, f"{where}[{i}]")
        if image is None:
            content.append({"type": "text", "text": join_text_parts([part], where, i)})
        else:
            content.append({"type": "image", "image": image})
    if any(part["type"] == "image" for part in content):
        return content
    return "\n".join(part["text"] for part in content)


def join_text_parts(parts: list[Any], where: str, first: int = 0) -> str:
    """Join the text of content parts, one per line. ApiError 400 for others.

    first: the number of the first part, for errors.
    """
    texts = []
    for i, part in enumerate(parts, first):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(TEXTS.get(str(kind), "")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise invalid(f"{where}[{i}]", "must be a part of type text or image_url", kind or part)
        texts.append(text)
    return "\n".join(texts)


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise invalid(where, "must be a list", calls)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        custom = call.get("custom") if isinstance(call, dict) else None
        if isinstance(custom, dict) and isinstance(custom.get("input"), str):
            function = {"name": custom.get("name"), "arguments": arguments_of(custom["input"])}
            call = {"id": call.get("id"), "type": "function"}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"{where}[{i}]", "must be a function call with a name", call)
        arguments = function.get("arguments") or "{}"
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked
