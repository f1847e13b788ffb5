"""`StepPlanner`: which requests share the next step, and how much of it each gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sterna.engine.decoding.speculation import MOST_DRAFTS
from sterna.engine.engine import Engine
from sterna.engine.images.image_turns import ImageTurn, ImageTurns
from sterna.engine.request import Request
from sterna.engine.scheduling.admission import Admission
from sterna.engine.scheduling.fair_queue import Entry, FairQueue
from sterna.engine.scheduling.step_costs import CHUNK_MULTIPLE, StepCosts, StepWork
from sterna.engine.scheduling.step_time import DECODE_ONLY_EVERY, StepTime

__all__ = ["Share", "StepLimits", "StepPlanner", "drafts_each"]


@dataclass(frozen=True)
class StepLimits:
    """The limits of steps.

    step_ms: milliseconds that a step should take while a reader waits for tokens of a decoding
    request; prompt_step_ms: the same while none does; infinity: chunks of 512 tokens. max_running:
    requests that may have pages at the same time, paused ones not counted.
    """

    step_ms: float = 100.0
    prompt_step_ms: float = float("inf")
    max_running: int = 64


@dataclass(slots=True)
class Share:
    """A request's share of a step: the most tokens that it may compute, drafts not counted."""

    request: Request
    most: int


@dataclass(slots=True)
class _Plan:
    """A step that is being planned: all entries, the chosen ones with their shares, their work."""

    entries: Sequence[Entry]
    now: float
    chosen: dict[Entry, Share]
    work: StepWork

    @property
    def running(self) -> list[Entry]:
        return [e for e in self.entries if e.running and not e.request.ended]

    def add(self, entry: Entry, share: Share) -> None:
        self.chosen[entry] = share
        self.work = self.work.plus(share.most, share.request.sequence.length)


class StepPlanner:
    """Chooses the requests of a step.

    A step takes the next token of each decoding request, then prompts in a `FairQueue`'s order, as
    many tokens as it has time for (`StepTime`, by `StepCosts`).

    While another request computes a prefix of its prompt, a request waits, and its share of the
    step goes to that request.
    """

    def __init__(
        self,
        engine: Engine,
        costs: StepCosts,
        admission: Admission,
        queue: FairQueue,
        images: ImageTurns,
    ) -> None:
        self._engine, self._costs = engine, costs
        self._admission, self._queue, self._images = admission, queue, images
        self._longer = 0  # steps longer than step_ms, to give prompts their share
        self._long_waits = False  # whether the latest step had time only for short prompts

    def choose(
        self,
        entries: Sequence[Entry],
        now: float,
        limits: StepLimits,
        admit: Callable[[Entry, float], bool],
    ) -> tuple[list[Share], ImageTurn | None]:
        """Choose the next step: all decoding requests, and prompts or an image as there is time.

        now: seconds. admit: gives an entry pages at that time, if there are enough.
        """
        chosen, prompting = dict[Entry, Share](), list[Entry]()
        for entry in entries:
            request = entry.request
            if request.ended or request.paused:
                continue
            if entry.running and request.is_decoding:
                chosen[entry] = Share(request, request.left)
            else:
                prompting.append(entry)
        if not prompting:
            self._long_waits = False
            self._queue.forget()
            return list(chosen.values()), None
        decoding = StepWork()
        for share in chosen.values():
            decoding = decoding.plus(share.most, share.request.sequence.length)
        time = StepTime(
            self._costs,
            limits.step_ms,
            limits.prompt_step_ms,
            decoding,
            any(entry.request.is_streamed for entry in chosen),
            limits.max_running - len(chosen),
            prompting,
        )
        if chosen and time.stretched:
            self._longer += 1
        turn = None
        if not (chosen and time.stretched and self._longer % DECODE_ONLY_EVERY == 0):
            plan = _Plan(entries, now, chosen, decoding)
            turn = self._choose_prompts(plan, prompting, time, admit)
        return list(chosen.values()), turn

    def _choose_prompts(
        self,
        plan: _Plan,
        prompting: list[Entry],
        time: StepTime,
        admit: Callable[[Entry, float], bool],
    ) -> ImageTurn | None:
        """Add prompts that the step has time for, next to the chosen requests.

        Where a prompt needs an image first, the rest of the time is its image's. Short prompts come
        first for a part of the time, unless long ones had none in the step before.
        """
        chosen, n_decoding, admitting, full = plan.chosen, len(plan.chosen), True, 0.0
        long = {entry for entry in prompting if not time.is_short(entry)}
        waited, self._long_waits = self._long_waits, bool(long)

        def short_first() -> bool:
            return not waited and self._costs.ms(plan.work) < time.short_first_until

        for entry in self._queue.ordered(prompting, plan.now, lambda e: e not in long, short_first):
            if full >= time.most:
                break
            target, taker, started = time.of(entry), entry, len(chosen) > n_decoding
            if target <= full:
                continue
            least = min(CHUNK_MULTIPLE, entry.left)
            if started and self._room(entry, plan.work, target) < least:
                full = target
                continue
            if not entry.running:
                if not admitting:
                    continue
                source = self._source(plan, entry)
                admitting = source is not None or admit(entry, plan.now)
                if not admitting:
                    continue
                taker = source or entry
            if taker in chosen:
                continue
            most, depth = self._room(taker, plan.work, target), taker.request.sequence.length
            turn = self._turn(plan, taker, most, time.usual - self._costs.ms(plan.work))
            if turn is not None:
                if turn.ms <= 0:
                    continue
                self._queue.charge(entry.request.key, round(turn.ms / self._costs.rate(256)))
                self._long_waits = False
                return turn
            stops = (b - depth for b in taker.request.boundaries if b > depth)
            most = max(1, min([most, *stops]))  # at least a token, whatever is predicted
            self._long_waits = self._long_waits and taker not in long
            plan.add(taker, Share(taker.request, most))
            self._queue.charge(entry.request.key, most)
        return None

    def _turn(self, plan: _Plan, entry: Entry, most: int, ms: float) -> ImageTurn | None:
        """Return the turn of an image that a prompt needs in its next step, for so long."""
        running = [e.request for e in plan.running if not e.request.is_decoding]
        return self._images.turn(entry.request, max(1, most), ms, running)

    def _room(self, entry: Entry, work: StepWork, target: float) -> int:
        """Return how many tokens of its prompt fit a step with other work."""
        depth = max(entry.request.sequence.length, 0 if entry.running else entry.cached)
        return self._costs.chunk(work, depth, entry.left, target)

    def _source(self, plan: _Plan, entry: Entry) -> Entry | None:
        """Choose as `Admission.source`; a source that needs a snapshot stops where this goes on."""
        source = self._admission.source(entry, plan.running)
        share = plan.chosen.get(source) if source is not None else None
        if share is not None and self._engine.kv_cache.needs_snapshots:
            share.most = min(share.most, entry.goal - share.request.sequence.length)
        return source


def drafts_each(chosen: Sequence[Share]) -> int:
    """Return how many drafts each request may add, within the tokens that cost little."""
    if len(chosen) > MOST_DRAFTS:
        return 0
    for share in chosen:
        if not share.request.is_decoding:
            return 0
    return (MOST_DRAFTS + 1) // len(chosen) - 1
