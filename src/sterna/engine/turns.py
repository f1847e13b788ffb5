"""`Turns`: whose prompt comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sterna.engine.costs import Costs
from sterna.engine.request import Request

__all__ = ["Entry", "Turns"]

#: A prompt comes before those that need as many seconds less as it has waited, times this.
AGEING = 0.5
#: As many seconds of waiting count a level of priority.
PRIORITY_S = 10.0


class Entry:
    """A request's place in a scheduler.

    arrived: since when it is here, in seconds; running: whether it may have pages. begun: tokens
    of its prompt with which one that was here before begins, too. source: of one that waits for
    another, which computes what both begin with: that one, until it has `goal` positions.
    """

    __slots__ = ("arrived", "begun", "goal", "request", "running", "source")

    def __init__(self, request: Request, arrived: float, begun: int = 0) -> None:
        self.request, self.arrived, self.running = request, arrived, False
        self.begun = begun
        self.source: Entry | None = None
        self.goal = 0


class Turns:
    """The order in which prompts get the time of steps.

    Keys (`Request.key`) get equal numbers of tokens; one that was not here has saved nothing up.
    Among requests of a key, the shortest rest comes first. That it has waited brings one forward
    (AGEING), so that none waits for ever, and so does its priority.
    """

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._served: dict[str, float] = {}  # tokens, by key

    def among(self, entries: Iterable[Entry], now: float) -> Iterator[Entry]:
        """These, each when its turn comes, as `count` has it by then."""
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

    def count(self, key: str, tokens: int) -> None:
        """So many tokens were computed in a turn of this key."""
        self._served[key] += tokens

    def _rank(self, entry: Entry, now: float) -> float:
        """Seconds that the rest of its prompt takes, less what it has waited and its priority."""
        left = entry.request.left
        per_token = self._costs.rate(min(left, 256))
        waited = now - entry.arrived
        return left * per_token / 1e3 - AGEING * waited - PRIORITY_S * entry.request.priority
