"""`Admission`: who may have pages, and what others have computed of a prompt already."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from sterna.engine.costs import Costs
from sterna.engine.engine import Engine
from sterna.engine.fair_queue import Entry
from sterna.engine.prefix import PrefixCache, in_common
from sterna.engine.request import Request
from sterna.engine.sequence import PAGE, Sequence
from sterna.errors import RequestError

__all__ = ["Admission"]


class Admission:
    """Where pages go: to whom they are given, from whom they are taken, and who shares some.

    What runs is shared without a cache, too: requests of equal salts compute once what they begin
    with.
    """

    def __init__(self, engine: Engine, costs: Costs) -> None:
        self._engine, self._costs = engine, costs

    def fits(self, entry: Entry, running: SequenceOf[Entry], most: int) -> bool:
        """Whether it may have pages now, beside those that run, at most so many that are read.

        There must be some for all tokens that these and it will have; or for those that are known,
        and one more for each, since not all need all of theirs soon. Pages that it will share with
        another count once.
        """
        active = sum(1 for e in running if not e.request.paused)
        if active == 0:
            return True  # or nobody ever would
        if active >= most:
            return False
        request, requests = entry.request, [entry.request, *(e.request for e in running)]
        shared = self._known(request, running)[1] // PAGE if request.looks_up else 0
        free = self._engine.pool.free + shared
        if sum(self._lacks(one, one.longest) for one in requests) <= free:
            return True
        return sum(self._lacks(one, len(one.tokens)) for one in requests) + len(running) <= free

    def _lacks(self, request: Request, length: int) -> int:
        """Pages that it has not yet, of those that so many positions take."""
        sequence, pool = request.sequence, self._engine.pool
        state = pool.state_pages if sequence.state is None else 0
        taken = pool.shape.at_most(PAGE * len(sequence.pages))
        return max(0, pool.shape.at_most(length) - taken) + state

    def begun_by(self, request: Request, others: Iterable[Request]) -> int:
        """How many of its tokens one of these begins with, too, and may compute for both."""
        mine = request.tokens[:-1]
        return max(
            (
                in_common(mine, other.tokens)
                for other in others
                if request.looks_up and other.looks_up and other.salt == request.salt
            ),
            default=0,
        )

    def victim(self, running: SequenceOf[Entry], only_paused: bool = False) -> Entry | None:
        """Who gives pages up first: those that nobody reads, then the youngest; never the last."""
        paused = [e for e in running if e.request.paused]
        if paused:
            return paused[-1]
        return running[-1] if len(running) > 1 and not only_paused else None

    def source(self, entry: Entry, running: SequenceOf[Entry]) -> Entry | None:
        """Who computes what its prompt begins with, if it is better to wait for that.

        That is no later than by itself where its turns go to that one, and others get the time.
        """
        if entry.source is None or not _goes_on(entry.source, entry.goal):
            entry.source, entry.goal = self._found(entry.request, running)
            if entry.source is not None and self._engine.forgets:
                entry.source.request.boundaries.add(entry.goal)
        return entry.source

    def _found(self, request: Request, running: SequenceOf[Entry]) -> tuple[Entry | None, int]:
        """Who will have most of its prompt, and how much."""
        best, goal = None, 0
        for other in running if request.looks_up else ():
            if other.request.salt == request.salt and other.request.looks_up:
                same = in_common(request.tokens[:-1], other.request.tokens)
                gain = same - other.request.sequence.length
                if same > goal and _goes_on(other, same) and self._costs.outweighs_a_step(gain):
                    best, goal = other, same
        return best, goal

    def look_up(
        self, request: Request, running: SequenceOf[Entry], cache: PrefixCache | None
    ) -> None:
        """Takes what is known of the tokens that it begins with."""
        if request.sequence.length or not request.looks_up:
            return
        self._share(request, running)
        if cache is None or request.left == 1:
            return
        found, same = cache.find(request.tokens, request.salt)
        if found is not None and found.length > request.sequence.length:
            request.go_on_from(found)
        if cache.on_disk:  # what it has are full pages
            request.boundaries = {b // PAGE * PAGE for b in request.boundaries} - {0}
        if self._engine.forgets and not request.boundaries:
            # The state where others went another way, or at the last page, may be wanted again.
            last = same if request.sequence.length < same // PAGE * PAGE else request.n_prompt - 1
            request.boundaries.add(last // PAGE * PAGE)

    def _share(self, request: Request, running: SequenceOf[Entry]) -> None:
        """With who has most of what it begins with."""
        source, length = self._known(request, running)
        if source is not None:
            with contextlib.suppress(RequestError):  # no room for a state
                request.go_on_from(self._engine.pool.share(source, length))

    def _known(self, request: Request, running: SequenceOf[Entry]) -> tuple[Sequence | None, int]:
        """Whose sequence has most of what it begins with, and how much."""
        best, most = None, 0
        for other in running:
            sequence = other.request.sequence
            if sequence.length > most and other.request.salt == request.salt:
                known = other.request.tokens[: sequence.length]
                length = in_common(request.tokens[:-1], known)
                length = self._engine.pool.reachable(sequence, length)
                if length > most:
                    best, most = sequence, length
        return best, most


def _goes_on(entry: Entry, goal: int) -> bool:
    """Whether it computes its prompt, and will have so many positions."""
    request = entry.request
    if not entry.running or request.ended or request.paused:
        return False
    return not request.decodes and request.sequence.length < goal
