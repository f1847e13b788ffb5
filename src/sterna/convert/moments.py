"""Second moments of layers' inputs, by which `formats.feedback` rounds.

    moments = Moments(source, texts, budget=1 << 30)
    feedback = moments["model.layers.0.mlp.down_proj"]

The unrounded model reads the text, and the inputs of some layers at a time are kept for a step
(`KeepOp`) and multiplied: as many layers as their matrices fit into the budget. Layers are best
asked for in the model's order: then the rows between two layers are kept, and reading goes on
there. Where it cannot (`_cut`), and for another order, the text is read from the beginning. Layers
of experts, whose rows differ from token to token, have only mean squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from sterna.convert.running import Running
from sterna.convert.unfinished import Kept
from sterna.formats.feedback import DAMPING, Feedback
from sterna.graph.activations import rounded_values
from sterna.graph.ops import (
    AttentionOp,
    IndexerOp,
    KeepOp,
    LinearOp,
    Op,
    RopeOp,
    RouteOp,
    SelectOp,
    Value,
)
from sterna.graph.parts import Lives
from sterna.runtime import available_bytes, memory_bytes

__all__ = ["Moments", "budget_of"]

F32 = npt.NDArray[np.float32]
#: Damping of an embedding that is the head as well: its rows are also read as they are.
TIED = 1.0
#: Of one number of moments: float64 and its work space, the factor, and that of the layer before.
BYTES_TO_FACTOR = 20


def budget_of(running: Running) -> int:
    """Return the bytes that moments may take next to a loaded model: a quarter of the memory at
    most, and so much that the factors of the widest input and the largest matrix in float32, twice,
    have room as well. Where this is less than one input takes, there is one at a time.
    """
    layers = running.model.graph.linears
    widest = max(op.x.width for op in layers)
    largest = max(op.weight.M * op.weight.K for op in layers)
    needed = max(BYTES_TO_FACTOR * widest * widest, 2 * 4 * largest)
    return max(0, min(memory_bytes() // 4, available_bytes() - needed))


@dataclass(frozen=True)
class _Between:
    """Rows between two layers: the next operation is the `cut`-th, and the values that live there
    have these rows, of each window float32 [tokens, columns]."""

    cut: int
    values: Sequence[Value]
    rows: Sequence[F32]


@dataclass
class Moments(Mapping[str, Feedback | F32]):
    """What `convert` takes as squares: `Feedback` for each layer, by the name of its weight.

    running: the model and the windows of tokens that it reads. budget: bytes of moments, and
    of rows between layers, that are in memory at a time. progress: called with tokens read and in
    all, each time the text is read. kept: where moments are kept on disk, and then not read again.
    """

    running: Running
    windows: Sequence[Sequence[int]]
    budget: int
    squares: Mapping[str, F32]
    progress: Callable[[int, int], None] = lambda done, total: None
    kept: Kept | None = None
    _inputs: dict[str, Value] = field(init=False)
    _returned: Value = field(init=False)  # by a program without a head: what that reads
    _moments: dict[Value, F32] = field(default_factory=dict)
    _last: tuple[Value, Feedback] | None = None
    _between: _Between | None = None

    def __post_init__(self) -> None:
        """List the inputs of layers, in the model's order; a classifier's last layers read few rows
        of a text, and are left out but for the first."""
        self._inputs = {}
        self._returned = next(op.x for op in self.running.model.graph.linears if op.selected)
        for op in self.running.model.graph.linears:
            name, whole = self.running.names.get(op.weight), op.x.route is None
            if name is not None and whole and (not op.selected or op.x is self._returned):
                self._inputs.setdefault(name, op.x)

    def __iter__(self) -> Iterator[str]:
        """Yield the names of layers."""
        return iter(self._inputs | dict(self.squares))

    def __len__(self) -> int:
        """Count the layers."""
        return len(self._inputs | dict(self.squares))

    def __getitem__(self, name: str) -> Feedback | F32:
        """Return what is known of a layer's inputs; KeyError for another name."""
        if name not in self._inputs:
            return self.squares[name]
        x = self._inputs[name]
        if self._last is None or self._last[0] is not x:
            moments = self.second_moments(name)
            head = self.running.model.graph.head
            tied = x is head.x and head.weight is self.running.model.graph.table
            self._last = (
                x,
                Feedback.of(moments, TIED if tied else DAMPING, sum(map(len, self.windows))),
            )
        return self._last[1]

    def second_moments(self, name: str) -> F32:
        """E[x x^T] of a layer's input, [K, K], read if it is neither in memory nor on disk."""
        x = self._inputs[name]
        if x in self._moments:
            return self._moments[x]
        if self.kept is not None and (found := self.kept.get(self._file(x))) is not None:
            return np.asarray(found["moments"], np.float32)
        self._moments.clear()
        self._moments.update(self._sums(self._following(name)))
        if self.kept is not None:
            for read, moments in self._moments.items():
                self.kept.put(self._file(read), {"moments": moments})
        return self._moments[x]

    def _file(self, x: Value) -> str:
        return f"moments-{list(dict.fromkeys(self._inputs.values())).index(x)}"

    def _following(self, first: str) -> list[Value]:
        """Return the inputs of this layer and the next ones, as many as the budget holds."""
        names = list(self._inputs)
        values, left = list[Value](), self.budget - self._rows_bytes
        for name in names[names.index(first) :]:
            x = self._inputs[name]
            if x not in values:
                left -= 4 * x.width * x.width
                if left < 0 and values:
                    break
                values.append(x)
        return values

    @property
    def _rows_bytes(self) -> int:
        """Bytes of the rows between two layers, before and behind those that are read."""
        return 2 * 4 * self._returned.width * sum(map(len, self.windows))

    def _sums(self, values: Sequence[Value]) -> dict[Value, F32]:
        """E[x x^T] of each value over the text."""
        graph, engine = self.running.model.graph, self.running.engine
        ops, head = graph.without_head().ops, self._returned
        begin = self._begin(ops, values[0])
        inputs = [x for x in values if x is not head]
        end, living = len(ops), list[Value]()
        if head not in values and not engine.kv_cache.state_bytes:  # a state is of all its layers
            end, living = _cut(ops, begin.cut, inputs[-1])
        part = _Part(begin.values, inputs, living)
        program = engine.compiled(replace(graph, ops=part.ops(ops[begin.cut : end])))
        sums = {x: np.zeros((x.width, x.width), np.float32) for x in values}
        count, total, between = 0, sum(map(len, self.windows)), list[F32]()
        for i, window in enumerate(self.windows):
            rows = np.empty((len(window), part.width), np.float32)
            if begin.cut:
                rows[:, part.before] = begin.rows[i]
            last = engine.run_variant(program, window, len(window), rows if part.width else None)
            for x in values:
                of_x = last
                if x is not head:
                    at = part.inputs[x]
                    of_x = np.ascontiguousarray(rows[:, at : at + x.width])
                sums[x] += of_x.T @ of_x
            between.append(rows[:, part.after].copy())
            count += len(window)
            self.progress(count, total)
        self._between = _Between(end, living, between) if living else None
        for moments in sums.values():
            moments /= count
        return sums

    def _begin(self, ops: Sequence[Op], first: Value) -> _Between:
        """Return where to read, if `first` is the first value that is wanted."""
        between, self._between = self._between, None
        written = next((i for i, op in enumerate(ops) if op.output is first), len(ops))
        if between and (first in between.values or between.cut <= written):
            return between
        return _Between(0, (), ())


