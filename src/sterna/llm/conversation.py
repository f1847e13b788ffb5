"""`Conversation`: a chat that grows turn by turn and computes only the new tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from sterna.chat import check_messages
from sterna.checks import checked_name
from sterna.errors import RequestError, shown
from sterna.llm.context_overflow import CONTEXT_OVERFLOW
from sterna.llm.llm import LLM
from sterna.one_at_a_time import OneAtATime
from sterna.outputs import Completion, Piece, Stream
from sterna.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sterna.llm.options import ChatOptions

__all__ = ["Content", "Conversation"]

#: Content of a message: a text, or a list of parts (texts and images).
Content = str | Sequence[Mapping[str, Any]]


class Conversation:
    """A chat with a model that computes only the new tokens of each turn.

    The prefix cache of the LLM keeps what earlier turns computed. Answers have the same bits as
    from `LLM.chat` with the same messages and options. A new turn ends the stream of the previous
    one.

    Args:
        llm: The model.
        system: System prompt. Default: none.
        tools, documents, template_options: As in `LLM.chat`.
        context_overflow: As in `LLM.chat`; what is left out of the messages is forgotten.
    """

    def __init__(
        self,
        llm: LLM,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template_options: Mapping[str, Any] | None = None,
        context_overflow: str = "error",
    ) -> None:
        if not isinstance(llm, LLM):
            raise RequestError(f"llm: must be an LLM, but got {shown(llm)}; pass sterna.LLM(model)")
        self.llm = llm
        self.tools = tools
        self.documents = documents
        self.template_options = template_options
        self.context_overflow: str = checked_name(
            "context_overflow", context_overflow, CONTEXT_OVERFLOW
        )
        #: Number of exchanges that the latest turn dropped, since the context was full.
        self.dropped: int = 0
        self.last: Completion = Completion()
        self._running: Stream | None = None
        self._turns = OneAtATime(  # held while a piece is computed or a turn begins
            "conversation: must be used by one thread at a time, but another is in the middle of a "
            "turn; give each thread a Conversation of its own"
        )
        self._messages: list[dict[str, Any]] = []
        self.reset(system=system)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End a running answer. The conversation can go on."""
        with self._alone():
            self._end_running()

    # ------------------------------------------------------------------------------- messages

    @property
    def messages(self) -> list[dict[str, Any]]:
        """A copy of the messages so far. Assign a list to replace them (RequestError)."""
        return [dict(message) for message in self._messages]

    @messages.setter
    def messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        if not isinstance(messages, Sequence) or len(messages):
            check_messages(messages)
        with self._alone():
            self._end_running()
            self._messages = [dict(message) for message in messages]

    @property
    def system(self) -> str | None:
        """The system prompt; None if there is none. Assign a text to change it."""
        first = self._messages[0] if self._messages else {}
        return str(first.get("content")) if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        if text is not None and not isinstance(text, str):
            raise RequestError(f"system: must be text, but got {type(text).__name__}; pass a str")
        turns = self._messages[1:] if self.system is not None else self._messages
        opening = [{"role": "system", "content": text}] if text else []
        self.messages = [*opening, *turns]

    def reset(self, *, system: str | None = None) -> None:
        """Forget all messages. system: the new system prompt."""
        self.messages = []
        self.system = system

    def undo(self) -> str | None:
        """Remove the latest exchange. Returns the user's text of it; None if there was none."""
        for i in range(len(self._messages) - 1, -1, -1):
            if self._messages[i].get("role") == "user":
                content = self._messages[i].get("content")
                self.messages = self._messages[:i]
                return _text(content)
        return None

    # ---------------------------------------------------------------------------------- turns

    def ask(
        self, content: Content, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> Completion:
        """Answer a user's message and add both to the messages; arguments as in `LLM.chat`.

        content: Text, or a list of parts, such as images.

        Raises as `LLM.chat`, and then leaves the messages alone.
        """
        return self._begin(content, options, params, chat=False).result()

    def stream(
        self, content: Content, params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> Stream:
        """Answer as `ask`, a piece at a time, as from `LLM.chat_stream`.

        Checks its arguments now. An answer that is cut short stays in the messages; if it has no
        text, the messages stay as they were.
        """
        return self._begin(content, options, params, chat=True)

    def _begin(
        self,
        content: Content,
        options: Mapping[str, Any],
        params: SamplingParams | None,
        chat: bool,
    ) -> Stream:
        """Start a turn. chat: whether pieces get their parts."""
        from sterna.llm.chat_request import ChatRequest

        with self._alone():
            self._end_running()
            messages = [*self._messages, {"role": "user", "content": content}]
            template: dict[str, Any] = {
                name: getattr(self, name)
                for name in ("tools", "documents", "template_options", "context_overflow")
            }
            asked = ChatRequest.of_options(messages, {**template, **options}, params)
            self.dropped = 0
            # For good: the next turn does not look at what goes now.
            if asked.context_overflow != "error":
                fitting, self.dropped = self.llm.requests.fitting(asked)
                asked.messages = messages = [dict(message) for message in fitting]
            (request,) = self.llm.requests.make_chat(asked)
            self.last = request.completion
            pieces = self._take(messages, self.llm.start(request, chat=chat))
            self._running = Stream(pieces, request.completion)
            return self._running

    def _take(self, messages: list[dict[str, Any]], pieces: Stream) -> Generator[Piece, None, None]:
        done = pieces.completion
        try:
            while True:
                with self._alone():
                    piece = next(pieces, None)
                if piece is None:
                    return
                yield piece
        finally:
            pieces.close()  # frees its pages before the next turn
            if done.text or done.finish_reason != "cancelled":
                self._messages = [*messages, done.message]
            self._running = None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out; RequestError if one is in the middle of a step."""
        visit = self._turns.enter()
        try:
            yield
        finally:
            visit.end()

    def _end_running(self) -> None:
        if self._running is not None:
            self._running.close()
        self._running = None


def _text(content: object) -> str:
    parts = content if isinstance(content, (list, tuple)) else [{"text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))
