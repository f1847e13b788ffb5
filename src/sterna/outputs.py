"""What a request gives back: its text in pieces or whole, log-probabilities and times."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from sterna.chat.thoughts import parted
from sterna.one_at_a_time import OneAtATime

__all__ = [
    "Completion",
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
class Piece:
    """A part of a streamed answer: text (possibly empty), and the token that completed it.

    index: which of several answers to a prompt it belongs to.
    """

    text: str
    token: int
    logprob: TokenLogprob | None = None
    index: int = 0


@dataclass
class Stats:
    """Timing of one request; seconds from the call. ttft_s is the time to the first token.

    n_cached: of the prompt's tokens, those that were not computed again. queue_s: until the first
    step that it was part of. n_drafted, n_accepted: tokens that were guessed, and rightly.
    head_bytes: read of the output head. head_rows_rescored: rows of an exact head that were
    computed from its float rows; 0 with another head.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    head_bytes: int = 0
    head_rows_rescored: int = 0

    @property
    def decode_s(self) -> float:
        """Time spent on the tokens after the first."""
        return self.total_s - self.ttft_s

    @property
    def decode_tok_s(self) -> float:
        """Tokens per second after the first; 0 where there is none."""
        return (self.n_generated - 1) / self.decode_s if self.n_generated > 1 else 0.0


@dataclass
class Completion:
    """The answer to one request.

    finish_reason: "stop", "length", "cancelled", "deadline" or "error". stop_string: the one of
    the stop strings that ended it. thinks: whether the text begins within thoughts, which the
    prompt has opened.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "cancelled"
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    stop_string: str | None = None
    thinks: bool = False

    @property
    def content(self) -> str:
        """The text behind the thoughts; empty as long as these have not ended."""
        return parted(self.text, self.thinks)[1]

    @property
    def reasoning(self) -> str:
        """The thoughts (<think> … </think>) with which the text begins; empty without any."""
        return parted(self.text, self.thinks)[0]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.stats.n_prompt


class Stream(Iterator[Piece]):
    """The pieces of an answer as they come, for one reader at a time.

    RequestError to a thread that asks for a piece, or closes, while another is being made for
    another thread: pieces shared out among readers would be nobody's text.
    """

    def __init__(self, pieces: Generator[Piece, None, None]) -> None:
        """`pieces`: what makes them."""
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

    def close(self) -> None:
        """Ends the answer as it is, and gives up what it computes with; harmless at its end."""
        visit = self._readers.enter()
        try:
            self._pieces.close()
        finally:
            visit.end()
