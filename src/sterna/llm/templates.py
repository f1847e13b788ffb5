"""`Templates`: conversations as the text that a model's template makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from sterna.checks import checked_flag, checked_items
from sterna.errors import RequestError, shown
from sterna.llm.loaded import Loaded
from sterna.marks import inner_of

__all__ = ["TEMPLATE_OPTIONS", "Templates"]

TEMPLATE_OPTIONS = ("tools", "documents", "template_options", "continue_final_message")


class Templates(Loaded):
    """The part of an `LLM` that writes prompts of messages."""

    def chat_prompt(
        self,
        messages: object,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text that the model's template makes of a conversation; arguments as in `chat`.

        add_generation_prompt: whether what opens the answer follows.
        """
        if self.template is None:
            other = (
                "another file, with tokenizer.chat_template in its metadata"
                if self._is_file
                else "add chat_template.jinja to the model's folder"
            )
            raise RequestError(
                f"chat: the model must have a chat template, but {self.name} has none; "
                f"use generate, or {other}"
            )
        what = "a list of messages"
        if isinstance(messages, str):
            raise RequestError(f"messages: must be {what}, but got {shown(messages)}")
        return self.template.render(
            list(checked_items("messages", messages, what)),
            add_generation_prompt,
            tools=tools,
            documents=documents,
            variables=template_options,
            continue_final_message=checked_flag("continue_final_message", continue_final_message),
        )

    def chat_tokens(self, messages: object, **template: Any) -> list[int]:
        """`chat_prompt` as token ids."""
        # The template writes its own BOS.
        return self.tokenizer.encode(self.chat_prompt(messages, **template), add_special=False)

    @cached_property
    def _turn_ends(self) -> frozenset[int]:
        """The added token that the template writes after an answer: often not the model's EOS.

        None where it ends but a part of a turn in the model's family, such as gpt-oss's <|end|>.
        """
        tokenizer = self.tokenizer
        added = tokenizer.added_at(self.template.after_answer()) if self.template else None
        inner = inner_of(lambda mark: tokenizer.token_id(mark) is not None)
        if added is None or added in map(tokenizer.token_id, inner):
            return frozenset()
        return frozenset([added])

    def _end_of_turn(self, tokens: list[int], messages: object, template: dict[str, Any]) -> int:
        """How many tokens a prompt has before what opens the answer, which templates may write
        otherwise once it is there; and never its last."""
        try:
            turn = self.chat_tokens(messages, **template, add_generation_prompt=False)
        except RequestError:
            turn = tokens
        pairs = zip(tokens[:-1], turn, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
