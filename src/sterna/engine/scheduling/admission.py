"""`Admission`: which requests may have pages, and which prefixes they share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

from sterna.engine.engine import Engine
from sterna.engine.kv_cache.prefix_cache import PrefixCache, common_prefix_length
from sterna.engine.kv_cache.sequence import PAGE, Sequence
from sterna.engine.request import Request
from sterna.engine.scheduling.fair_queue import Entry
from sterna.engine.scheduling.step_costs import StepCosts
from sterna.errors import RequestError

__all__ = ["Admission"]


class Admission:
    """Decides which requests get pages, which lose theirs, and which prefixes are shared.

    Running requests share prefixes even without a prefix cache: what requests of equal salts begin
    with is computed once.
    """

    def __init__(self, engine: Engine, costs: StepCosts) -> None:
        self._engine, self._costs = engine, costs

    def fits(self, entry: Entry, running: SequenceOf[Entry], most: int) -> bool:
        """Whether a request may have pages now, next to the running ones.

        most: running requests that are not paused. There must be pages for all tokens that these
        requests will have; or for their known tokens and one page more for each, since not all need
        all of theirs soon. Shared pages count once.
        """
        active = sum(1 for e in running if not e.request.paused)
        if active == 0:
            return True  # or none ever would
        if active >= most:
            return False
        request, requests = entry.request, [entry.request, *(e.request for e in running)]
        shared = self._known(request, running)[1] // PAGE if request.uses_prefix_cache else 0
        free = self._engine.kv_cache.pool.free + shared
        if sum(self._lacks(one, one.max_length) for one in requests) <= free:
            return True
        return sum(self._lacks(one, len(one.tokens)) for one in requests) + len(running) <= free

    def _lacks(self, request: Request, length: int) -> int:
        """Return how many of the pages that `length` positions take a request lacks."""
        sequence, pool = request.sequence, self._engine.kv_cache.pool
        state = pool.state_pages if sequence.state is None else 0
        taken = pool.shape.pages_needed(PAGE * len(sequence.pages))
        return max(0, pool.shape.pages_needed(length) - taken) + state

    def shared_prefix(self, request: Request, others: Iterable[Request]) -> int:
        """Return how many of its first tokens another request has and may compute for both."""
        mine = request.prefix_keys[:-1]
        return max(
            (
                common_prefix_length(mine, other.prefix_keys)
                for other in others
                if _may_share(request, other)
            ),
            default=0,
        )

    def preemption_victim(
        self, running: SequenceOf[Entry], only_paused: bool = False
    ) -> Entry | None:
        """Return the request to preempt: a paused one, else the youngest; never the only one."""
        paused = [e for e in running if e.request.paused]
        if paused:
            return paused[-1]
        return running[-1] if len(running) > 1 and not only_paused else None

    def source(self, entry: Entry, running: SequenceOf[Entry]) -> Entry | None:
        """Return the request that is computing a prefix of this one's prompt, if waiting pays.

        Its own compute time goes to that request meanwhile, so waiting takes no longer.
        """
        if entry.source is None or not _goes_on(entry.source, entry.goal):
            entry.source, entry.goal = self._found(entry.request, running)
            if entry.source is not None and self._engine.kv_cache.needs_snapshots:
                entry.source.request.boundaries.add(entry.goal)
        return entry.source

    def _found(self, request: Request, running: SequenceOf[Entry]) -> tuple[Entry | None, int]:
        """Return the request that will have the most of its prompt, and how much of it."""
        best, goal = None, 0
        for other in running:
            if _may_share(request, other.request):
                same = common_prefix_length(request.prefix_keys[:-1], other.request.prefix_keys)
                gain = same - other.request.sequence.length
                if same > goal and _goes_on(other, same) and self._costs.outweighs_a_step(gain):
                    best, goal = other, same
        return best, goal

    def reuse_prefix(
        self, request: Request, running: SequenceOf[Entry], cache: PrefixCache | None
    ) -> None:
        """Give a request the longest prefix that running requests or the cache have."""
        if request.sequence.length or not request.uses_prefix_cache:
            return
        self._share(request, running)
        if cache is None or request.left == 1:
            return
        prefix, same = cache.match(request.prefix_keys, request.salt)
        if prefix is not None and prefix.length > request.sequence.length:
            request.resume_from(prefix)
        if cache.on_disk:  # the disk has full pages only
            request.boundaries = {b // PAGE * PAGE for b in request.boundaries} - {0}
        if self._engine.kv_cache.needs_snapshots and not request.boundaries:
            # A snapshot may be wanted where other prompts parted from it, or at its last page.
            last = same if request.sequence.length < same // PAGE * PAGE else request.n_prompt - 1
            request.boundaries.add(last // PAGE * PAGE)

    def _share(self, request: Request, running: SequenceOf[Entry]) -> None:
        """Share the pages of the running request that has the most of its first tokens."""
        source, length = self._known(request, running)
        if source is not None:
            with contextlib.suppress(RequestError):  # no room for a state
                request.resume_from(self._engine.kv_cache.pool.fork(source, length))

    def _known(self, request: Request, running: SequenceOf[Entry]) -> tuple[Sequence | None, int]:
        """Return the sequence that has the most of its first tokens, and how many."""
        best, most = None, 0
        for other in running:
            sequence = other.request.sequence
            if sequence.length > most and other.request.salt == request.salt:
                known = other.request.prefix_keys[: sequence.length]
                length = common_prefix_length(request.prefix_keys[:-1], known)
                length = self._engine.kv_cache.pool.reachable(sequence, length)
                if length > most:
                    best, most = sequence, length
        return best, most


def _may_share(one: Request, other: Request) -> bool:
    """Whether two requests may share computed prefixes."""
    return one.uses_prefix_cache and other.uses_prefix_cache and one.salt == other.salt


def _goes_on(entry: Entry, goal: int) -> bool:
    """Whether a request is still computing its prompt, up to `goal` positions and more."""
    request = entry.request
    if not entry.running or request.ended or request.paused:
        return False
    return not request.is_decoding and request.sequence.length < goal
