"""`Scheduler`: which requests share the next step, and how much of it each gets.

Since no batch, split or cache changes a bit, it may go by the clock alone: all that decode get
their token in every step, and what the step has left of its time goes to prompts.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sterna.engine.costs import TOKENS, Costs, Work
from sterna.engine.drafts import MOST_DRAFTS, usual_costs
from sterna.engine.engine import Engine, Feed, Given
from sterna.engine.pages import PAGE, PagesMissing, Sequence, pages_of
from sterna.engine.prefix import PrefixCache
from sterna.engine.request import Request
from sterna.errors import RequestError, SternaError

__all__ = ["Event", "Load", "Scheduler"]

#: A prompt comes before those that need as many seconds less as it has waited, times this.
AGEING = 0.5
#: As many seconds of waiting count a level of priority.
PRIORITY_S = 10.0
#: Seconds from one step that is learnt from to the next: to learn takes 30 µs.
LEARN_S = 0.003


@dataclass(frozen=True)
class Event:
    """A request got tokens in a step, or computed a part of its prompt, or has ended."""

    request: Request
    tokens: int = 0
    error: Exception | None = None


@dataclass(frozen=True)
class Load:
    """How busy a scheduler is.

    running: requests that have pages; waiting: those that have none yet; waiting_tokens: of
    prompts, to be computed; predicted_s: until these are. pages: of the pool; pages_used: by
    sequences; cached_pages: kept of earlier requests, free to be had.
    """

    running: int
    waiting: int
    waiting_tokens: int
    predicted_s: float
    pages_used: int
    pages: int
    cached_pages: int


class _Entry:
    """A request's place: since when it is here, and whether it may have pages."""

    __slots__ = ("arrived", "request", "running")

    def __init__(self, request: Request, arrived: float) -> None:
        self.request, self.arrived, self.running = request, arrived, False


