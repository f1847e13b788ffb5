"""Which of several GGUF files fits into this machine's memory, and is the best of those.

The rule: of the files that fit, the one with the most bits a weight, up to Q8_0; of those with more
than about four bits only if a token reads at most `MOST_READ_BYTES` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sterna.checkpoints.hub.file_types import (
    FOUR_BITS,
    MOST_BITS,
    TRAINED,
    kind_of,
    name_without_kind,
    nominal_bits,
    stem_of,
)
from sterna.checkpoints.model_shape import UNKNOWN, Shape, memory_of

__all__ = ["SAFETENSORS", "Candidate", "Offer", "Room", "best_of", "coarse"]

#: What a memory of 20 GB/s reads 5 times a second. It is fixed, and not measured, so that the same
#: memory always chooses the same file.
MOST_READ_BYTES = 4 * 10**9
_HERE = "which is here already"
SAFETENSORS = "safetensors"  # in place of a path: a folder of them


@dataclass(frozen=True)
class Room:
    """What decides among several files besides their names and sizes.

    free: bytes of memory; None: no limit. context: tokens that are asked for, None: as
    `Shape.tokens`. params: weights of the model, if known. shape: of the model in a file, by its
    path; asked once, when there is something to choose. here: files that need no download.
    default: of these, the one that the repository's name means already.
    """

    free: int | None = None
    context: int | None = None
    params: int | None = None
    shape: Callable[[str], Shape] = lambda path: UNKNOWN
    here: frozenset[str] = field(default_factory=frozenset)
    default: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A GGUF file (all parts of a split one), whose weights take the same bytes in memory.

    path: of the first part; kind: the type in its name; bits: a weight; read: bytes that a token
    reads; memory: bytes of weights, keys, values and a margin.
    """

    path: str
    kind: str | None
    nbytes: int
    bits: float | None
    read: int
    memory: int


@dataclass(frozen=True)
class Offer:
    """The files of a repository as they would run here.

    tokens: the context that `Candidate.memory` is for. free: bytes of memory; None: no limit. best:
    the one to take; None if none fits, or the names do not say which are one model (`one_model` has
    those). why: the reason, as a phrase.
    """

    candidates: tuple[Candidate, ...]
    tokens: int
    free: int | None
    best: Candidate | None
    why: str
    one_model: frozenset[str]

    @property
    def smallest(self) -> Candidate:
        """The file of the model that needs the least memory."""
        same = [c for c in self.candidates if c.path in self.one_model]
        return min(same, key=lambda c: (c.memory, c.path))


def coarse(free: int) -> int:
    """Round memory down to four binary digits: steps of 0.5 GB below 8 GB, of 1 GB below 16.

    A browser's tab more or less then rarely changes a choice.
    """
    step = 1 << max(0, free.bit_length() - 4)
    return free // step * step


def best_of(models: Mapping[str, Sequence[str]], sizes: Mapping[str, int], room: Room) -> Offer:
    """Weigh a repository's GGUF models (first part -> all parts) by their sizes in bytes."""
    gguf = {m: models[m] for m in models if m != SAFETENSORS}
    same = _one_model(gguf)
    shape = room.shape(min(same or models, key=lambda m: (sum(sizes[p] for p in models[m]), m)))
    every = tuple(_candidate(m, sum(sizes[p] for p in models[m]), shape, room) for m in models)
    free = None if room.free is None else coarse(room.free)
    fitting = [c for c in every if free is None or c.memory <= free]
    best = next((c for c in fitting if c.path == SAFETENSORS), None)
    why = "which come first"
    if best is None:
        best = next((c for c in every if c.path == room.default), None)
        why = _HERE
    if best is None:
        here = _one_model({c.path: models[c.path] for c in fitting if c.path in room.here})
        best, why = _ranked([c for c in fitting if c.path in (here or same)])
        why = _HERE if here else why
    return Offer(every, shape.tokens(room.context), free, best, why, same)


def _candidate(path: str, nbytes: int, shape: Shape, room: Room) -> Candidate:
    kind = kind_of(stem_of(path))
    bits = nominal_bits(kind) if kind else None
    params = room.params or (round(nbytes * 8 / bits) if bits else 0)
    return Candidate(
        path,
        kind,
        nbytes,
        round(nbytes * 8 / room.params, 2) if room.params else bits,
        round(nbytes * shape.active_share(params)),
        memory_of(nbytes, shape, room.context),
    )


def _one_model(models: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the files whose names differ in the type only; of several such groups the largest.

    Empty if two groups are as large. A single file needs no type.
    """
    if len(models) == 1:
        return frozenset(models)
    groups: dict[tuple[str, ...], list[str]] = {}
    for path in models:
        if kind_of(stem_of(path)):
            folders = [f for f in path.lower().split("/")[:-1] if not kind_of(f)]
            groups.setdefault((*folders, name_without_kind(stem_of(path))), []).append(path)
    largest = sorted(groups.values(), key=len, reverse=True)[:2]
    if not largest or (len(largest) > 1 and len(largest[0]) == len(largest[1])):
        return frozenset()
    return frozenset(largest[0])


def _ranked(fitting: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """Choose by the rule of this module's head."""
    if not fitting:
        return None, ""
    if len(fitting) == 1:
        return fitting[0], "the only one that fits"
    bits = {c.path: nominal_bits(c.kind or "F32") for c in fitting}
    quantised = [c for c in fitting if 4.4 < bits[c.path] <= FOUR_BITS and c.kind not in TRAINED]
    for kind in () if quantised else TRAINED:
        for c in fitting:
            if c.kind == kind:
                return c, "whose levels are those that the model was trained with"
    sensible = [c for c in fitting if bits[c.path] <= MOST_BITS]
    fast = [c for c in sensible if bits[c.path] <= FOUR_BITS or c.read <= MOST_READ_BYTES]
    if fast:
        best = max(fast, key=lambda c: (c.nbytes, c.path))
        if all(c.nbytes <= best.nbytes for c in sensible):
            return best, "the most bits a weight, up to Q8_0, that fit"
        limit = f"{MOST_READ_BYTES // 10**9} GB"
        if best.read <= MOST_READ_BYTES:
            return best, f"the most bits a weight of which a token reads at most {limit}"
        return best, f"of about four bits a weight, as a token would read over {limit} of others"
    return min(fitting, key=lambda c: (c.nbytes, c.path)), "the smallest"
