"""From a graph to a native program: which values share a buffer, and what each operation says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sterna import _native
from sterna.formats import PackedWeight
from sterna.graph.activations import in_two_planes
from sterna.graph.heads import Heads, Rotary
from sterna.graph.operations import Op, Value
from sterna.graph.skips import read_as_floats

if TYPE_CHECKING:
    from sterna.graph.written import Written

__all__ = ["compiled"]

PAD = 64  # widths of buffers are padded to it (native kPad)


def compiled(
    graph: Written, fast: bool, skip_with: int, direct_tokens: Mapping[str, int], context: int,
    activations: str,
) -> _native.Program:  # fmt: skip
    """`Graph.compile`; fast: layers use the unit's bf16 products where it has them."""
    ops, h = graph.ops, graph.heads
    program = _native.Program(h.n_heads, h.n_kv_heads, h.head_dim)
    heads = {h: 0}
    rotaries: dict[Rotary | None, int] = {None: -1}
    for op in ops:
        r, rotary = op.heads, op.attention.rotary if op.attention else None
        if r is not None and r not in heads:
            heads[r] = program.heads(r.n_heads, r.n_kv_heads, r.head_dim)
        if rotary is not None and rotary not in rotaries:
            rotaries[rotary] = program.rotary(
                rotary.of_context(context), rotary.interleaved, rotary.factor
            )
    ids = {}
    for w in graph.weights():
        native = w.native()
        native.direct_tokens = direct_tokens.get(w.format.name, 0)
        ids[id(w)] = program.weight(native)
    # Values that layers read as planes of bf16, and a weight that does.
    planes_for = dict(graph.layers()) if fast else {}
    two = in_two_planes(ops, activations)
    skipping = graph.skips() if skip_with and not two else {}
    writer = _Writer(
        program, _buffers(ops, program), read_as_floats(ops), ids, planes_for, rotaries, heads, two
    )
    for op in ops:
        writer.write(op)
        if op in skipping:
            if gates := skipping[op]:
                program.read_open_rows(gates, skip_with)
            else:
                program.read_columns(skip_with)
        writer.finish(op)
    if ops[-1].kind == "rowwise":
        program.end_without_head(ops[-1].output.width)
    return program


