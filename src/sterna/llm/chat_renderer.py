"""`ChatRenderer`: conversations as prompts, by a model's chat template."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna.chat import ChatTemplate, check_messages
from sterna.chat.image_parts import as_text, behind_results, split_images, with_results
from sterna.chat.messages import json_objects
from sterna.chat.reasoning import ReasoningState
from sterna.chat.tools import has_calls
from sterna.checks import checked_flag, checked_items
from sterna.errors import RequestError
from sterna.llm.image_input import ImageInput, PreparedPrompt
from sterna.llm.system_messages import render_with_system
from sterna.loading import Model
from sterna.tokenizer import Tokenizer
from sterna.turn_tokens import inner_end_tokens

if TYPE_CHECKING:
    from sterna.images import ProcessedImage

__all__ = ["ChatRenderer", "listed_messages"]


class ChatRenderer:
    """Renders and encodes conversations.

    template: the model's, or its replacement; None: there is none. token_settings: fields of
    tokenizer_config.json; templates may name its special tokens.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        token_settings: Mapping[str, Any],
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self.images: ImageInput = ImageInput(model, tokenizer)
        self.template = template
        self._token_settings = token_settings

    @classmethod
    def of_model(
        cls, model: Model, tokenizer: Tokenizer, chat_template: str | Path | None
    ) -> ChatRenderer:
        """Make the renderer of a model with its own template, or `chat_template` of `LLM`."""
        files = model.assets
        assert files is not None  # every model that is loaded from a path has them
        settings = files.tokenizer_config
        if chat_template is None:
            template = files.template()
        else:
            template = ChatTemplate.from_name_or_file(chat_template, settings)
        return cls(model, tokenizer, template, settings)

    def render(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
        template: ChatTemplate | None = None,
    ) -> str:
        """Render the prompt of a conversation; arguments as in `LLM.chat_prompt`.

        It has one placeholder for each image, and all system messages (`render_with_system`).
        """
        template = template or self.template
        if template is None:
            raise RequestError(
                f"chat: the model must have a chat template, but {self._model.name} has none; use "
                "generate, or give one (chat_template, --chat-template)"
            )
        own, images = split_images(listed_messages(messages))
        continued = checked_flag("continue_final_message", continue_final_message)
        options: dict[str, Any] = {
            "documents": documents,
            "variables": template_options,
            "continue_final_message": continued,
        }

        def rendered(messages: list[Any]) -> str:
            shown = tools
            if shown or has_calls(messages):
                messages, shown = _in_template_form(template, messages, shown)
            return template.render(messages, add_generation_prompt, tools=shown, **options)

        def written(messages: list[Any]) -> str:
            if images:
                messages = self._with_placeholders(template, messages, bool(tools))
            check_messages(messages)
            return render_with_system(messages, rendered)

        if not with_results(own):
            return written(own)
        with contextlib.suppress(RequestError):
            text = written(own)
            if text.count(self.images.processor.placeholder) == len(images):
                return text
        return written(behind_results(own))  # the template does not show images of results

    def _with_placeholders(
        self, template: ChatTemplate, messages: list[Any], tools: bool
    ) -> list[Any]:
        """Return messages with images in the form for which the template writes placeholders."""
        placeholder = self.images.processor.placeholder
        written = template.image_text(placeholder)
        in_text = (tools or has_calls(messages)) and not template.takes_tools
        if written is None or in_text:
            return as_text(messages, written or placeholder)
        return messages

    def prepare(self, messages: object, **options: Any) -> PreparedPrompt:
        """Render and encode a conversation with its images. The template writes its own BOS."""
        listed = listed_messages(messages)
        return self._prepared(listed, self.images.process(split_images(listed)[1]), options)

    def _prepared(
        self, messages: object, images: Sequence[ProcessedImage], options: Mapping[str, Any]
    ) -> PreparedPrompt:
        return self.images.prepared(self.render(messages, **options), images)

    def template_from(self, source: str) -> ChatTemplate:
        """Make a template from Jinja text for this model; ModelFormatError if it is malformed."""
        return ChatTemplate.from_source(source, self._token_settings)

    def reasoning_state(
        self,
        prompt: str,
        messages: Any,
        continued: bool = False,
        template: ChatTemplate | None = None,
    ) -> ReasoningState:
        """Return whether an answer to a prompt begins within, before or after its reasoning.

        continued: the answer continues the last message.
        """
        template = template or self.template
        if template is None:
            return ReasoningState.CLOSED
        if not continued:
            return template.reasoning_state(prompt)
        content = messages[-1].get("content")
        parts = [p.get("text") for p in content] if isinstance(content, list) else [content]
        begun = "".join(part for part in parts if isinstance(part, str))
        return ReasoningState.after_start(begun, template.reasoning_marks)

    @cached_property
    def turn_ends(self) -> frozenset[int]:
        """`turn_ends_of` the model's template."""
        return self.turn_ends_of(self.template)

    def turn_ends_of(self, template: ChatTemplate | None) -> frozenset[int]:
        """Return the added token that a template writes after an answer, often not the EOS.

        Empty where that token ends only a part of a turn in the model's family, such as gpt-oss's
        <|end|>.
        """
        tokenizer = self._tokenizer
        added = tokenizer.added_at(template.after_answer()) if template else None
        inner = inner_end_tokens(lambda mark: tokenizer.token_id(mark) is not None)
        if added is None or added in map(tokenizer.token_id, inner):
            return frozenset()
        return frozenset([added])

    def end_of_turn(
        self, prompt: PreparedPrompt, messages: object, options: Mapping[str, Any]
    ) -> int:
        """Count the tokens of a prompt before the opening of the answer; never all.

        Templates may write the opening differently once the answer is part of the messages.
        """
        images = [placed.image for placed in prompt.images]
        try:
            ended = self._prepared(messages, images, {**options, "add_generation_prompt": False})
        except RequestError:
            ended = prompt
        pairs = zip(prompt.tokens[:-1], ended.tokens, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def listed_messages(messages: object) -> list[Any]:
    """Return messages as a list, a text as a user's message; RequestError for no iterable."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return list(checked_items("messages", messages, "a text or a list of messages"))


def _in_template_form(
    template: ChatTemplate, messages: Sequence[Any], tools: Sequence[Mapping[str, Any]] | None
) -> tuple[list[Any], Sequence[Mapping[str, Any]] | None]:
    """Return messages and tools as the family of the template writes them; RequestError."""
    from sterna.llm.tool_call_formats import for_template  # takes time, and not every chat needs it

    written, shown = for_template(template, messages, json_objects(tools, "tools") or ())
    return list(written), shown or None
