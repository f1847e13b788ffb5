"""`Scheduler`: runs requests a step at a time, and survives what goes wrong in one.

No batch, split or cache changes a bit, so only time counts: every decoding request gets a token in
every step, and the rest of the step's time goes to prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from sterna.engine.decoding.speculation import MOST_DRAFTS, default_step_times
from sterna.engine.engine import Engine, StepInput, StepOutput
from sterna.engine.images.image_turns import ImageTurn, ImageTurns
from sterna.engine.kv_cache.page_pool import PagesMissing
from sterna.engine.kv_cache.prefix_cache import PrefixCache
from sterna.engine.kv_cache.sequence import Sequence
from sterna.engine.request import Request
from sterna.engine.scheduling.admission import Admission
from sterna.engine.scheduling.events import Event, without_frames
from sterna.engine.scheduling.fair_queue import Entry, FairQueue
from sterna.engine.scheduling.scheduler_load import SchedulerLoad
from sterna.engine.scheduling.step_costs import StepCosts, StepWork
from sterna.engine.scheduling.step_planner import Share, StepLimits, StepPlanner, drafts_each
from sterna.engine.scheduling.step_time import StepTime
from sterna.engine.scheduling.wait_times import WaitTimes, tokens_of
from sterna.errors import ContextError

__all__ = ["Scheduler"]

I32 = npt.NDArray[np.int32]

#: Seconds between steps that are learnt from: learning takes 30 µs.
LEARN_S = 0.003


class Scheduler:
    """Requests that share an engine, a step at a time.

    It has no thread of its own. Any thread may call `add` and `cancel` at any time, and one thread
    at a time `step`.

    limits: the limits of steps, which may be replaced between them. clock: seconds, from any
    origin.

    A `StepPlanner` chooses the requests of a step. A request is admitted if there are pages for all
    tokens that it and the others will have, or for its prompt with some to spare. If pages run out,
    paused requests and then the youngest are preempted: their pages go to the cache, and they come
    back later.
    """

    def __init__(
        self,
        engine: Engine,
        limits: StepLimits | None = None,
        *,
        prefix_cache: PrefixCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.costs: StepCosts = StepCosts()
        self.limits: StepLimits = limits or StepLimits()
        self.cache = prefix_cache
        self._admission = Admission(engine, self.costs)
        self._queue = FairQueue(self.costs)
        self._images = ImageTurns()
        self._planner = StepPlanner(engine, self.costs, self._admission, self._queue, self._images)
        self._wait_times = WaitTimes(self.costs, self._queue)
        self._clock = clock
        # All requests here: one assignment adds or drops one.
        self._entries: dict[int, Entry] = {}
        self._unfinished, self._learnt = False, 0.0
        self.preemptions: int = 0

    def add(self, request: Request) -> None:
        """Queue a request; raises ContextError if its prompt can never fit the pool."""
        pool = self.engine.kv_cache.pool
        need = pool.shape.pages_needed(request.n_prompt) + pool.state_pages
        if need > pool.count:
            raise ContextError(
                f"KV cache: a prompt must fit its {pool.count} pages, but {request.n_prompt} "
                f"tokens need {need}; raise kv_bytes"
            )
        begun = self._admission.shared_prefix(request, [e.request for e in self._alive()])
        cached = self._cached(request)
        self._entries[request.id] = Entry(request, self._clock(), max(begun, cached), cached)

    def _cached(self, request: Request) -> int:
        """Return how many of its first tokens the prefix cache has now."""
        if self.cache is None or not request.uses_prefix_cache:
            return 0
        return self.cache.known(request.prefix_keys, request.salt)

    def cancel(self, request: Request) -> None:
        """End a request as it is and free its pages; harmless if it has ended.

        A step that is running keeps its pages until it ends.
        """
        request.end("cancelled")
        entry = self._entries.pop(request.id, None)
        if entry is not None:
            self._give_up(entry, idle=not self._unfinished)
        self._images.stop_unwanted(e.request for e in self._alive())

    @property
    def busy(self) -> bool:
        """Whether it has any request."""
        return bool(self._entries)

    @property
    def load(self) -> SchedulerLoad:
        """How busy it is now; any thread may ask."""
        entries = self._alive()
        prompts, step = self._prompts(entries)
        tokens, decoding = tokens_of(prompts), len(entries) - len(prompts)
        predicted_s = self._wait_times.computed_s(step, tokens, decoding)
        pool, running = self.engine.kv_cache.pool, sum(1 for e in entries if e.running)
        return SchedulerLoad(
            running,
            len(entries) - running,
            max(0, self.limits.max_running - running),
            tokens,
            predicted_s + sum(e.request.encoding_s for e in entries),
            pool.count - pool.free,
            pool.count,
            self.cache.pages if self.cache else 0,
            self._images.nbytes,
            self.cache.disk_errors if self.cache else 0,
        )

    def wait_s(self, prompt: I32, salt: str = "") -> float:
        """Predict the seconds until steps come to a new prompt; any thread may ask.

        prompt: token ids; salt: as `Request.salt`.
        """
        entries = self._alive()
        prompts, step = self._prompts(entries)
        left = max(1, len(prompt) - (self.cache.known(prompt, salt) if self.cache else 0))
        decoding = len(entries) - len(prompts)
        return self._wait_times.before_s(left, prompts, step, decoding, self._clock())

    def _prompts(self, entries: list[Entry]) -> tuple[list[Entry], StepTime]:
        """Return the entries with a prompt to compute, and the time of steps next to the others."""
        prompts = [e for e in entries if not (e.running and e.request.is_decoding)]
        decoding = StepWork(len(entries) - len(prompts))
        limits = self.limits
        return prompts, StepTime(self.costs, limits.step_ms, limits.prompt_step_ms, decoding)

    # ---------------------------------------------------------------------------------- a step

    def step(self) -> list[Event]:
        """Run a step and return its events; [] if there is nothing to compute.

        An exception of the engine ends the requests that cause it, with an event for each.
        """
        if self._unfinished:
            self._recover()
        now = self._clock()
        events = self._swept(now)
        here = list(self._entries.values())
        self._unfinished = True
        chosen, turn = self._planner.choose(here, now, self.limits, self._admit)
        if turn is not None:
            events.append(self._encoded(turn))
        if chosen:
            events += self._run(chosen, 0 if turn else drafts_each(chosen))
        self._unfinished = False
        self._retire_ended()
        if not (chosen and self._entries):  # the time until the next step counts for none
            self._wait_times.step_ended(self._clock())
        if self._images.encoder is not None:
            self._images.stop_unwanted(e.request for e in self._alive())
        for entry in here:
            if entry.request.id not in self._entries:  # cancelled before the step came to it
                entry.request.sequence = Sequence()
        return events

    def _recover(self) -> None:
        """Undo a step that an interrupt ended anywhere."""
        for entry in self._alive():
            self._rewind(entry.request)
        self._unfinished = False

    def _rewind(self, request: Request) -> None:
        """Rewind to the last consistent position, leaving at least one token to feed."""
        sequence, most = request.sequence, request.to_shift
        most = request.n_positions - 1 if most is None else most
        self.engine.kv_cache.rewind(sequence, min(sequence.length, most))
        if request.to_shift is not None:
            request.shift()

    def _alive(self) -> list[Entry]:
        return [entry for entry in list(self._entries.values()) if not entry.request.ended]

    def _swept(self, now: float) -> list[Event]:
        """End requests past their deadline, and drop all that ended between steps, with events."""
        for entry in list(self._entries.values()):
            request, most = entry.request, entry.request.deadline_s
            if most is not None and now - entry.arrived >= most and not request.ended:
                request.end("deadline")
        return list(map(Event, self._retire_ended()))

    def _retire_ended(self) -> list[Request]:
        """Drop requests that have ended, and return them."""
        ended = []
        for entry in list(self._entries.values()):
            if entry.request.ended:
                ended.append(entry.request)
                if self._entries.pop(entry.request.id, None) is not None:
                    self._give_up(entry)
        return ended

    def _give_up(self, entry: Entry, idle: bool = True) -> None:
        """Give a request's pages to the cache, or free them. idle: no step uses them now."""
        entry.running = False
        request = entry.request
        if self.cache is not None and request.error is None:
            keys = request.prefix_keys[: request.n_kept]
            self.cache.insert(keys, request.sequence, request.salt, True, idle)
        request.sequence = Sequence()

    # ----------------------------------------------------------------------------------- admission

    def _running(self) -> list[Entry]:
        return [e for e in list(self._entries.values()) if e.running and not e.request.ended]

    def _admit(self, entry: Entry, now: float) -> bool:
        """Give a request pages if there are enough, preempting only paused requests."""
        while not self._admission.fits(entry, self._running(), self.limits.max_running):
            victim = self._admission.preemption_victim(self._running(), only_paused=True)
            if victim is None:
                return False
            self._preempt(victim)
        entry.running = True
        self._admission.reuse_prefix(entry.request, self._running(), self.cache)
        stats = entry.request.completion.stats
        stats.queue_s = stats.queue_s or now - entry.arrived
        return True

    def _preempt(self, entry: Entry) -> None:
        self.preemptions += 1
        self._give_up(entry)
        entry.cached = self._cached(entry.request)

    # ------------------------------------------------------------------------------- the engine

    def _encoded(self, turn: ImageTurn) -> Event:
        """Encode an image for its turn; if that fails, its request ends."""
        try:
            turn.run()
        except Exception as error:
            return self._failed(turn.request, without_frames(error))
        return Event(turn.request)

    def _run(self, chosen: list[Share], drafts: int = 0) -> list[Event]:
        """Run a step, with at most `drafts` for each; if it fails, run a step for each request."""
        events, fed = list[Event](), list[Share]()
        inputs, others = list[StepInput](), len(chosen) - 1
        costs = partial(self._times_of_one, chosen)
        for share in chosen:
            try:
                inputs.append(share.request.step_input(share.most, drafts, costs, others))
                fed.append(share)
            except Exception as error:  # for example, a constraint that allows no token
                events.append(self._failed(share.request, without_frames(error)))
        if not inputs:
            return events
        work, began = StepWork.of(inputs), self._clock()
        failure: Exception | None = None
        try:
            outputs = self.engine.run(inputs)
        except Exception as error:
            failure = without_frames(error)
        if failure is not None:
            drafted = any(step_input.wanted > 1 for step_input in inputs)
            del inputs  # they would keep the pages of preempted requests
            return events + self._after(failure, fed, drafted)
        self._wait_times.step_began(began, work)
        self._learn(work, began, self._clock())
        return events + [
            self._taken(share.request, one) for share, one in zip(fed, outputs, strict=True)
        ]

    def _learn(self, work: StepWork, began: float, ended: float) -> None:
        """Learn from a step's time; of very short steps from a sample, as learning takes time."""
        if ended - self._learnt >= LEARN_S or not self.costs.knows(work.tokens):
            self._learnt = ended
            self.costs.learn(work, (ended - began) * 1e3)

    def _times_of_one(self, chosen: list[Share]) -> list[float]:
        """Return the times of the step by how many tokens one decoding request has in it."""
        others = len(chosen) - 1
        if not (self.costs.knows(others + 1) and self.costs.knows(others + 1 + MOST_DRAFTS)):
            return default_step_times(others)
        read = sum([share.request.sequence.length for share in chosen])
        return self.costs.times(StepWork(others, read), MOST_DRAFTS + 2)

    def _after(self, failure: Exception, chosen: list[Share], drafted: bool) -> list[Event]:
        """Handle a failed step: retry with fewer requests or drafts, or end the one that fails."""
        for share in chosen:
            self._rewind(share.request)
        if isinstance(failure, PagesMissing):
            if self._retire_ended() or self.engine.kv_cache.pool.drop_draft_states():
                return self._run(chosen)
            victim = self._admission.preemption_victim(self._running())
            if victim is not None:
                self._preempt(victim)
                chosen = [share for share in chosen if share.request is not victim.request]
                return self._run(chosen) if chosen else []
        if drafted:  # a wrong draft may be the cause
            return self._run(chosen)
        if len(chosen) == 1:
            return [self._failed(chosen[0].request, failure)]
        return [event for one in chosen for event in self._run([one])]

    def _taken(self, request: Request, output: StepOutput) -> Event:
        if request.sequence.length in request.boundaries:
            self.engine.kv_cache.snapshot(request.sequence, len(request.boundaries))
        try:
            request.receive(output)
        except Exception as error:  # not finite, or too complex for its grammar
            return self._failed(request, without_frames(error))
        if self.cache is not None and request.n_drawn == len(output.drawn) > 0:
            # Its prompt, for now.
            self.cache.insert(request.prefix_keys, request.sequence, request.salt)
        if request.shift_keep is not None and request.to_shift is not None:
            self._rewind(request)
        return Event(request, len(output.drawn))

    def _failed(self, request: Request, error: Exception) -> Event:
        request.end("error", error)
        return Event(request, 0, error)
