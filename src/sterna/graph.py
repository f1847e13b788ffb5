"""The words a model file writes its layers in, and their translation to a native Program.

A model's `build` calls the methods of a `Graph` once; each returns a `Value`, a row of activations
per token. `compile` then decides which values are quantised (those an integer layer reads), which
share a buffer (those never alive together), and emits the flat list of operations that the native
runner plays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.formats import PackedWeight, Shadow

__all__ = ["Graph", "Rope", "Value"]

F32 = npt.NDArray[np.float32]
PAD = 64  # widths of buffers are padded to it (native kPad)


@dataclass(frozen=True)
class Rope:
    """Heads and their rotary embedding; inverse_frequencies: head_dim / 2 float32 values."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    inverse_frequencies: tuple[float, ...]
    interleaved: bool = False


@dataclass(eq=False)
class Value:
    """Activations: float32 [tokens, width], and int8 beside them if an integer layer reads them."""

    width: int
    op: _Op | None = None
    last_use: int = -1
    buffer: int = -1
    reads_float: bool = False


@dataclass(eq=False)
class _Op:
    kind: str
    name: str
    inputs: list[Value]
    output: Value
    weight: PackedWeight | None = None
    shadow: Shadow | None = None
    residual: Value | None = None
    norm: F32 | None = None
    eps: float = 0.0
    glu: str = ""
    rounding: int | None = None  # to int8, for integer layers: Format.rounding
    selected: bool = False
    layer: int = 0


