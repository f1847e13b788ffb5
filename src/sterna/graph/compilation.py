"""From the operations of a graph to a native program: buffers that values share, and the forms of
values other than floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from sterna import _native
from sterna.formats import PackedWeight
from sterna.graph.activations import in_two_planes, rounded_values
from sterna.graph.guesses import with_guesses
from sterna.graph.heads import Heads, LatentHeads, Rotary
from sterna.graph.ops import (
    AttentionOp,
    EmbedOp,
    ExactHeadOp,
    IndexerOp,
    LinearOp,
    Op,
    RopeOp,
    RowwiseOp,
    ToBf16PlanesOp,
    Value,
    WeightOp,
)
from sterna.graph.parts import Parts, in_parts
from sterna.graph.skips import read_as_floats, skips

__all__ = ["UNIT_DECIDES", "Crossings", "compiled", "compiled_in_parts"]

PAD = 64  # widths of buffers are padded to it (native kPad)


class Crossings(NamedTuple):
    """Numbers of tokens at which kernels change their way, for formats' names; the unit decides
    for others.

    direct: the most that are multiplied straight from the decoder (`calibration/few_tokens`).
    joint: the fewest that are multiplied by lookups, too (`calibration/many_tokens`).
    tiles: the fewest of scales in groups that a matrix unit has (`calibration/matrix_tokens`).
    """

    direct: Mapping[str, int] = MappingProxyType({})
    joint: Mapping[str, int] = MappingProxyType({})
    tiles: Mapping[str, int] = MappingProxyType({})


UNIT_DECIDES = Crossings()


def compiled(
    ops: Sequence[Op],
    planes_for: Mapping[Value, PackedWeight],
    skip_with: int,
    crossings: Crossings,
    context: int,
    activations: str,
    guesses: bool,
) -> _native.Program:
    """Compile operations to a native program; the settings are those of `Graph.compile`.

    planes_for: for each value that layers read as planes of bf16, a weight of such a layer.
    """
    if guesses:
        ops = with_guesses(ops)
    two = in_two_planes(ops, activations)
    ops = _with_skips(ops) if skip_with and not two else ops
    ops = _with_planes(ops, planes_for)
    return _program(ops, planes_for, two, skip_with, crossings, context)


def compiled_in_parts(ops: Sequence[Op], planes_for: Mapping[Value, PackedWeight]) -> Parts:
    """Compile operations to a native program in parts, which begins with rows from outside."""
    ops = _with_planes(ops, planes_for)
    ops, parts, width = in_parts(ops, rounded_values(ops).union(planes_for))
    program = _program(ops, planes_for, set(), 0, UNIT_DECIDES, 0)
    return Parts(program, tuple(parts), width, ops[-1].output.width)


def _program(
    ops: Sequence[Op],
    planes_for: Mapping[Value, PackedWeight],
    two: set[Value],
    skip_with: int,
    crossings: Crossings,
    context: int,
) -> _native.Program:
    program = _native.Program()
    numbers = _Numbers(program, {})
    numbers.add_weights(ops, crossings)
    numbers.add_heads(ops, context)
    numbers.add_values(ops, planes_for, two)
    for op in ops:
        skipping = isinstance(op, LinearOp) and (op.open_rows or op.active_columns)
        program.add(op, numbers.by_id, skip_with if skipping else None)
    width = ops[-1].output.width
    if width not in {op.weight.M for op in ops if isinstance(op, EmbedOp)}:
        program.end_without_head(width)
    return program


def _with_skips(ops: Sequence[Op]) -> list[Op]:
    """Return the operations, with linear layers that skip weights whose input is zero."""
    skipping = skips(ops)
    return [
        replace(op, open_rows=skipping[op], active_columns=not skipping[op])
        if isinstance(op, LinearOp) and op in skipping
        else op
        for op in ops
    ]


def _with_planes(ops: Sequence[Op], planes_for: Mapping[Value, PackedWeight]) -> list[Op]:
    """Add operations that make planes of bf16.

    Each follows the last operation that writes the value. Rowwise operations make their own planes.
    """
    out: list[Op] = []
    for op, following in zip(ops, [*ops[1:], None], strict=True):
        out.append(op)
        whole = following is None or following.output is not op.output
        if op.output in planes_for and whole and not isinstance(op, RowwiseOp):
            name, x = op.name, op.output
            out.append(ToBf16PlanesOp(name=name, output=x, x=x, selected=op.selected))
    return out


@dataclass(frozen=True)
class _Numbers:
    """The program's numbers of the objects in the fields of operations, by id()."""

    program: _native.Program
    by_id: dict[int, int]

    def add_weights(self, ops: Sequence[Op], crossings: Crossings) -> None:
        for op in ops:
            if isinstance(op, WeightOp) and id(op.weight) not in self.by_id:
                native = op.weight.native()
                name = op.weight.format.name
                native.direct_tokens = crossings.direct.get(name, 0)
                native.joint_tokens = crossings.joint.get(name, 0)
                native.tile_tokens = crossings.tiles.get(name, 0)
                self.by_id[id(op.weight)] = self.program.weight(native)
            if isinstance(op, ExactHeadOp):
                rows = op.screen.rows
                self.by_id[id(rows)] = self.program.weight(rows.native())

    def add_heads(self, ops: Sequence[Op], context: int) -> None:
        """Add heads and rotations; equal ones have one number."""
        heads: dict[Heads, int] = {}
        rotaries: dict[Rotary, int] = {}
        for op in ops:
            if not isinstance(op, RopeOp | IndexerOp | AttentionOp):
                continue
            h, r = op.heads, None if isinstance(op, IndexerOp) else op.attention.rotary
            if h not in heads:
                value_dim = h.value_dim if isinstance(h, LatentHeads) else 0
                heads[h] = self.program.heads(h.n_heads, h.n_kv_heads, h.head_dim, value_dim)
            self.by_id[id(h)] = heads[h]
            if r is None:
                continue
            if r not in rotaries:
                frequencies = r.of_context(context)
                rotaries[r] = self.program.rotary(frequencies, r.interleaved, r.factor, r.axes)
            self.by_id[id(r)] = rotaries[r]

    def add_values(
        self, ops: Sequence[Op], planes_for: Mapping[Value, PackedWeight], two: set[Value]
    ) -> None:
        floats = read_as_floats(ops)
        rounded = rounded_values(ops)
        listed = {op.x for op in ops if isinstance(op, LinearOp) and op.active_columns}
        for x, buffer in _buffers(ops, self.program).items():
            reader = planes_for.get(x)
            self.by_id[id(x)] = self.program.value(
                buffer,
                x.width,
                x.route.experts if x.route else 0,
                x.route.chosen if x.route else 0,
                2 if x in two else 1,
                x in floats or x not in rounded,
                -1 if reader is None else self.by_id[id(reader)],
                x in listed,
            )


def _buffers(ops: Sequence[Op], program: _native.Program) -> dict[Value, int]:
    """Assign values to buffers of the program; values never alive together share one."""
    last_use = {x: i for i, op in enumerate(ops) for x in op.inputs}
    buffers: dict[Value, int] = {}
    free: dict[tuple[int, bool], list[int]] = {}

    def size(x: Value) -> tuple[int, bool]:  # rows of experts are more than those of tokens
        return -(-x.width // PAD) * PAD, x.route is not None

    for i, op in enumerate(ops):
        out, reused = op.output, op.reused
        if out in buffers:
            pass  # several operations write it
        elif op is ops[-1]:
            buffers[out] = program.buffer(out.width)  # the program returns the last buffer made
        elif reused is not None and last_use[reused] == i and reused.width == out.width:
            buffers[out] = buffers[reused]
            last_use[reused] = -1  # the buffer lives on as the output's
        elif op.in_place:
            raise AssertionError(f"{op.kind} works in place: its row must not be read after it")
        else:
            spare = free.get(size(out))
            buffers[out] = spare.pop() if spare else program.buffer(out.width)
        for x in dict.fromkeys(op.inputs):
            if last_use[x] == i:
                free.setdefault(size(x), []).append(buffers[x])
    return buffers
