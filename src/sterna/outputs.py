"""Results of a request: its text in pieces or whole, log-probabilities and times."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from sterna.chat.reasoning import CLOSE
from sterna.one_at_a_time import OneAtATime

__all__ = [
    "AnswerParser",
    "AnswerReader",
    "Completion",
    "Delta",
    "Piece",
    "Stats",
    "Stream",
    "TokenLogprob",
]


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its natural-log probability, and the likeliest alternatives (id, logprob)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Delta:
    """A piece of a parsed answer.

    Attributes:
        kind: "content", "reasoning_content" or "tool_calls".
        text: what to append; for a tool call, to its arguments.
        index: the number of the tool call.
        id, name: those of the tool call; only its first delta has them.
    """

    kind: str
    text: str
    index: int = 0
    id: str = ""
    name: str = ""

    @property
    def tool_call(self) -> dict[str, Any]:
        """An entry of `tool_calls` in a chunk of OpenAI's chat."""
        function = {"arguments": self.text}
        if not self.id:
            return {"index": self.index, "function": function}
        head = {"index": self.index, "id": self.id, "type": "function"}
        return {**head, "function": {"name": self.name, **function}}


@dataclass(frozen=True)
class Piece:
    """A piece of a streamed answer.

    Attributes:
        text: The text as the model writes it. Possibly empty.
        token: Id of the token that completed it.
        logprob: The log-probabilities of this token, if requested.
        index: Which of several answers to a prompt it belongs to.
        deltas: The parts of a chat's answer that are certain by now; None outside of chats.
    """

    text: str
    token: int
    logprob: TokenLogprob | None = None
    index: int = 0
    deltas: tuple[Delta, ...] | None = None

    @property
    def content(self) -> str:
        """The content in this piece (`Completion.content`); outside of chats all of its text."""
        return self.text if self.deltas is None else self._joined("content")

    @property
    def reasoning(self) -> str:
        """The reasoning in this piece (`Completion.reasoning`)."""
        return self._joined("reasoning_content")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The parts of tool calls in this piece, in OpenAI's form of chunks.

        The first chunk of a call has its index, id and name; all have text to append to its
        arguments.
        """
        return [one.tool_call for one in self.deltas or () if one.kind == "tool_calls"]

    def _joined(self, kind: str) -> str:
        return "".join(one.text for one in self.deltas or () if one.kind == kind)


@dataclass
class Stats:
    """Counts and times of one request, in seconds since the call.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_cached: Tokens of the prompt that came from the prefix cache.
        n_generated: Tokens of the answer.
        n_reasoning: Those of them that are reasoning, its marks included.
        n_drafted: Tokens that were drafted ahead.
        n_accepted: Drafted tokens that turned out right.
        queue_s: Time until the first step.
        ttft_s: Time to the first token.
        total_s: Time to the last token.
        head_bytes: Bytes read of the output head.
        head_rows_rescored: Rows of an exact head that were computed from floats; 0 with any other
            head.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_reasoning: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    head_bytes: int = 0
    head_rows_rescored: int = 0

    @property
    def decode_s(self) -> float:
        """Time of the tokens after the first."""
        return self.total_s - self.ttft_s

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second after the first; 0 where there is none."""
        return (self.n_generated - 1) / self.decode_s if self.n_generated > 1 else 0.0


class AnswerParser(Protocol):
    """Parses the text of one answer, in pieces (`feed`, then `end`) or whole (`message`)."""

    def finish_reason(self, reason: str) -> str:
        """Return the finish reason of the answer, whose text ended for a reason."""

    @property
    def unread(self) -> int:
        """The number of characters that need more text before they can be parsed."""

    def feed(self, text: str) -> list[Delta]:
        """Add text; return all deltas that are certain by now."""

    def end(self) -> list[Delta]:
        """Return the remaining deltas at the end of the text."""

    def message(self, text: str) -> dict[str, Any]:
        """Parse a whole answer into a message of OpenAI's chat."""