class Scheduler:
    """Requests that share an engine, a step at a time.

    `add` and `cancel` may be called by any thread at any time, `step` by one at a time. It has no
    thread, and does nothing by itself.

    step_ms: milliseconds that a step should take while a request decodes; prompt_step_ms: while
    none does; infinite: chunks of 512 tokens. max_running: requests that have pages at the same
    time, those left out that nobody reads. clock: seconds, of any origin.

    A step takes the next token of each request that decodes; then prompts, as far as its time goes
    by what earlier ones took (`Costs`), and at least 16 tokens of one. Keys (`Request.key`) get
    equal numbers of tokens of prompts; among requests of a key, the shortest rest comes first. That
    it has waited brings one forward (AGEING), so that none waits for ever, and so does its
    priority.

    A request is admitted where there are pages for its prompt and all its tokens, or for its prompt
    where the others are not expected to need theirs soon. If pages run out, those that nobody reads
    and then the youngest lose theirs to the cache, and come back later.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        step_ms: float = 100.0,
        prompt_step_ms: float = float("inf"),
        max_running: int = 64,
        prefix_cache: PrefixCache | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine, self.costs = engine, Costs()
        self.step_ms, self.prompt_step_ms = step_ms, prompt_step_ms
        self.max_running, self.cache = max_running, prefix_cache
        self._clock = clock
        # What lives is what is in here: one assignment adds or drops a request.
        self._entries: dict[int, _Entry] = {}
        self._served: dict[str, float] = {}  # tokens of prompts, by key
        self._unfinished, self._learnt = False, 0.0
        self.preemptions = 0

    def add(self, request: Request) -> None:
        """Queues a request; RequestError where its prompt can never fit the pool."""
        pool = self.engine.pool
        need = pages_of(request.n_prompt) + pool.state_pages
        if need > pool.count:
            raise RequestError(
                f"KV cache: a prompt must fit its {pool.count} pages, but {request.n_prompt} "
                f"tokens need {need}; raise kv_bytes"
            )
        self._entries[request.id] = _Entry(request, self._clock())

    def cancel(self, request: Request) -> None:
        """Ends a request as it is, and gives its pages up; harmless where it has ended.

        A step that is running keeps them until it ends.
        """
        request.end("cancelled")
        entry = self._entries.pop(request.id, None)
        if entry is not None:
            self._give_up(entry, idle=not self._unfinished)

    @property
    def busy(self) -> bool:
        """Whether any request is here."""
        return bool(self._entries)

    @property
    def load(self) -> Load:
        """How busy it is now; from any thread."""
        entries = self._alive()
        waiting = [e for e in entries if not e.running]
        tokens = sum(e.request.left for e in entries if e.request.left > 1 or not e.running)
        decoding = sum(1 for e in entries if e.running and e.request.left == 1)
        pool = self.engine.pool
        return Load(
            len(entries) - len(waiting), len(waiting), tokens, self._predicted(tokens, decoding),
            pool.count - pool.free, pool.count, self.cache.pages if self.cache else 0,
        )  # fmt: skip

    def _predicted(self, tokens: int, decoding: int) -> float:
        """Seconds until so many tokens of prompts are computed beside who decodes."""
        if not tokens or not self.costs.known:
            return 0.0
        room = self.costs.chunk(Work(decoding), 0, tokens, self._target(decoding > 0))
        chunk = max(min(tokens, TOKENS), room)
        return tokens / chunk * self.costs.ms(Work(decoding + chunk)) / 1e3

    # ---------------------------------------------------------------------------------- a step

    def step(self) -> list[Event]:
        """Computes the next tokens of some requests; [] where there is nothing to compute.

        An exception of the engine ends the requests that cause it, each with an event.
        """
        self._recover()
        now = self._clock()
        events = self._expired(now)
        self._retire_ended()
        self._unfinished = True
        chosen = self._chosen(now)
        if chosen:
            events += self._run(chosen, self._drafts(chosen))
        self._unfinished = False
        self._retire_ended()
        return events

    def _recover(self) -> None:
        """After a step that an interrupt ended anywhere: as if it had not been."""
        if self._unfinished:
            for entry in self._alive():
                self._rewind(entry.request)
        self._unfinished = False

    def _rewind(self, request: Request) -> None:
        """To what of its sequence is known to be whole, at least a token left to be fed."""
        sequence = request.sequence
        self.engine.rewind(sequence, min(sequence.length, len(request.tokens) - 1))

    def _alive(self) -> list[_Entry]:
        return [entry for entry in list(self._entries.values()) if not entry.request.ended]

    def _expired(self, now: float) -> list[Event]:
        """Ends requests whose time is up; events of all that have ended between steps."""
        events = []
        for entry in list(self._entries.values()):
            request = entry.request
            most = request.deadline_s
            if most is not None and now - entry.arrived >= most and not request.ended:
                request.end("deadline")
            if request.ended:
                events.append(Event(request))
        return events

    def _retire_ended(self) -> int:
        """Drops those that have ended; how many they are."""
        ended = [entry for entry in list(self._entries.values()) if entry.request.ended]
        for entry in ended:
            if self._entries.pop(entry.request.id, None) is not None:
                self._give_up(entry)
        return len(ended)

    def _give_up(self, entry: _Entry, idle: bool = True) -> None:
        """Its pages, to the cache; they are free once no step uses them. idle: none does."""
        entry.running = False
        request = entry.request
        if self.cache is not None and request.error is None:
            self.cache.keep(request.tokens, request.sequence, request.salt, True, idle)
        request.sequence = Sequence()

    # ------------------------------------------------------------------------ who takes part

    def _target(self, decoding: bool) -> float:
        return self.step_ms if decoding else self.prompt_step_ms

    def _chosen(self, now: float) -> list[tuple[Request, int]]:
        """Requests of the next step, and how many tokens each may feed at most, drafts left out."""
        entries = [e for e in self._alive() if not e.request.paused]
        chosen = [(e.request, 1) for e in entries if e.running and e.request.left == 1]
        work = Work()
        for request, _ in chosen:
            work = work.plus(1, request.sequence.length)
        target = self._target(bool(chosen))
        first, admitting = True, True
        for entry in self._in_order(entries, now):
            request = entry.request
            left, depth = request.left, request.sequence.length
            most = self.costs.chunk(work, depth, left, target)
            if first:
                most = max(most, min(TOKENS, left))
            if most == 0:
                break
            if not entry.running:
                admitting = admitting and self._admit(entry, now)
                if not admitting:
                    continue
                left, depth = request.left, request.sequence.length
                most = min(most, left)
            if depth < request.boundary < depth + most:
                most = request.boundary - depth
            first = False
            chosen.append((request, most))
            work = work.plus(most, depth)
            self._served[request.key] = self._served.get(request.key, 0.0) + most
        return chosen

    def _drafts(self, chosen: list[tuple[Request, int]]) -> int:
        """Drafts that each may add: what is left of the tokens that cost little beside others."""
        if any(request.left > 1 for request, _ in chosen):
            return 0
        return (MOST_DRAFTS + 1) // len(chosen) - 1 if len(chosen) <= MOST_DRAFTS else 0

    def _in_order(self, entries: list[_Entry], now: float) -> Iterator[_Entry]:
        """Those with a prompt to compute, by what their keys have had and by rank."""
        queues: dict[str, list[_Entry]] = {}
        for entry in entries:
            if not _waits(entry.request) and (not entry.running or entry.request.left > 1):
                queues.setdefault(entry.request.key, []).append(entry)
        least = min((self._served[k] for k in queues if k in self._served), default=0.0)
        # Who was not here has saved nothing up.
        self._served = {key: max(least, self._served.get(key, least)) for key in queues}
        for queue in queues.values():
            queue.sort(key=lambda entry: (self._rank(entry, now), entry.request.id), reverse=True)
        while queues:
            key = min(queues, key=lambda k: self._served[k])
            yield queues[key].pop()
            if not queues[key]:
                del queues[key]

    def _rank(self, entry: _Entry, now: float) -> float:
        """Seconds that the rest of its prompt takes, less what it has waited and its priority."""
        left = entry.request.left
        per_token = self.costs.ms(Work(min(left, 256))) / min(left, 256) or 1.0
        waited = now - entry.arrived
        return left * per_token / 1e3 - AGEING * waited - PRIORITY_S * entry.request.priority

    # --------------------------------------------------------------------------------- pages

    def _admit(self, entry: _Entry, now: float) -> bool:
        """Whether it may have pages, now that others run."""
        while not self._fits(entry):
            victim = self._victim(only_paused=True)
            if victim is None:
                return False
            self._preempt(victim)
        entry.running = True
        self._look_up(entry.request)
        stats = entry.request.completion.stats
        stats.queue_s = stats.queue_s or now - entry.arrived
        return True

    def _look_up(self, request: Request) -> None:
        """Takes what is known of the tokens that it begins with."""
        if request.sequence.length:
            return
        leader, before = request.leader, request.n_prompt - 1
        if leader is not None and leader.sequence.length >= before and not leader.ended:
            with contextlib.suppress(RequestError):  # no room for a state
                request.go_on_from(self.engine.pool.share(leader.sequence, before))
        if self.cache is None or request.sequence.length or not request.looks_up:
            return
        found, same = self.cache.find(request.tokens, request.salt)
        if found is not None:
            request.go_on_from(found)
        if self.cache.on_disk:
            request.boundary = request.boundary // PAGE * PAGE  # what the disk has are full pages
        if self.engine.forgets and not request.boundary:
            # The state where others went another way, or at the last page, may be wanted again.
            last = same if request.sequence.length < same // PAGE * PAGE else request.n_prompt - 1
            request.boundary = last // PAGE * PAGE

    def _fits(self, entry: _Entry) -> bool:
        pool, running = self.engine.pool, [e for e in self._alive() if e.running]
        active = sum(1 for e in running if not e.request.paused)
        if active == 0:
            return True  # or nobody ever would
        if active >= self.max_running:
            return False
        need = pages_of(entry.request.left) + pool.state_pages
        claims = sum(self._claim(e) for e in running) + self._claim(entry)
        headroom = 0 if claims <= pool.count else len(running)
        return need + headroom <= pool.free

    def _claim(self, entry: _Entry) -> int:
        """Pages that it has at its longest."""
        return pages_of(entry.request.longest) + self.engine.pool.state_pages

    def _victim(self, only_paused: bool = False) -> _Entry | None:
        """Who gives pages up first: those that nobody reads, then the youngest; never the last."""
        running = [e for e in self._alive() if e.running]
        paused = [e for e in running if e.request.paused]
        if paused:
            return paused[-1]
        return running[-1] if len(running) > 1 and not only_paused else None

    def _preempt(self, entry: _Entry) -> None:
        self.preemptions += 1
        self._give_up(entry)

    # ------------------------------------------------------------------------------- the engine

    def _run(self, chosen: list[tuple[Request, int]], drafts: int = 0) -> list[Event]:
        """Runs a step, with so many drafts of each at most; if it fails, one for each request."""
        events, fed = list[Event](), list[tuple[Request, int]]()
        feeds, others = list[Feed](), len(chosen) - 1
        costs = self._costs_of_one(chosen)
        for request, most in chosen:
            try:
                feeds.append(request.feed(most, drafts, costs, others))
                fed.append((request, most))
            except Exception as error:  # a constraint that leaves no token, for one
                events.append(self._failed(request, _without_frames(error)))
        if not feeds:
            return events
        work, began = Work.of(feeds), self._clock()
        failure: Exception | None = None
        try:
            given = self.engine.run(feeds)
        except Exception as error:
            failure = _without_frames(error)
        if failure is not None:
            drafted = any(feed.wanted > 1 for feed in feeds)
            del feeds  # which would keep the pages of who gives way
            return events + self._after(failure, fed, drafted)
        self._learn(work, began, self._clock())
        return events + [
            self._taken(request, one) for (request, _), one in zip(fed, given, strict=True)
        ]

    def _learn(self, work: Work, began: float, ended: float) -> None:
        """What a step took; of very short ones not each, which would take as long again."""
        if ended - self._learnt >= LEARN_S or not self.costs.knows(work.tokens):
            self._learnt = ended
            self.costs.learn(work, (ended - began) * 1e3)

    def _costs_of_one(self, chosen: list[tuple[Request, int]]) -> Callable[[int], float]:
        """Of a step by how many tokens one of those has that decode."""
        others = len(chosen) - 1
        if not self.costs.knows(others + 1 + MOST_DRAFTS):
            return lambda tokens: usual_costs(others + tokens)
        read = sum(request.sequence.length for request, _ in chosen)
        return lambda tokens: self.costs.ms(Work(others + tokens, read))

    def _after(
        self, failure: Exception, chosen: list[tuple[Request, int]], drafted: bool
    ) -> list[Event]:
        """What comes of a step that failed: fewer in the next, or the end of who causes it."""
        for request, _ in chosen:
            self._rewind(request)
        if isinstance(failure, PagesMissing):
            if self._retire_ended():
                return self._run(chosen)
            victim = self._victim()
            if victim is not None:
                self._preempt(victim)
                chosen = [one for one in chosen if one[0] is not victim.request]
                return self._run(chosen) if chosen else []
        if drafted:  # a wrong draft may be why
            return self._run(chosen)
        if len(chosen) == 1:
            return [self._failed(chosen[0][0], failure)]
        return [event for one in chosen for event in self._run([one])]

    def _taken(self, request: Request, given: Given) -> Event:
        if request.sequence.length == request.boundary:
            self.engine.snapshot(request.sequence)
        try:
            request.receive(given)
        except Exception as error:  # not finite, or too much for its grammar
            return self._failed(request, _without_frames(error))
        if self.cache is not None and request.generated == len(given.drawn) > 0:
            self.cache.keep(request.tokens, request.sequence, request.salt)  # its prompt, for now
        return Event(request, len(given.drawn))

    def _failed(self, request: Request, error: Exception) -> Event:
        request.end("error", error)
        return Event(request, 0, error)


def _waits(request: Request) -> bool:
    """Whether another one still computes the prompt of both."""
    leader = request.leader
    return leader is not None and not leader.ended and leader.generated == 0


def _without_frames(error: Exception) -> Exception:
    """It, without its frames, which have sequences, and so pages, for as long as somebody has it.

    What nobody foresaw keeps them as a text, where Python has notes (3.11).
    """
    if not isinstance(error, SternaError) and hasattr(error, "add_note"):
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    return error.with_traceback(None)
