"""`Templates`: conversations as the text that a model's template makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from sterna.chat import ChatTemplate
from sterna.chat.thoughts import Thoughts
from sterna.checks import checked_flag, checked_items
from sterna.engine.constraints import Constraint
from sterna.errors import RequestError, shown
from sterna.llm.loaded import Loaded
from sterna.marks import inner_of

__all__ = ["TEMPLATE_OPTIONS", "Templates", "behind"]

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
        template: ChatTemplate | None = None,
    ) -> str:
        """The text that the model's template makes of a conversation; arguments as in `chat`.

        add_generation_prompt: whether what opens the answer follows. Tools for which the template
        has no place are told in the system prompt. template: in place of the model's.
        """
        template = template or self.template
        if template is None:
            raise RequestError(
                f"chat: the model must have a chat template, but {self.name} has none; use "
                "generate, or give one (chat_template, --chat-template)"
            )
        what = "a list of messages"
        if isinstance(messages, str):
            raise RequestError(f"messages: must be {what}, but got {shown(messages)}")
        listed, tools = template.told(list(checked_items("messages", messages, what)), tools)
        return template.render(
            listed,
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

    def chat_ask(
        self, messages: object, options: Mapping[str, Any]
    ) -> tuple[list[int], dict[str, Any], Thoughts]:
        """A conversation's prompt as token ids, options of `generate` for its answer, and how that
        begins.

        options: of `chat`. A constraint is that of what the answer says, behind its thoughts.
        """
        template = {name: options[name] for name in TEMPLATE_OPTIONS if name in options}
        others = {name: value for name, value in options.items() if name not in template}
        prompt = self.chat_prompt(messages, **template)
        thoughts = self.thoughts(prompt, messages, bool(template.get("continue_final_message")))
        if isinstance(others.get("constraint"), Constraint):
            others["constraint"] = behind(thoughts, others["constraint"])
        return self.tokenizer.encode(prompt, add_special=False), others, thoughts

    def template_of(self, source: str) -> ChatTemplate:
        """A template for this model of the text of one; ModelFormatError where it is none."""
        return ChatTemplate.given(source, self._token_settings)

    def thoughts(
        self,
        prompt: str,
        messages: Any,
        continued: bool = False,
        template: ChatTemplate | None = None,
    ) -> Thoughts:
        """How an answer to a conversation's prompt begins. continued: whether it goes on with the
        last of the messages."""
        template = template or self.template
        if template is None:
            return Thoughts.CLOSED
        if not continued:
            return template.thoughts(prompt)
        content = messages[-1].get("content")
        parts = [p.get("text") for p in content] if isinstance(content, list) else [content]
        return Thoughts.within("".join(part for part in parts if isinstance(part, str)))

    @cached_property
    def _turn_ends(self) -> frozenset[int]:
        return self.turn_ends(self.template)

    def turn_ends(self, template: ChatTemplate | None) -> frozenset[int]:
        """The added token that a template writes after an answer: often not the model's EOS.

        None where it ends but a part of a turn in the model's family, such as gpt-oss's <|end|>.
        """
        tokenizer = self.tokenizer
        added = tokenizer.added_at(template.after_answer()) if template else None
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


def behind(thoughts: Thoughts, constraint: Constraint) -> Constraint:
    """What an answer keeps to that begins so, and behind its thoughts to the constraint."""
    if thoughts is Thoughts.CLOSED:
        return constraint
    return constraint.behind_thoughts(thoughts is Thoughts.OPENED)
