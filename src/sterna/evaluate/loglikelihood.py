"""Log-likelihoods of continuations, batched; shared contexts are computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from sterna.engine import (
    PAGE,
    PREFILL_CHUNK,
    Adapter,
    Engine,
    PrefixCache,
    StepInput,
    common_prefix_length,
    log_probabilities,
    logprobs_draw,
    step_tokens,
)
from sterna.engine import Sequence as EngineSequence
from sterna.engine.adapter import cache_salt
from sterna.errors import RequestError

__all__ = ["Score", "ScoringRequest", "encode_pair", "fitted", "score"]

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class ScoringRequest:
    """Token ids, and the number of last tokens to score, given all tokens before them."""

    tokens: Sequence[int]
    scored: int


@dataclass(frozen=True)
class Score:
    """Natural-log probability of a continuation; greedy: whether greedy decoding would write it."""

    logprob: float
    greedy: bool


@dataclass
class _Job:
    """A request in the engine: int32 tokens, of which the last `scored` are scored."""

    sequence: EngineSequence
    tokens: I32
    scored: int = 0
    logprobs: list[float] = field(default_factory=list)
    greedy: bool = True


def encode_pair(
    encode: Callable[[str], list[int]], context: str, continuation: str
) -> ScoringRequest:
    """Encode a context and its continuation as one text, so that the boundary is natural.

    Spaces at the end of the context go to the continuation, as in lm-evaluation-harness: tokens of
    words begin with their space. If one token spans the boundary, it is scored.
    """
    ids = encode(context + continuation)
    return ScoringRequest(ids, max(len(ids) - len(encode(context.rstrip())), 1))


def score(
    engine: Engine,
    groups: Sequence[Sequence[ScoringRequest]],
    progress: Callable[[int], None] = lambda done_groups: None,
    adapter: Adapter | None = None,
) -> list[list[Score]]:
    """Score each request. Requests of a group should begin alike: that part is computed once.

    Grouping and batching change no bit. Requests that are too long for the context lose their
    beginning. adapter: used for all requests. Raises RequestError for a request that scores
    nothing, has nothing before the scored tokens, or scores more than the context; NonFiniteError
    if the model gives NaN.
    """
    checked = [[fitted(r, engine.context) for r in group] for group in groups]
    budget = step_tokens(engine.model.config.vocab_size)
    results: list[list[Score]] = []
    for batch in _batches(engine, checked, budget, adapter):
        results += _score_batch(engine, batch, budget, adapter)
        progress(len(results))
    return results


def fitted(request: ScoringRequest, context: int) -> ScoringRequest:
    """Cut the beginning of a request that is too long for the context; raises as `score`."""
    if not 1 <= request.scored <= min(context, len(request.tokens) - 1):
        raise RequestError(
            f"score: needs 1 to {context} scored tokens with a token before them, but got "
            f"{request.scored} of {len(request.tokens)}; shorten the continuation"
        )
    return ScoringRequest(request.tokens[-(context + 1) :], request.scored)


class _Group:
    """Requests that begin with the same `shared` tokens, int32, as does their sequence.

    The sequence starts from the engine's prefix cache, so examples that precede every question are
    computed once, even over several batches.
    """

    def __init__(
        self, engine: Engine, requests: list[ScoringRequest], adapter: Adapter | None
    ) -> None:
        self.requests, self._salt = requests, cache_salt("", adapter)
        first = requests[0].tokens if requests else ()
        self.shared: I32 = np.array(first[: _shared(requests)], np.int32)
        self.sequence = EngineSequence()
        self.longest = max((len(r.tokens) for r in requests), default=0)
        # A model that needs snapshots has no way back to the end of what two groups share.
        cache = None if engine.kv_cache.needs_snapshots else engine.kv_cache.pool.cache
        self._cache = cache if isinstance(cache, PrefixCache) else None
        if self._cache is not None and len(self.shared):
            prefix, _ = self._cache.match(np.append(self.shared, np.int32(0)), self._salt)
            self.sequence = prefix or self.sequence

    def keep(self) -> None:
        """Give the computed part of `shared` to the cache."""
        if self._cache is not None:
            self._cache.insert(self.shared, self.sequence, self._salt)

    def repeats(self, other: _Group) -> bool:
        """Whether it had better come after the other one, which computes a page of it at least."""
        gain = common_prefix_length(self.shared, other.shared) - self.sequence.length
        return self._cache is not None and gain >= PAGE


def _batches(
    engine: Engine, groups: Sequence[list[ScoringRequest]], budget: int, adapter: Adapter | None
) -> Iterator[list[_Group]]:
    """Yield groups that run together: as many as logits and free pages allow, or one."""
    states = 2 * engine.kv_cache.pool.state_pages  # of each sequence, and of a snapshot
    batch: list[_Group] = []
    rows = pages = 0
    for requests in groups:
        group = _Group(engine, requests, adapter)
        need = -(-group.longest // PAGE) + states
        wanted = max((r.scored for r in requests), default=0)
        full = rows + wanted > budget
        full |= pages + need > engine.kv_cache.pool.free
        if batch and (full or any(map(group.repeats, batch))):
            yield batch
            group = _Group(engine, requests, adapter)  # which may begin as one of these
            batch, rows, pages = [], 0, 0
        batch.append(group)
        rows += wanted
        pages += need
    if batch:
        yield batch


def _score_batch(
    engine: Engine, batch: list[_Group], budget: int, adapter: Adapter | None
) -> list[list[Score]]:
    results: list[list[Score]] = [[] for _ in batch]
    try:
        openings = [_Job(g.sequence, np.append(g.shared, np.int32(0))) for g in batch]
        _run(engine, openings, budget, adapter)
        for group in batch:
            if len(group.requests) > 1:
                engine.kv_cache.snapshot(group.sequence)
            group.keep()
        for i in range(max(len(group.requests) for group in batch)):
            live = [k for k, group in enumerate(batch) if i < len(group.requests)]
            jobs = []
            for k in live:
                one = batch[k].requests[i]
                jobs.append(_Job(batch[k].sequence, np.array(one.tokens, np.int32), one.scored))
            _run(engine, jobs, budget, adapter)
            for k, job in zip(live, jobs, strict=True):
                results[k].append(Score(math.fsum(job.logprobs), job.greedy))
                engine.kv_cache.rewind(batch[k].sequence, len(batch[k].shared))
    finally:
        for group in batch:
            engine.kv_cache.release(group.sequence)
    return results


def _shared(group: list[ScoringRequest]) -> int:
    """Count the first tokens that all requests of a group share, before any scored token."""
    if not group:
        return 0
    columns = zip(*(r.tokens for r in group), strict=False)  # ends with the shortest
    common = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return min(common, *(len(r.tokens) - r.scored - 1 for r in group))


def _run(engine: Engine, jobs: list[_Job], budget: int, adapter: Adapter | None) -> None:
    """Compute the missing tokens of each job except the last one, and score the requested ones.

    budget: rows of logits in a step.
    """
    vocab = engine.model.config.vocab_size
    while live := [job for job in jobs if job.sequence.length < len(job.tokens) - 1]:
        inputs = []
        size, rows = (max(1, most // len(live)) for most in (PREFILL_CHUNK, budget))
        for job in live:
            begin = job.sequence.length
            first = max(begin, len(job.tokens) - 1 - job.scored)
            end = min(begin + size, first + rows, len(job.tokens) - 1)
            wanted = max(0, end - first)
            draw = logprobs_draw(job.tokens[: end + 1], wanted, vocab, 1) if wanted else None
            part = job.tokens[begin:end]
            inputs.append(StepInput(job.sequence, part, wanted, draw=draw, adapter=adapter))
        for job, output in zip(live, engine.run(inputs), strict=True):
            job.logprobs += log_probabilities(output.drawn)
            job.greedy &= all(one.top[0][0] == one.token for one in output.drawn)