@dataclass
class Graph:
    """A model being written down."""

    rope: Rope
    ops: list[_Op] = field(default_factory=list)
    selected: bool = False  # after `select`, only rows whose logits are wanted go on

    def _add(self, kind: str, name: str, inputs: list[Value], width: int, **more: object) -> Value:
        output = Value(width)
        op = _Op(kind, name, inputs, output, selected=self.selected, **more)  # type: ignore[arg-type]
        output.op = op
        self.ops.append(op)
        return output

    def embed(self, table: PackedWeight) -> Value:
        """Rows of the table [vocab, width] for the batch's tokens."""
        return self._add("embed", "embed_tokens", [], table.K, weight=table)

    def norm(self, x: Value, weight: F32, eps: float, name: str) -> Value:
        """RMSNorm(x) * weight; one pass with the glu that made x, if nothing else follows it."""
        op = x.op
        if op is not None and op is self.ops[-1] and op.glu and op.norm is None:
            op.name, op.norm, op.eps = name, weight, eps
            return x
        return self._add("rowwise", name, [x], x.width, norm=weight, eps=eps)

    def glu(self, gate_up: Value, activation: str, name: str) -> Value:
        """act(gate) * up of a row [gate | up]; activation: "relu2" or "silu"."""
        return self._add("rowwise", name, [gate_up], gate_up.width // 2, glu=activation)

    def linear(
        self, x: Value, weight: PackedWeight, name: str, residual: Value | None = None
    ) -> Value:
        """x W^T (+ residual); quantises x first if the weight's format is an integer one."""
        rounding = formats.get(weight.format).rounding
        if rounding is not None:
            if x.op is None or x.op.kind != "rowwise" or x.op.rounding not in (None, rounding):
                x = self._add("rowwise", name, [x], x.width)
            assert x.op is not None
            x.op.rounding = rounding
        inputs = [x] if residual is None else [x, residual]
        return self._add("linear", name, inputs, weight.M, weight=weight, residual=residual)

    def head(self, x: Value, table: PackedWeight, shadow: Shadow | None, name: str) -> Value:
        """The logits x W^T; with a shadow of a float table, screened in steps that want a top k."""
        if shadow is None:
            return self.linear(x, table, name)
        return self._add("linear", name, [x], table.M, weight=table, shadow=shadow)

    def attention(self, qkv: Value, layer: int) -> Value:
        """Rotates q and k of a row [q | k | v], stores k and v, attends to all positions so far."""
        rotated = self._add("rope", "rope", [qkv], 0, layer=layer)
        rotated.width = qkv.width
        width = self.rope.n_heads * self.rope.head_dim
        return self._add("attention", "attention", [rotated], width, layer=layer)

    def select(self, x: Value) -> Value:
        """The rows of x whose logits are wanted; all that follows runs on them alone."""
        self.selected = True
        return self._add("select", "select", [x], x.width)

    def weights(self) -> list[PackedWeight]:
        """Every packed weight once."""
        seen = {id(op.weight): op.weight for op in self.ops if op.weight is not None}
        return list(seen.values())

    @property
    def can_be_fast(self) -> bool:
        """Whether all layers hold floats of one format, so that bf16 products may sum them."""
        found = {weight.format for _, weight in self._layers()}
        return len(found) == 1 and not formats.get(*found).integer

    def _layers(self) -> list[tuple[Value, PackedWeight]]:
        """What the linear layers read, and their weights; the head, which comes last, left out."""
        linears = [op for op in self.ops[:-1] if op.kind == "linear"]
        return [(op.inputs[0], op.weight) for op in linears if op.weight is not None]

    def compile(self, fast: bool = False) -> _native.Program:
        """The native program; the last value written is the logits.

        fast: the layers of a model that `can_be_fast` use the unit's bf16 products where it has
        them, for every number of tokens. The head keeps the ascending sums of `ops.linear`: an
        exact head is proven for those, and equals a float head.
        """
        r = self.rope
        program = _native.Program(
            r.n_heads, r.n_kv_heads, r.head_dim, r.interleaved, list(r.inverse_frequencies)
        )
        self._place(program)
        self._mark_floats()
        ids = {id(w): program.weight(formats.get(w.format).native(w)) for w in self.weights()}
        # Values that layers read as planes of bf16, and a weight that does.
        split = {id(x): w for x, w in self._layers()} if fast and self.can_be_fast else {}
        for op in self.ops:
            self._emit(program, op, ids, split)
        return program

    def _mark_floats(self) -> None:
        """Notes which values are read as floats: the others exist only as int8."""
        for op in self.ops:
            integer = op.kind == "linear" and op.weight and formats.get(op.weight.format).integer
            for x in op.inputs:
                x.reads_float |= x is op.residual or not integer

    def _place(self, program: _native.Program) -> None:
        """Gives every value a buffer; values that are never alive together share one."""
        for i, op in enumerate(self.ops):
            for x in op.inputs:
                x.last_use = i
        free: dict[int, list[int]] = {}
        for i, op in enumerate(self.ops):
            out = op.output
            in_place = op.inputs[0] if op.kind == "rope" else op.residual
            if op is self.ops[-1]:
                out.buffer = program.buffer(out.width)  # the runner returns the last buffer made
            elif in_place is not None and in_place.last_use == i and in_place.width == out.width:
                out.buffer = in_place.buffer
                in_place.last_use = -1  # the buffer lives on as the output's
            elif op.kind == "rope":
                raise AssertionError("rope rotates in place: qkv must not be read again after it")
            else:
                padded = -(-out.width // PAD) * PAD
                spare = free.get(padded)
                out.buffer = spare.pop() if spare else program.buffer(out.width)
            for x in {id(x): x for x in op.inputs}.values():
                if x.last_use == i:
                    free.setdefault(-(-x.width // PAD) * PAD, []).append(x.buffer)

    @staticmethod
    def _emit(
        program: _native.Program, op: _Op, ids: dict[int, int], split: dict[int, PackedWeight]
    ) -> None:
        src = op.inputs[0].buffer if op.inputs else -1
        dst = op.output.buffer
        weight = ids[id(op.weight)] if op.weight is not None else -1
        reader = ids[id(split[id(op.output)])] if id(op.output) in split else -1
        if op.kind == "embed":
            program.embed(weight, dst)
        elif op.kind == "select":
            program.select(src, dst)
        elif op.kind == "rope":
            program.rope(src, op.layer)
        elif op.kind == "attention":
            program.attention(src, dst, op.layer)
        elif op.kind == "linear":
            residual = -1 if op.residual is None else op.residual.buffer
            if op.shadow is not None:
                rows = program.weight(formats.get(op.shadow.rows.format).native(op.shadow.rows))
                program.head(op.name, weight, rows, op.shadow.bounds, src, dst)
                return
            fast = bool(op.inputs) and id(op.inputs[0]) in split
            program.linear(op.name, weight, src, dst, residual, op.selected, fast)
        else:
            width = op.output.width
            program.rowwise(
                op.name, src, dst, width, op.glu, width if op.glu else 0, op.norm, op.eps,
                op.rounding, op.selected, op.output.reads_float, reader,
            )  # fmt: skip
        if reader >= 0 and op.kind != "rowwise":
            program.split(reader, dst, op.selected)