class _PlainParser:
    """Takes all text as content."""

    unread = 0

    def finish_reason(self, reason: str) -> str:
        return reason

    def feed(self, text: str) -> list[Delta]:
        return [Delta("content", text)]

    def end(self) -> list[Delta]:
        return []

    def message(self, text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": text}


@dataclass
class Completion:
    """The answer to one request.

    Attributes:
        text: The whole text, reasoning included.
        tokens: Its token ids.
        finish_reason: "stop", "length", "cancelled", "deadline" or "error".
        logprobs: One per token, if requested.
        stats: Counts and times.
        stop_string: The stop string that ended it, if one did.
        rendered_at: The time in ISO 8601 that the chat template got, if it asked for it: the prompt
            then depends on it.
        dropped_turns: The oldest turns of the conversation that the prompt does not have, as the
            context was full.
        parser: Makes a parser of the text, as the model's family writes it.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "cancelled"
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    stop_string: str | None = None
    rendered_at: str | None = None
    dropped_turns: int = 0
    parser: Callable[[], AnswerParser] = field(default=_PlainParser, repr=False, compare=False)
    _parsed: tuple[str, dict[str, Any]] | None = field(default=None, repr=False, compare=False)

    @property
    def content(self) -> str:
        """The text after the reasoning and without tool calls; empty until the reasoning ends."""
        return str(self._message()["content"] or "")

    @property
    def reasoning(self) -> str:
        """The reasoning, such as <think> … </think>, that begins the text; empty without any."""
        return str(self._message().get("reasoning_content", ""))

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls of tools, in OpenAI's form: {"id": …, "type": "function", "function": {"name":
        …, "arguments": a JSON object as text}}. The last may be incomplete if the answer was cut
        off."""
        return copy.deepcopy(list(self._message().get("tool_calls", ())))

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, for the next turn.

        Reasoning within <think> stays in the content of an answer without tool calls, where
        templates look for it; other reasoning has a field of its own.
        """
        parsed = copy.deepcopy(self._message())
        if "tool_calls" not in parsed and CLOSE in self.text:
            return {"role": "assistant", "content": self.text}
        return {**parsed, "content": self.content}

    def __getstate__(self) -> dict[str, Any]:
        """A pickle has the parsed message instead of its parser."""
        self._message()
        return {**self.__dict__, "parser": _PlainParser}

    def _message(self) -> dict[str, Any]:
        """Return the parsed text, which is parsed once, since ids of calls are random."""
        if self._parsed is None or self._parsed[0] != self.text:
            self._parsed = self.text, self.parser().message(self.text)
        return self._parsed[1]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.stats.n_prompt


class AnswerReader:
    """Gives the pieces of a chat's answer their deltas."""

    def __init__(self, completion: Completion) -> None:
        self._completion, self._parser = completion, completion.parser()
        self._ended = False

    def read(self, piece: Piece) -> Piece:
        """Return a piece with the deltas that are certain by now."""
        return replace(piece, deltas=tuple(self._parser.feed(piece.text)))

    def end(self, index: int = 0) -> Piece | None:
        """Return a last piece with the deltas that were held back, once; None if there are none."""
        if self._ended:
            return None
        self._ended = True
        rest, tokens = self._parser.end(), self._completion.tokens
        return Piece("", tokens[-1], index=index, deltas=tuple(rest)) if rest and tokens else None

    def parsed(self, pieces: Generator[Piece, None, None]) -> Generator[Piece, None, None]:
        """Yield the pieces of the answer with their deltas; closing it closes `pieces`."""
        try:
            yield from map(self.read, pieces)
            last = self.end()
            if last is not None:
                yield last
        finally:
            pieces.close()


class Stream(Iterator[Piece]):
    """An iterator over the pieces of an answer as they are computed, for one reader at a time.

    RequestError for a second thread that reads or closes it meanwhile: each would get only a part
    of the text.

    Attributes:
        completion: The answer, filled as pieces are read.
    """

    def __init__(self, pieces: Generator[Piece, None, None], completion: Completion) -> None:
        """`pieces`: yields the pieces; closing it ends the request."""
        self.completion = completion
        self._pieces = pieces
        self._readers = OneAtATime(
            "stream: must be read by one thread at a time, but another is reading it; give "
            "each thread a stream of its own"
        )

    def __next__(self) -> Piece:
        visit = self._readers.enter()
        try:
            return next(self._pieces)
        finally:
            visit.end()

    def result(self) -> Completion:
        """Read all pieces and return the whole answer. Raises its error if it failed."""
        for _ in self:
            pass
        return self.completion

    def close(self) -> None:
        """End the answer as it is and free its memory; harmless when it has ended."""
        visit = self._readers.enter()
        try:
            self._pieces.close()
        finally:
            visit.end()