def _buffers(ops: Sequence[Op], program: _native.Program) -> dict[Value, int]:
    """A buffer of the program for each value; values never alive together share one."""
    last_use = {x: i for i, op in enumerate(ops) for x in op.reads}
    buffers: dict[Value, int] = {}
    free: dict[tuple[int, bool], list[int]] = {}

    def size(x: Value) -> tuple[int, bool]:  # rows of experts are more than those of tokens
        return -(-x.width // PAD) * PAD, x.route is not None

    for i, op in enumerate(ops):
        out = op.output
        in_place = op.inputs[0] if op.kind in ("rope", "conv") else op.residual
        if op.kind == "rowwise" or op.factor != 1 or op.gated:
            in_place = None  # it is read after the result was written
        if op.adapted is not None and op.adapted.x is in_place:
            in_place = None
        if out in buffers:
            pass  # of several weights, which all write it
        elif op is ops[-1]:
            buffers[out] = program.buffer(out.width)  # the runner returns the last buffer made
        elif in_place is not None and last_use[in_place] == i and in_place.width == out.width:
            buffers[out] = buffers[in_place]
            last_use[in_place] = -1  # the buffer lives on as the output's
        elif op.kind == "conv" or (
            op.kind == "rope" and not op.gated and out.width == op.inputs[0].width
        ):
            raise AssertionError(f"{op.kind} works in place: its row must not be read after it")
        else:
            spare = free.get(size(out))
            buffers[out] = spare.pop() if spare else program.buffer(out.width)
        for x in dict.fromkeys(op.reads):
            if last_use[x] == i:
                free.setdefault(size(x), []).append(buffers[x])
    return buffers


@dataclass(frozen=True)
class _Writer:
    """Operations of a graph on their way to a program.

    buffers: of all values. floats: values that are read as floats. ids: the program's weights by
    the id() of packed ones. planes_for: of values that are read as planes of bf16, a weight that
    does. rotaries, heads: of the program; -1 for no rotary. two: values in two planes of int8.
    """

    program: _native.Program
    buffers: Mapping[Value, int]
    floats: set[Value]
    ids: Mapping[int, int]
    planes_for: Mapping[Value, PackedWeight]
    rotaries: Mapping[Rotary | None, int]
    heads: Mapping[Heads, int]
    two: set[Value]

    def write(self, op: Op) -> None:
        """Adds an operation to the program."""
        program, ids, planes_for = self.program, self.ids, self.planes_for
        src = self.buffers[op.inputs[0]] if op.inputs else -1
        dst = self.buffers[op.output]
        weight = ids[id(op.weight)] if op.weight is not None else -1
        reader = ids[id(planes_for[op.output])] if op.output in planes_for else -1
        residual = -1 if op.residual is None else self.buffers[op.residual]
        chosen = op.route.chosen if op.route else 0
        if op.kind == "embed":
            program.embed(weight, dst, op.factor)
        elif op.kind == "select":
            program.select(src, dst)
        elif op.kind == "rope":
            assert op.attention is not None
            assert op.heads is not None
            rotary = self.rotaries[op.attention.rotary]
            program.rope(
                src, op.layer, op.norm, op.k_norm, op.eps, dst, rotary, op.gated, op.name,
                op.norms_last, self.heads[op.heads], op.stores, op.keys_are_values, op.v_norm,
            )  # fmt: skip
        elif op.kind == "attention":
            how = op.attention
            assert how is not None
            assert op.heads is not None
            sinks = np.array(how.sinks, np.float32) if how.sinks else None
            heads = self.heads[op.heads]
            program.attention(src, dst, op.layer, how.window, how.scale, how.cap, sinks, heads)
        elif op.kind == "conv":
            assert op.taps is not None
            program.conv(op.name, src, op.taps)
        elif op.kind == "recurrence":
            h = op.recurrent
            assert h is not None
            assert op.rate is not None
            assert op.bias is not None
            program.recurrence(
                op.name, src, dst, h.k_heads, h.v_heads, h.k_dim, h.v_dim, op.a, op.b,
                op.rate, op.bias, h.tiled,
            )  # fmt: skip
        elif op.kind == "gated":
            h = op.recurrent
            assert h is not None
            program.gated(
                op.name, src, self.buffers[op.inputs[1]], dst, h.v_heads, h.k_heads, h.v_dim,
                op.column, op.stride, op.activation, op.norm, op.eps, op.single,
            )  # fmt: skip
        elif op.kind == "route":
            assert op.route is not None
            experts, chosen = op.route.experts, op.route.chosen
            program.route(op.name, src, dst, experts, chosen, op.of_all, op.factors)
        elif op.kind == "combine":
            shares = self.buffers[op.inputs[1]]
            program.combine(op.name, src, shares, dst, residual, op.output.width)
        elif op.kind == "squares":
            program.squares(op.name, src, op.output.width, op.selected, chosen)
        elif op.kind == "copy":
            width = op.inputs[0].width if op.inputs else op.output.width
            program.copy(src, dst, op.column, width)
        elif op.kind == "tell":
            assert op.norm is not None
            program.tell(op.name, src, dst, op.norm, op.eps)
        elif op.kind == "linear":
            if op.shadow is not None:
                rows = program.weight(op.shadow.rows.native())
                program.head(op.name, weight, rows, op.shadow.bounds, src, dst)
                return
            fast = bool(op.inputs) and op.inputs[0] in planes_for
            program.linear(
                op.name, weight, src, dst, residual, op.selected, fast, op.column, op.bias,
                op.factor, op.cap, chosen, op.expert_rows, 1 + (op.inputs[0] in self.two),
            )  # fmt: skip
        else:
            width, rotation = op.output.width, op.rotation
            up = self.buffers[op.inputs[-1]] if op.glu else -1
            block, signs = (0, None) if rotation is None else (rotation.block, rotation.signs)
            program.rowwise(
                op.name, src, dst, width, op.glu, op.up, op.norm, op.eps,
                op.rounding, op.selected, op.output in self.floats, reader, residual,
                block, signs, op.inverse, chosen, op.spread, op.limit, up, op.parts, op.factor,
                1 + (op.output in self.two),
            )  # fmt: skip

    def finish(self, op: Op) -> None:
        """What follows the operation itself: adapters, and planes of what it then has."""
        dst = self.buffers[op.output]
        if op.adapted is not None:
            x, parts = op.adapted.x, op.adapted.parts
            self.program.adapted(op.name, self.buffers[x], parts[0].K, dst, op.output.width)
        if op.output in self.planes_for and op.kind != "rowwise":
            reader = self.ids[id(self.planes_for[op.output])]
            self.program.to_bf16_planes(reader, dst, op.selected)
