"""`FairQueue`: the order in which prompts get compute time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

from sterna.engine.request import Request
from sterna.engine.scheduling.step_costs import StepCosts

__all__ = ["Entry", "FairQueue"]

#: Seconds of compute that a second of waiting outweighs.
AGEING = 0.5
#: Seconds of waiting that a level of priority is worth.
PRIORITY_S = 10.0


@dataclass(slots=True, eq=False)
class Entry:
    """A request's entry in a scheduler.

    arrived: when it was added, in seconds; running: whether it may have pages. begun: tokens at the
    begin of its prompt that an earlier request's prompt has as well; cached: those that the prefix
    cache has. source: the request that is computing a prefix of this one's prompt, which waits
    until the source has `goal` positions.
    """

    request: Request
    arrived: float
    begun: int = 0
    cached: int = 0
    running: bool = False
    source: Entry | None = None
    goal: int = 0

    @property
    def left(self) -> int:
        """Tokens to compute, without those that the prefix cache will give it."""
        left = self.request.left
        return left if self.running else max(1, left - self.cached)


class FairQueue:
    """The order in which prompts get compute time.

    Keys (`Request.key`) get equal numbers of tokens; idle keys accumulate no credit. Within a key,
    the prompt with the least left to compute comes first. Waiting moves a request forward
    (AGEING), so that none starves, and so does its priority. A short prompt may come before a long
    one that has waited, since it costs that one little.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._served: dict[str, float] = {}  # tokens, by key

    def ordered(
        self,
        entries: Iterable[Entry],
        now: float,
        is_short: Callable[[Entry], bool],
        short_first: Callable[[], bool],
    ) -> Iterator[Entry]:
        """Yield the entries in order; `charge` calls in between change the rest.

        short_first: asked before each: whether a key's short prompts come before its other ones.
        """
        queues: dict[str, _KeyQueue] = {}
        for entry in entries:
            queue = queues.setdefault(entry.request.key, _KeyQueue())
            ranked = (self.rank(entry, now), entry.request.id, entry)
            (queue.short if is_short(entry) else queue.long).append(ranked)
        least = min((self._served[k] for k in queues if k in self._served), default=0.0)
        self._served = {key: max(least, self._served.get(key, least)) for key in queues}
        for queue in queues.values():
            queue.sort()
        while queues:
            key = min(queues, key=lambda k: self._served[k])
            yield queues[key].pop(short_first())
            if queues[key].is_empty:
                del queues[key]

    def forget(self) -> None:
        """Forget the charges of all keys, as there is no prompt."""
        self._served = {}

    def charge(self, key: str, tokens: int) -> None:
        """Charge a key for computed tokens."""
        self._served[key] += tokens

    def rank(self, entry: Entry, now: float) -> float:
        """Return the prompt's remaining seconds, less credit for waiting and priority."""
        waited = now - entry.arrived
        computed = self.seconds(entry.left) + entry.request.encoding_s
        return computed - AGEING * waited - PRIORITY_S * entry.request.priority

    def seconds(self, tokens: int) -> float:
        """Return the seconds that computing so many tokens of a prompt takes: a new one's rank."""
        return tokens * self._costs.rate(min(tokens, 256)) / 1e3


class _KeyQueue:
    """The entries of a key as (rank, id, entry), the last first."""

    def __init__(self) -> None:
        self.short: list[tuple[float, int, Entry]] = []
        self.long: list[tuple[float, int, Entry]] = []

    def sort(self) -> None:
        self.short.sort(key=itemgetter(0, 1), reverse=True)
        self.long.sort(key=itemgetter(0, 1), reverse=True)

    def pop(self, short_first: bool) -> Entry:
        """Return the next entry, of the short ones if there are any and they come first."""
        short, long = self.short, self.long
        if short and (short_first or not long or short[-1][:2] < long[-1][:2]):
            return short.pop()[2]
        return long.pop()[2]

    @property
    def is_empty(self) -> bool:
        return not (self.short or self.long)
