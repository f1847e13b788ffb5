"""`FairQueue`: the order in which prompts get compute time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
    begin of its prompt that an earlier request's prompt has as well. source: the request that is
    computing a prefix of this one's prompt, which waits until the source has `goal` positions.
    """

    request: Request
    arrived: float
    begun: int = 0
    running: bool = False
    source: Entry | None = None
    goal: int = 0


class FairQueue:
    """The order in which prompts get compute time.

    Keys (`Request.key`) get equal numbers of tokens; idle keys accumulate no credit. Within a key,
    the prompt with the least left to compute comes first. Waiting moves a request forward
    (AGEING), so that none starves, and so does its priority.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._served: dict[str, float] = {}  # tokens, by key

    def ordered(self, entries: Iterable[Entry], now: float) -> Iterator[Entry]:
        """Yield the entries in order; `charge` calls in between change what follows."""
        queues: dict[str, list[Entry]] = {}
        for entry in entries:
            queues.setdefault(entry.request.key, []).append(entry)
        least = min((self._served[k] for k in queues if k in self._served), default=0.0)
        self._served = {key: max(least, self._served.get(key, least)) for key in queues}
        for queue in queues.values():
            queue.sort(key=lambda entry: (self._rank(entry, now), entry.request.id), reverse=True)
        while queues:
            key = min(queues, key=lambda k: self._served[k])
            yield queues[key].pop()
            if not queues[key]:
                del queues[key]

    def charge(self, key: str, tokens: int) -> None:
        """Charge a key for computed tokens."""
        self._served[key] += tokens

    def _rank(self, entry: Entry, now: float) -> float:
        """Return the prompt's remaining seconds, less credit for waiting and priority."""
        left = entry.request.left
        per_token = self._costs.rate(min(left, 256))
        waited = now - entry.arrived
        computed = left * per_token / 1e3 + entry.request.encoding_s
        return computed - AGEING * waited - PRIORITY_S * entry.request.priority
