"""`StepTime`: how many milliseconds a step should take."""

from __future__ import annotations

from collections.abc import Iterable

from sterna.engine.engine import PREFILL_CHUNK
from sterna.engine.scheduling.fair_queue import Entry
from sterna.engine.scheduling.step_costs import StepCosts, StepWork

__all__ = ["DECODE_ONLY_EVERY", "SHORT_FIRST", "StepTime"]

#: Prompts may lengthen a step by this share of its decoding, if decoding leaves less time; or by
#: that of one decoding request, so that a new one is not the slower the slower the machine.
PROMPTS_SHARE = 0.25
#: One in this many steps that are longer than step_ms has no prompt, to measure only decoding.
DECODE_ONLY_EVERY = 8
#: A waiting request weighs as much as this many decoding ones, which get a token in each step. More
#: would gain a few percent of throughput, for gaps in streams that are twice as long.
WAITING = 2
#: Share of the time for prompts in which short ones come before long ones that have waited longer.
SHORT_FIRST = 0.5


class StepTime:
    """The milliseconds that a step should take, which depend on the prompt that it computes.

    A step reads the weights once, for however many requests it decodes. So a request that joins the
    decoding soon saves time for all, but the others wait while its prompt is computed. Time is
    shared by heads: while n requests decode and w wait with short prompts, these get 2 w
    milliseconds for each n of decoding (WAITING), in steps of at most `prompt_step_ms`. A prompt is
    short if such a step has room for all of it. A longer prompt gains nothing for many steps: it
    gets the time that decoding leaves of `step_ms`, at least as much as a decoding request has and
    a quarter of decoding's own. Half of this is for short prompts first, so that they go between
    its chunks.

    decoding: the step's work for decoding requests, a token each; is_streamed: whether a reader
    waits for one of these, else a step may take `prompt_step_ms`; places: how many requests may
    join the decoding; prompts: requests with a prompt to compute.
    """

    __slots__ = ("_joining", "_short", "short_first_until", "stretched", "usual")

    def __init__(
        self,
        costs: StepCosts,
        step_ms: float,
        prompt_step_ms: float,
        decoding: StepWork,
        is_streamed: bool = True,
        places: int = 0,
        prompts: Iterable[Entry] = (),
    ) -> None:
        waits = is_streamed and decoding.tokens > 0
        ms, most = costs.ms(decoding), step_ms if waits else prompt_step_ms
        #: Milliseconds of a step that computes a long prompt.
        share = max(PROMPTS_SHARE, 1 / max(1, decoding.tokens))
        self.usual: float = max(most, ms * (1 + share))
        #: Whether that is longer than asked for, to give prompts their share.
        self.stretched: bool = self.usual > most
        #: Milliseconds of work up to which short prompts come first.
        self.short_first_until: float = ms + SHORT_FIRST * (self.usual - ms)
        self._joining = self.usual
        self._short = costs.chunk(StepWork(), 0, PREFILL_CHUNK, prompt_step_ms)
        joining = min(places, sum(1 for entry in prompts if self._joins(entry)))
        if waits and joining:
            fair = ms * (1 + WAITING * joining / decoding.tokens)
            self._joining = max(self.usual, min(fair, prompt_step_ms))

    @property
    def most(self) -> float:
        """Milliseconds of the longest step, over all prompts."""
        return self._joining

    def fits(self, tokens: int) -> bool:
        """Whether a prompt with so many tokens left is short: a step with only it has room."""
        return tokens <= self._short

    def of(self, entry: Entry) -> float:
        """Return the milliseconds of a step that computes this request's prompt."""
        return self._joining if self._joins(entry) else self.usual

    def is_short(self, entry: Entry) -> bool:
        """Whether a request's prompt takes no more than a step."""
        return self.fits(entry.left) and entry.request.missing_image() is None

    def _joins(self, entry: Entry) -> bool:
        """Whether a request will soon decode."""
        request = entry.request
        return self.is_short(entry) and request.max_length > request.n_prompt + 1
