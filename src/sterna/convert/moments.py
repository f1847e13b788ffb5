"""Second moments of layers' inputs, by which `formats.feedback` rounds.

    moments = Moments(source, texts, budget=1 << 30)
    feedback = moments["model.layers.0.mlp.down_proj"]

The unrounded model reads the text, and the inputs of some layers at a time are kept for a step
(`KeepOp`) and multiplied: as many layers as their matrices fit into the budget. Layers are best
asked for in the model's order; each time one is not there, the text is read again. Layers of
experts, whose rows differ from token to token, have only mean squares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sterna.convert.running import Running
from sterna.convert.unfinished import Kept
from sterna.formats.feedback import DAMPING, Feedback
from sterna.graph import Graph
from sterna.graph.ops import KeepOp, LinearOp, Op, SelectOp, Value
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


@dataclass
class Moments(Mapping[str, Feedback | F32]):
    """What `convert` takes as squares: `Feedback` for each layer, by the name of its weight.

    running: the model and the windows of tokens that it reads. budget: bytes of moments that are in
    memory at a time. progress: called with tokens read and in all, each time the text is read.
    kept: where moments are kept on disk, and then not read again.
    """

    running: Running
    windows: Sequence[Sequence[int]]
    budget: int
    squares: Mapping[str, F32]
    progress: Callable[[int, int], None] = lambda done, total: None
    kept: Kept | None = None
    _inputs: dict[str, Value] = field(init=False)
    _moments: dict[Value, F32] = field(default_factory=dict)
    _last: tuple[Value, Feedback] | None = None

    def __post_init__(self) -> None:
        """List the inputs of layers, in the model's order."""
        self._inputs = {}
        for op in self.running.model.graph.linears:
            name = self.running.names.get(op.weight)
            if name is not None and op.x.route is None:
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
        values, left = list[Value](), self.budget
        for name in names[names.index(first) :]:
            x = self._inputs[name]
            if x not in values:
                left -= 4 * x.width * x.width
                if left < 0 and values:
                    break
                values.append(x)
        return values

    def _sums(self, values: Sequence[Value]) -> dict[Value, F32]:
        """E[x x^T] of each value over the text."""
        engine = self.running.engine
        # The head's input is what a program without a head returns.
        head = self.running.model.graph.head.x
        columns = _columns(values, head)
        kept_width = sum(x.width for x in values if x is not head)
        graph = _keeping(self.running.model.graph.without_head(), columns)
        if head not in values and not engine.kv_cache.state_bytes:  # a state is of all its layers
            graph = _until_kept(graph)
        program = engine.compiled(graph)
        sums = {x: np.zeros((x.width, x.width), np.float32) for x in values}
        count, total = 0, sum(map(len, self.windows))
        for window in self.windows:
            kept = np.empty((len(window), kept_width), np.float32) if kept_width else None
            last = engine.run_variant(program, window, len(window), kept)
            for x in values:
                rows = last
                if x is not head:
                    assert kept is not None
                    rows = np.ascontiguousarray(kept[:, columns[x] : columns[x] + x.width])
                sums[x] += rows.T @ rows
            count += len(window)
            self.progress(count, total)
        for moments in sums.values():
            moments /= count
        return sums


def _columns(values: Sequence[Value], head: Value) -> dict[Value, int]:
    """Give each value but the head's input columns of its own among those that are kept."""
    columns, at = dict[Value, int](), 0
    for x in values:
        if x is not head:
            columns[x] = at
            at += x.width
    return columns


def _until_kept(graph: Graph) -> Graph:
    """Return the graph without the layers behind the last value that is kept."""
    last = max(i for i, op in enumerate(graph.ops) if isinstance(op, KeepOp))
    x = graph.ops[last].output
    select = SelectOp(name="select", output=Value(x.width), x=x, selected=True)
    return replace(graph, ops=[*graph.ops[: last + 1], select])


def _keeping(graph: Graph, columns: Mapping[Value, int]) -> Graph:
    """Return the graph with operations that save values; all of its rows must be wanted."""
    ops, seen = list[Op](), set[Value]()
    for op in graph.ops:
        if isinstance(op, LinearOp) and op.x in columns and op.x not in seen:
            seen.add(op.x)
            at, width = columns[op.x], op.x.width
            ops.append(KeepOp(name=op.name, output=op.x, x=op.x, column=at, width=width))
        ops.append(op)
    return replace(graph, ops=ops)
