"""Native programs by themselves: what one run leaves behind for the next, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from sterna import _native, ops
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.ops import EmbedOp, Op

WIDTH, VOCAB = 81, 64  # odd: bf16 pads a row to 82, so a kernel reads one value of padding


def program() -> _native.Program:
    """embed -> norm -> linear + residual -> norm -> head, all bf16; token 5 overflows."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((VOCAB, WIDTH)).astype(np.float32)
    table[5] = 1e38
    packed = ops.pack(table, format="bf16")
    weight = ops.pack(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), format="bf16")
    g = GraphBuilder(Heads(1, 1, 16))
    ones = np.ones(WIDTH, np.float32)
    x = g.add(EmbedOp(weight=packed))
    x = g.linear(g.linear(x, weight, "big"), weight, "bigger", residual=x)
    g.linear(g.norm(g.select(x), ones, 1e-5, "norm"), packed, "lm_head")
    return g.graph.compile()


def run(p: _native.Program, token: int) -> np.ndarray:
    """Logits float32 [1, vocab] after one token."""
    cache = _native.KvCache([(1, 16)], 1, "f32")
    tokens = np.array([token], np.int32)
    return p.run(cache, tokens, [(0, 1, 1, np.zeros(1, np.int32))], "scalar", 1)[0]


def test_a_non_finite_run_leaves_nothing_behind() -> None:
    """After an error the next run has the bits of a fresh program."""
    p = program()
    with pytest.raises(FloatingPointError, match="norm"):
        run(p, 5)
    np.testing.assert_array_equal(run(p, 1), run(program(), 1))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"factor": 0.0}, "factor: must be finite and not 0"),
        ({"factor": "two"}, "factor: must be a number, but got .*str"),
        ({"weight": None}, "weight: must be there"),
        ({"weight": object()}, "weight: must be something that the program has"),
        ({"output": Value(WIDTH)}, "output: must be something that the program has"),
    ],
)
def test_errors_name_the_operation_and_the_field(fields: dict[str, Any], rule: str) -> None:
    """All objects that a dataclass holds."""
    packed, x = ops.pack(np.ones((VOCAB, WIDTH), np.float32), format="bf16"), Value(WIDTH)
    p = _native.Program()
    numbers = {id(packed): p.weight(packed.native()), id(x): p.value(p.buffer(WIDTH), WIDTH)}
    op = EmbedOp(name="table", output=x, weight=packed)
    p.add(op, numbers)
    with pytest.raises(ValueError, match=rf"table \(embed\): {rule}"):
        p.add(replace(op, **fields), numbers)


def test_unknown_kinds_are_refused() -> None:
    """A dataclass needs its C++ file."""

    @dataclass(eq=False, kw_only=True)
    class TwistOp(Op):
        kind: ClassVar[str] = "twist"

    with pytest.raises(ValueError, match=r"x \(twist\): kind: must be one that the core knows"):
        _native.Program().add(TwistOp(name="x", output=Value(1)), {})