def _cut(ops: Sequence[Op], begin: int, last: Value) -> tuple[int, list[Value]]:
    """Return where operations may end that run from `begin` on for the inputs of layers up to
    `last`, and the values that live there, by which reading can go on; no values where it cannot.

    It can where these are all that the operations that follow need of those before.
    """
    linears = [i for i, op in enumerate(ops) if i >= begin and isinstance(op, LinearOp)]
    reads = next((i for i in linears if ops[i].inputs[0] is last), len(ops))
    of_some = next((i for i, op in enumerate(ops) if op.selected), len(ops))
    following = next((i for i in linears if i > reads and ops[i].inputs[0] is not last), of_some)
    lives, rounded = Lives(ops), rounded_values(ops)
    remembered = _remembered(ops)
    possible = [
        (sum(x.width for x in living), cut, living)
        for cut in range(reads + 1, following + 1)
        if (living := lives.at(cut))
        and rounded.isdisjoint(living)
        and not any(first < cut <= later for first, later in remembered)
    ]
    if not possible:
        return reads, []
    _, cut, living = min(possible, key=lambda one: one[:2])
    return cut, living


def _remembered(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Return pairs of operations, of which the later reads what the first left elsewhere than in
    rows of floats: keys and values of attention, the positions that an indexer chose, and which
    experts a token goes to."""
    stored, routed, indexed = dict[int, int](), dict[int, int](), dict[Value, int]()
    pairs, chooses = list[tuple[int, int]](), None
    for i, op in enumerate(ops):
        if isinstance(op, AttentionOp | IndexerOp):
            pairs.append((stored[op.layer], i))
            pairs += [(indexed[x], i) for x in op.inputs if x in indexed]
            if isinstance(op, IndexerOp):
                indexed[op.output] = i
        elif isinstance(op, RopeOp) and op.stores:
            stored[op.layer] = i
        elif isinstance(op, RouteOp):
            chooses = i
        for route in (x.route for x in (*op.inputs, op.output) if x.route is not None):
            if id(route) not in routed:  # rows of heads have a route that no operation chooses
                routed[id(route)], chooses = i if chooses is None else chooses, None
            pairs.append((routed[id(route)], i))
    return pairs


class _Part:
    """Operations between two places of a graph, and the columns of rows that lie with the caller:
    of values that lived at the beginning, of layers' inputs, and of values that live at the end."""

    def __init__(
        self, given: Sequence[Value], inputs: Sequence[Value], living: Sequence[Value]
    ) -> None:
        self.given, n = _columns(given, 0)
        self.inputs, m = _columns(inputs, n)
        self.living, self.width = _columns(living, m)
        self.before: slice = slice(0, n)
        self.after: slice = slice(m, self.width)

    def ops(self, ops: Sequence[Op]) -> list[Op]:
        """Return the operations with those that restore and save rows; all rows must be wanted.

        An input is kept where the first layer reads it, or at the end.
        """
        part: list[Op] = [_keep(x, at, restores=True) for x, at in self.given.items()]
        waiting = dict(self.inputs)
        for op in ops:
            if isinstance(op, LinearOp) and op.x in waiting:
                part.append(_keep(op.x, waiting.pop(op.x)))
            part.append(op)
        part += [_keep(x, at) for x, at in (*waiting.items(), *self.living.items())]
        x = part[-1].output
        if not part[-1].selected:
            part.append(SelectOp(name="select", output=Value(x.width), x=x, selected=True))
        return part


def _columns(values: Sequence[Value], at: int) -> tuple[dict[Value, int], int]:
    """Return where the columns of each value begin, from `at` on, and where the last ones end."""
    *starts, end = accumulate((x.width for x in values), initial=at)
    return dict(zip(values, starts, strict=True)), end


def _keep(x: Value, column: int, restores: bool = False) -> KeepOp:
    saved = None if restores else x
    return KeepOp(name="keep", output=x, x=saved, column=column, width=x.width)
