"""Parts of a program that are run one after the other, each on a few rows at a time.

Rows of an encoder see each other in attention and nowhere else. So a part ends where keys and
values are stored, which attention must find of all rows, and where they may be overwritten, since
all layers share one layer of the cache. Between parts, rows of values lie with the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sterna import _native
from sterna.graph.ops import AttentionOp, CopyOp, KeepOp, LinearOp, Op, RopeOp, Value

__all__ = ["Lives", "Part", "Parts", "in_parts"]


@dataclass(frozen=True)
class Part:
    """Operations [begin, end) of a program, which compute any rows.

    attends: they read keys and values of all rows, and store none. macs: multiplications of a row
    by weights; seen: multiplications of a row by one row of keys and values. windowed: they store
    or read keys and values of windows of rows, each window as a sequence of its own.
    """

    begin: int
    end: int
    attends: bool
    macs: int
    seen: int
    windowed: bool


@dataclass(frozen=True, eq=False)
class Parts:
    """A program in parts.

    width: the columns of the rows that are kept between parts, float32; the first part reads their
    first columns. columns: the columns of a row that the last part returns.
    """

    program: _native.Program
    parts: tuple[Part, ...]
    width: int
    columns: int


def in_parts(ops: Sequence[Op], rounded: set[Value]) -> tuple[list[Op], list[Part], int]:
    """Return operations that save and restore values between parts, the parts, and the columns that
    this takes.

    The first operation reads rows from outside. rounded: values that are more than their floats,
    which cannot be restored.
    """
    first, *rest = ops
    assert isinstance(first, CopyOp)
    assert first.x is None
    lives = Lives(rest, first.output)
    cuts = [0, *_cuts(rest, lives, rounded), len(rest)]
    columns, width = _columns(lives, cuts)
    made, parts = list[Op](), list[Part]()
    for begin, end in pairwise(cuts):
        part, at = rest[begin:end], len(made)
        used = dict.fromkeys(x for op in part for x in (*op.inputs, op.output))
        written = dict.fromkeys(op.output for op in part)
        restored, saved = lives.at(begin), lives.at(end)
        made += [
            KeepOp(name="keep", output=x, x=None, column=columns[x], width=lives.width[x])
            for x in used
            if x in restored
        ]
        made += part
        made += [
            KeepOp(name="keep", output=x, x=x, column=columns[x], width=lives.width[x])
            for x in written
            if x in saved
        ]
        parts.append(Part(at, len(made), *_work(part)))
    return made, parts, width


class Lives:
    """Where values live in a list of operations, and the first columns of each that are read.

    given: those that live from the start.
    """

    def __init__(self, ops: Sequence[Op], *given: Value) -> None:
        self._written, self._used = dict.fromkeys(given, -1), dict.fromkeys(given, -1)
        self.width: dict[Value, int] = {x: x.width for x in given}
        for i, op in enumerate(ops):
            self._written.setdefault(op.output, i)
            self._used.update(dict.fromkeys((*op.inputs, op.output), i))
            self.width.setdefault(op.output, op.output.width)
            if isinstance(op, RopeOp):  # attention reads the queries; the others are in the cache
                self.width[op.output] = op.heads.n_heads * op.heads.padded_head

    def at(self, cut: int) -> list[Value]:
        """Return the values that were written before operation `cut` and are used from there on."""
        return [x for x, begin in self._written.items() if begin < cut <= self._used[x]]


def _cuts(ops: Sequence[Op], lives: Lives, rounded: set[Value]) -> Iterator[int]:
    """Yield where parts end: behind what stores keys and values, and before the next that does
    where the fewest columns must be kept."""
    stores = [i for i, op in enumerate(ops) if isinstance(op, RopeOp) and op.stores]
    for i, following in zip(stores, [*stores[1:], None], strict=False):
        yield i + 1
        if following is not None:
            reads = next(n for n in range(i, following) if isinstance(ops[n], AttentionOp))
            places = range(reads + 1, following + 1)
            whole = [n for n in places if not rounded.intersection(lives.at(n))]
            yield min(whole, key=lambda n: sum(lives.width[x] for x in lives.at(n)))


def _columns(lives: Lives, cuts: Sequence[int]) -> tuple[dict[Value, int], int]:
    """Give each kept value columns of its own as long as it lives; return where they begin, and
    how many there are."""
    begins, total = dict[Value, int](), 0
    last = {x: cut for cut in cuts for x in lives.at(cut)}
    for cut in cuts:
        for x in lives.at(cut):
            if x not in begins:
                taken = sorted((begins[y], lives.width[y]) for y in begins if last[y] >= cut)
                begins[x] = _gap(taken, lives.width[x])
                total = max(total, begins[x] + lives.width[x])
    return begins, total


def _gap(taken: Sequence[tuple[int, int]], width: int) -> int:
    """Return where `width` columns are free; taken: (begin, width), ascending."""
    at = 0
    for begin, size in taken:
        if begin - at >= width:
            break
        at = max(at, begin + size)
    return at


def _work(ops: Sequence[Op]) -> tuple[bool, int, int, bool]:
    """Return whether operations attend, what they multiply for a row, and whether in windows."""
    attending = [op for op in ops if isinstance(op, AttentionOp)]
    assert all(op.attention.window is None for op in attending), "a row sees all others"
    macs = sum(op.n_weights for op in ops if isinstance(op, LinearOp))
    seen = sum(op.heads.n_heads * (op.heads.head_dim + op.heads.outputs) for op in attending)
    of_keys = [op.attention for op in ops if isinstance(op, (AttentionOp, RopeOp))]
    windowed = any(attention.windowed for attention in of_keys)
    assert windowed == all(attention.windowed for attention in of_keys) or not of_keys
    return bool(attending), macs, seen, windowed
