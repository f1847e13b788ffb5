"""`Graph`: the operations of a model, their properties, and their compilation to a program."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sterna import _native
from sterna.formats import PackedWeight
from sterna.graph.activations import rounded_values
from sterna.graph.compilation import (
    UNIT_DECIDES,
    Crossings,
    compiled,
    compiled_in_parts,
)
from sterna.graph.heads import Heads
from sterna.graph.ops import (
    AdaptOp,
    AttentionOp,
    EmbedOp,
    LinearOp,
    Op,
    RopeOp,
    SelectOp,
    SquaresOp,
    Value,
    WeightOp,
)
from sterna.graph.parts import Parts
from sterna.graph.skips import skips

__all__ = ["Graph"]


@dataclass
class Graph:
    """The operations of a model in their order, as a `GraphBuilder` has added them."""

    heads: Heads  # the heads of layers that set none
    ops: list[Op] = field(default_factory=list)

    @property
    def places(self) -> list[AdaptOp]:
        """The places of adapters, in the program's order."""
        return [op for op in self.ops if isinstance(op, AdaptOp)]

    def remove_places(self, prefix: str) -> None:
        """Remove the places of adapters of layers whose names begin with `prefix`."""
        gone = [op for op in self.places if op.parts[0].name.startswith(prefix)]
        self.ops = [op for op in self.ops if op not in gone]

    @property
    def linears(self) -> list[LinearOp]:
        """The linear layers; the head is the last."""
        return [op for op in self.ops if isinstance(op, LinearOp)]

    @property
    def head(self) -> LinearOp:
        """The last operation of a model that makes logits."""
        head = self.ops[-1]
        assert isinstance(head, LinearOp)
        return head

    @property
    def table(self) -> PackedWeight:
        """The embedding's table."""
        return next(op.weight for op in self.ops if isinstance(op, EmbedOp))

    @property
    def attention_layers(self) -> list[AttentionOp]:
        """The attention operations."""
        return [op for op in self.ops if isinstance(op, AttentionOp)]

    @property
    def rounds_inputs(self) -> bool:
        """Whether any layer rounds its input to int8."""
        return bool(rounded_values(self.ops))

    @property
    def kv_heads(self) -> list[Heads]:
        """The heads of each layer of the cache, which several may write in turn."""
        stored = (op for op in self.ops if isinstance(op, RopeOp) and op.stores)
        return list({op.layer: op.heads for op in stored}.values())

    @property
    def kv_windows(self) -> list[int | None]:
        """For each of these layers, its window (positions that it reads at most).

        None: it reads all positions, as in an encoder, whose texts are read in one step.
        """
        seen: list[list[int | None]] = [[] for _ in self.kv_heads]
        for op in self.attention_layers:
            how = op.attention
            seen[op.layer].append(None if how.bidirectional else how.window)
        return [
            None if None in windows else max((w for w in windows if w is not None), default=None)
            for windows in seen
        ]

    def kv_bytes(self, dtype: str, windowed: bool = False) -> int:
        """Count the bytes of keys and values of one position, in all or in windowed layers."""
        return sum(
            _native.kv_bytes(1, heads.n_kv_heads, heads.head_dim, dtype, heads.stored == 1)
            for heads, window in zip(self.kv_heads, self.kv_windows, strict=True)
            if window is not None or not windowed
        )

    def without_head(self) -> Graph:
        """Return the model up to its last norm; outputs hidden states of the selected rows."""
        heads = (i for i, op in enumerate(self.ops) if op.selected and isinstance(op, LinearOp))
        last = max(i for i, op in enumerate(self.ops[: next(heads)]) if op.is_norm)
        ops = self.ops[: last + 1]
        if not ops[-1].selected:  # a classifier of the mean of all rows
            x = ops[-1].output
            ops.append(SelectOp(name="select", output=Value(x.width), x=x, selected=True))
        return replace(self, ops=ops)

    def observed(self) -> Graph:
        """Return the model with a program that sums squares of its layers' inputs, by column.

        `Program.square_sums` has the sums in the order of `observed_by`. Compile it without `fast`,
        whose products do not read floats.
        """
        ops: list[Op] = []
        seen: set[Value] = set()
        for op in self.ops[:-1]:
            if isinstance(op, LinearOp) and op.x not in seen:
                seen.add(op.x)
                ops.append(SquaresOp(name=op.name, output=op.x, x=op.x, selected=op.selected))
            ops.append(op)
        return replace(self, ops=[*ops, self.ops[-1]])

    def observed_by(self) -> list[list[PackedWeight]]:
        """For each sum of squares of an `observed` graph, the weights that read those values."""
        values = [op.x for op in self.ops if isinstance(op, SquaresOp)]
        layers = self.layers()
        return [[weight for read, weight in layers if read is x] for x in values]

    def weights(self) -> list[PackedWeight]:
        """List every packed weight once."""
        return [op.weight for op in self.weight_ops]

    @property
    def weight_ops(self) -> list[WeightOp]:
        """For every packed weight, the last operation that reads it."""
        return list({id(op.weight): op for op in self.ops if isinstance(op, WeightOp)}.values())

    @property
    def can_be_fast(self) -> bool:
        """Whether all layers hold floats of one format, so that bf16 products may sum them."""
        formats = {weight.format for _, weight in self.layers()}
        return len(formats) == 1 and not any(f.integer for f in formats)

    def linear_weights(self) -> list[PackedWeight]:
        """List every packed weight that a linear layer or the head reads; of experts the first."""
        return list({id(op.weight): op.one_weight for op in self.linears}.values())

    def layers(self) -> list[tuple[Value, PackedWeight]]:
        """List the input and the weight of each linear layer, except the head."""
        return [(op.x, op.weight) for op in self.ops[:-1] if isinstance(op, LinearOp)]

    def compile(
        self,
        fast: bool = False,
        skip_with: int = 0,
        crossings: Crossings = UNIT_DECIDES,
        context: int = 0,
        activations: str = "int8",
        guesses: bool = False,
    ) -> _native.Program:
        """Compile; the last value written is the logits, or that of `without_head`.

        fast: layers of a model that `can_be_fast` use the bf16 products of the unit, if it has
        them, for every number of tokens. The head keeps the ascending sums of `ops.linear`, for
        which an exact head is proven to equal a float head.
        skip_with: the number of threads that copy the weights of the layers in `skips`, so that a
        step of one token skips weights whose input is zero; 0: read all weights.
        crossings: the numbers of tokens at which kernels change their way.
        context: the most positions of a sequence, on which `Rotary.long` depends.
        activations: one of `ACTIVATIONS`: how integer layers round their inputs.
        guesses: guess what the next router chooses, for experts that stay on disk.

        The graph does not change, so engines of one model may compile it at the same time.
        """
        planes_for = dict(self.layers()) if fast and self.can_be_fast else {}
        return compiled(self.ops, planes_for, skip_with, crossings, context, activations, guesses)

    def compile_in_parts(self, fast: bool = False) -> Parts:
        """Compile a graph that begins with `previous_hidden_states`, such that rows may be computed
        a few at a time, although all see each other. fast: as in `compile`."""
        planes_for = dict(self.layers()) if fast and self.can_be_fast else {}
        return compiled_in_parts(self.ops, planes_for)

    def skips(self) -> dict[Op, int]:
        """Find the layers that may skip weights whose input is zero, as `skips.skips` does."""
        return skips(self.ops)
