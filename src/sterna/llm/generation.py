"""`LLM`'s methods that answer: prompts, conversations and questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from sterna.llm.llm_parts import LLMParts
from sterna.outputs import Completion, Stream
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sterna.engine import Request
    from sterna.llm.decisions import Decision
    from sterna.llm.options import ChatOptions, DecideOptions, GenerateOptions, PromptOptions

__all__ = ["GenerationMethods"]


class GenerationMethods(LLMParts):
    """Methods that answer: prompts, conversations and questions."""

    # -------------------------------------------------------------------------------------- text

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Any,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each prompt of a list at the same time.

        Each prompt of a list gets the answer that it gets alone.

        Args:
            prompt: Text or token ids, or a list of either.
            params: Sampling parameters. Options replace its fields.
            **options: Fields of `SamplingParams`, such as max_tokens=64 or temperature=0.7, and
                prediction, constraint and adapter (`GenerateOptions`).

        RequestError, before anything is computed, for a value out of range, an empty prompt, or one
        longer than the context.
        """
        if _are_several(prompt):
            make, every = self.requests.make, self.requests.compiled(options)
            return self._answers([make(one, every, params) for one in prompt])
        return _completed(self.start(self.requests.make(prompt, options, params)))

    def choices(
        self,
        prompt: str | Sequence[int],
        n: int,
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """Several answers to a prompt, which is computed once; arguments as in `generate`.

        The i-th answer equals the one of `generate` with the same seed and choice=i.
        """
        return self._answers(self.requests.make_several(prompt, n, options, params))

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Answer as `generate`, a piece of text at a time.

        Checks its arguments now, before the first piece is read. A stream has one reader at a time.
        `Stream.completion` is its answer so far.
        """
        return self.start(self.requests.make(prompt, options, params))

    # -------------------------------------------------------------------------------------- chat

    @overload
    def chat(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Any,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Completion | list[Completion]:
        """Answer a conversation, or each conversation of a list at the same time.

        The answer also ends with the template's end of a turn. A constraint applies to its content,
        after any reasoning; `Completion.content` and `reasoning` are these two parts.
        `Conversation` keeps the messages of several turns. Each conversation of a list gets the
        answer that it gets alone.

        Args:
            messages: [{"role": "user", "content": "Hello"}, ...], or a list of such lists. A text
                is a user's message.
            params: Sampling parameters. Options replace its fields.
            **options: Options of `generate`, and tools, tool_choice, parallel_tool_calls,
                documents, template_options, continue_final_message, reasoning_budget and
                response_format (`ChatOptions`).

        RequestError if the model has no chat template, or the template refuses the messages.
        """
        from sterna.llm.chat_request import conversations

        several = conversations(messages)
        if several is None:
            return _completed(self.start(self._chat_request(messages, params, options)))
        every = self.requests.compiled(options, chat=True)
        return self._answers([self._chat_request(one, params, every) for one in several])

    def chat_stream(
        self,
        messages: str | Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> Stream:
        """Answer as `chat`, a piece at a time.

        A piece has `content`, `reasoning` and `tool_calls`; its `text` is what the model writes.
        """
        return self.start(self._chat_request(messages, params, options), chat=True)

    def _chat_request(
        self, messages: Any, params: SamplingParams | None, options: Mapping[str, Any]
    ) -> Request:
        from sterna.llm.chat_request import ChatRequest

        chat = ChatRequest.of_options(messages, options, params)
        return self.requests.make_chat(chat)[0]

    def chat_prompt(
        self, messages: str | Sequence[Mapping[str, Any]], **options: Unpack[PromptOptions]
    ) -> str:
        """Render a conversation as the prompt that the chat template makes of it.

        Tools that the template has no place for go into the system prompt.
        """
        return self.renderer.render(messages, **options)

    def chat_tokens(
        self, messages: str | Sequence[Mapping[str, Any]], **options: Unpack[PromptOptions]
    ) -> list[int]:
        """Render as `chat_prompt`, and return token ids, all those of images included."""
        return self.renderer.prepare(messages, **options).tokens

    # ----------------------------------------------------------------------------------- decisions

    @overload
    def decide(
        self,
        context: str | Sequence[Mapping[str, Any]],
        question: str,
        **options: Unpack[DecideOptions],
    ) -> Decision: ...

    @overload
    def decide(
        self, context: Any, question: str | list[str], **options: Unpack[DecideOptions]
    ) -> list[Decision]: ...

    def decide(self, context: Any, question: Any, **options: Unpack[DecideOptions]) -> Any:
        """Return the probabilities of given answers to one or several questions about a context.

        Nothing is generated. A context is computed once for all questions. Each question gets the
        decision that it would get alone, with the same bits on every machine (`Decision`).

        Args:
            context: A text, the messages of a conversation, or a list of texts.
            question: A question, or a list of them. A list of either gives a list: the decisions
                of the first context, then those of the next.
            options: The answers to choose from, or a description of each by its text. Default: Yes
                and No. If one begins another, their ends are scored as well.
            score: The lowest and the highest of the whole numbers to choose from instead.
            neutral: A context without content, such as "N/A". Each option's log-probability after
                it is subtracted from the one after the real context, against the model's bias.
            normalise: Divide each option's log-probability by its number of tokens, so that a long
                option is not less likely for its length. Default False.
            adapter: As in `generate`.

        RequestError as in `generate`.
        """
        from sterna.llm.decider import decisions

        several = isinstance(question, list) or _are_texts(context)
        asked = self.decider.inquiries(context, question, options)
        found = decisions(asked, self.engine_loop.finished)
        return found if several else found[0]


def _completed(stream: Stream) -> Completion:
    """Return the completion of a stream once it is read."""
    for _ in stream:
        pass
    return stream.completion


def _are_several(prompt: object) -> bool:
    """Whether `prompt` is a list of prompts and not of token ids."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    return isinstance(prompt[0], (str, list, tuple, np.ndarray))


def _are_texts(context: object) -> bool:
    """Whether `context` is a list of texts and not of messages."""
    return isinstance(context, list) and isinstance(next(iter(context), None), str)
