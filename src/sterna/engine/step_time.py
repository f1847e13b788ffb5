"""`StepTime`: how long a step should take."""

from __future__ import annotations

from collections.abc import Iterable

from sterna.engine.costs import Costs, Work
from sterna.engine.engine import PREFILL_CHUNK
from sterna.engine.request import Request

__all__ = ["StepTime"]

#: Where decoding leaves less of a step, prompts make it longer by this share of decoding.
PROMPTS_SHARE = 0.25
#: Who waits counts for so many of those who decode, since these get a token in each step. More
#: would bring a few percent of throughput, and gaps of streams that are twice as long.
WAITING = 2


class StepTime:
    """How many milliseconds a step should take, by whose prompt it goes on with.

    A step reads the weights once, for however many it decodes. So who begins to decode beside
    others saves time for all, and the more, the sooner; but others wait while its prompt is
    computed. The time is parted by heads: where n decode and w wait whose prompts are short, these
    have 2 w milliseconds for n of decoding (WAITING), in steps of at most `prompt_step_ms`. A
    prompt is short if such a step has room for all of it. A longer one is no gain for many steps to
    come, and has what decoding leaves of `step_ms`, a quarter of decoding's time at least.

    decoding: the part of the step that decodes, a token each; read_along: whether somebody reads
    one of these as it comes, and else `prompt_step_ms` is what a step may take; places: requests
    that may begin to decode beside these; prompts: those that are to be computed.
    """

    __slots__ = ("_joining", "_short", "stretched", "usual")

    def __init__(
        self,
        costs: Costs,
        step_ms: float,
        prompt_step_ms: float,
        decoding: Work,
        read_along: bool = True,
        places: int = 0,
        prompts: Iterable[Request] = (),
    ) -> None:
        waits = read_along and decoding.tokens > 0
        ms, most = costs.ms(decoding), step_ms if waits else prompt_step_ms
        #: Of a step that goes on with a long prompt.
        self.usual = max(most, ms * (1 + PROMPTS_SHARE))
        #: Whether that is longer than asked for, since prompts must have their share.
        self.stretched = self.usual > most
        self._joining = self.usual
        self._short = costs.chunk(Work(), 0, PREFILL_CHUNK, prompt_step_ms)
        joining = min(places, sum(1 for request in prompts if self._joins(request)))
        if waits and joining:
            fair = ms * (1 + WAITING * joining / decoding.tokens)
            self._joining = max(self.usual, min(fair, prompt_step_ms))

    @property
    def most(self) -> float:
        """That of the longest step, whoever's prompt it is."""
        return self._joining

    def of(self, request: Request) -> float:
        """That of a step that goes on with this prompt."""
        return self._joining if self._joins(request) else self.usual

    def _joins(self, request: Request) -> bool:
        """Whether it will soon decode."""
        return request.left <= self._short and request.longest > request.n_prompt + 1
