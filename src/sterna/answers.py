"""What a request gives back: its pieces, their times, and the text up to a stop string."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from sterna.chat.thoughts import parted
from sterna.errors import RequestError

__all__ = [
    "Completion",
    "OneAtATime",
    "Piece",
    "Stats",
    "StopFilter",
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


class Visit:
    """One thread's stay at a `OneAtATime`, until `end` or until it is forgotten."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()

    def end(self) -> None:
        """Lets others in; harmless the second time."""
        self.thread = None


class OneAtATime:
    """Lets one thread in at a time, and refuses the others with an error.

    The thread that is in may enter again, so that Ctrl-C there does not lock it out of closing. Who
    is in follows from the visits that are alive: a lock that is taken and then noted would be kept
    by an interrupt between the two.
    """

    def __init__(self, refusal: str) -> None:
        """`refusal`: the error's text."""
        self._refusal = refusal
        self._visits: list[weakref.ref[Visit]] = []
        # Two threads do not both find nobody in; a signal handler may ask within.
        self._lock = threading.RLock()

    def enter(self) -> Visit:
        """A visit to keep, and to end in a `finally`. RequestError while another thread is in."""
        visit = self.try_enter()
        if visit is None:
            raise RequestError(self._refusal)
        return visit

    def try_enter(self) -> Visit | None:
        """As `enter`, but None while another thread is in."""
        visit = Visit()
        with self._lock:
            here = [ref for ref in self._visits if _thread(ref) is not None]
            if any(_thread(ref) not in (None, visit.thread) for ref in here):
                return None
            self._visits = [*here, weakref.ref(visit)]
        return visit

    @property
    def busy(self) -> bool:
        """Whether a thread is in."""
        return any(_thread(ref) is not None for ref in self._visits)


def _thread(visit: weakref.ref[Visit]) -> int | None:
    """The thread whose visit it is; None where it has ended or is forgotten."""
    owner = visit()
    return None if owner is None else owner.thread


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


class StopFilter:
    """Passes text on until a stop string appears, holding back what may be the start of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.held = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far is sure not to belong to a stop string."""
        if self.stopped:
            return ""
        self.held += text
        places = [(i, s) for s in self.stops if (i := self.held.find(s)) >= 0]
        if places:
            first, self.stopped_by = min(places)
            out, self.held = self.held[:first], ""
            return out
        keep = max((self._overlap(s) for s in self.stops), default=0)
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out

    @property
    def stopped(self) -> bool:
        """Whether a stop string came."""
        return self.stopped_by is not None

    def _overlap(self, stop: str) -> int:
        """Length of the longest start of `stop` that ends the held text."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)

    def flush(self) -> str:
        """The rest, once the model has ended."""
        out, self.held = ("" if self.stopped else self.held), ""
        return out
