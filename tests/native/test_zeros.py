"""Weights that meet a zero are not read, and no bit changes: native/linear/active.h."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits

from sterna import _native, ops
from sterna.bench import e2e
from sterna.bench.random_models import RandomWeights, Zeros
from sterna.bench.shapes import SHAPES, Shape
from sterna.engine import Engine, Sequence
from sterna.errors import NonFiniteError, RequestError
from sterna.formats import PackedWeight
from sterna.graph import Value
from sterna.graph.ops import LinearOp
from sterna.loading import Model, from_weights
from sterna.weights.sources import Linear

#: Neither 320 nor 576 is whole lines of 256; 576 gates are whole tiles of 64 and of 48 rows.
SHAPE = Shape("BitNetForCausalLM", 320, 576, 3, 4, 2, 200, True, context=256)
TOKENS = [17, 3, 99, 42]


class Weights(RandomWeights):
    """Random weights whose gate_up of layer 1 a test may change."""

    def __init__(self, format: str, zeros: Zeros | None, change: Any = None) -> None:
        super().__init__(format, "int8", zeros)
        self.change = change

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        (weight,) = super().matrix(name, parts)
        if self.change and "layers.1.mlp.gate" in name:
            scale = np.broadcast_to(weight.scale, (weight.M,)).copy()
            self.change(scale)
            weight = replace(weight, scale=scale)
        return [weight]


def model(format: str, zeros: Zeros | None = None, change: Any = None) -> Model:
    return from_weights(SHAPE.config(), Path("zeros"), lambda _: Weights(format, zeros, change))


def decoded(engine: Engine) -> tuple[list[np.ndarray], int]:
    """Logits of a prompt and of steps of one token, and the bytes that these left out."""
    sequence, rows, left_out = Sequence(), [], 0
    rows += engine.step([(sequence, TOKENS, 2)])
    assert engine.skipped_bytes == 0  # of several tokens all weights are read
    for token in TOKENS:
        rows += engine.step([(sequence, [token], 1)])
        left_out += engine.skipped_bytes
    engine.kv_cache.release(sequence)
    return rows, left_out


@pytest.mark.parametrize("isa", _native.isas())
@pytest.mark.parametrize("format", ["i2", "t5"])
@pytest.mark.parametrize("zeros", [None, Zeros(0.5, 0.6), Zeros(0.7, 0.85), Zeros(0.97, 0.99)])
def test_the_same_bits(format: str, zeros: Zeros | None, isa: str) -> None:
    m = model(format, zeros)
    assert sorted(m.graph.skips().values()) == [0, 0, 0, 576, 576, 576]
    whole, nothing = decoded(Engine(m, threads=1, isa=isa, skip_zeros=False))
    assert nothing == 0
    for threads in (1, 2, 3, 7):
        rows, left_out = decoded(Engine(m, threads=threads, isa=isa, skip_zeros=True))
        assert_same_bits(np.concatenate(rows), np.concatenate(whole))
        if zeros and zeros.down > 0.6:
            assert left_out > 0


def test_how_much_is_left_out() -> None:
    """At most all of `up` and `down`, and about what the rates say."""
    m = model("i2", Zeros(0.7, 0.85))
    _, left_out = decoded(Engine(m, threads=2, skip_zeros=True))
    line_bytes = 576 * 128 + 576 * 128  # two lines of 64 bytes for a row of 320, and for a column
    dense = 320 * 576 / 4 * 2
    expected = 3 * len(TOKENS) * (dense - (0.3 * 0.5 + 0.15 * 0.5) * line_bytes)
    assert 0.8 * expected < left_out < 1.1 * expected


@pytest.mark.parametrize("closed", [True, False])
def test_no_gate_is_open_and_all_are(closed: bool) -> None:
    def change(scale: np.ndarray) -> None:
        scale[:576] = 0 if closed else scale[:576]

    m = model("i2", None, change)
    whole, _ = decoded(Engine(m, threads=2, skip_zeros=False))
    rows, _ = decoded(Engine(m, threads=2, skip_zeros=True))
    assert_same_bits(np.concatenate(rows), np.concatenate(whole))


@pytest.mark.parametrize("row", [5, 576 + 5])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_what_is_not_finite_is_found(row: int, value: float) -> None:
    """In a gate, or behind an open one."""

    def change(scale: np.ndarray) -> None:
        scale[row] = value

    m = model("i2", None, change)
    errors = []
    for skip in (False, True):
        engine = Engine(m, threads=1, skip_zeros=skip)
        for token in range(40):  # a gate of either sign
            try:
                engine.step([(Sequence(), [token], 1)])
            except NonFiniteError as e:
                errors.append(str(e))
                break
    assert len(errors) == 2
    assert errors[0] == errors[1]


def test_formats_without_copies_read_all() -> None:
    m = model("i8")
    assert m.graph.skips() == {}
    assert decoded(Engine(m, threads=1, skip_zeros=True))[1] == 0


def test_the_core_refuses_what_cannot_be_skipped() -> None:
    weight = ops.pack(np.ones((128, 64), np.float32), format="i2")
    with pytest.raises(ValueError, match=r"up_proj \(linear\): weight: is read in parts only"):
        added(weight, bias=np.ones(128, np.float32), open_rows=64)
    with pytest.raises(ValueError, match=r"up_proj \(linear\): open_rows: must be the first half"):
        added(weight, open_rows=63)
    with pytest.raises(ValueError, match=r"up_proj \(linear\): x: must list its places"):
        added(weight, active_columns=True)
    with pytest.raises(ValueError, match=r"up_proj \(linear\): active_columns: needs"):
        added(ops.pack(np.ones((128, 64), np.float32), format="f32"), active_columns=True)


def added(weight: PackedWeight, **options: Any) -> None:
    """A linear layer of these options, in a program of its own."""
    program, x, y = _native.Program(), Value(weight.K), Value(weight.M)
    numbers = {id(weight): program.weight(weight.native())}
    for value in (x, y):
        numbers[id(value)] = program.value(program.buffer(value.width), value.width)
    program.add(LinearOp(name="up_proj", output=y, x=x, weight=weight, **options), numbers, 1)


@pytest.mark.usefixtures("little_bandwidth")
def test_bench_runs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "relu2", SHAPE)
    monkeypatch.setattr("sterna.engine.engine.LEAST_BYTES", 0)
    rows = e2e.run(
        "random:relu2", format="t5", head="int8", pp=(), tg=(3,), threads=1, repeat=1,
        zeros="up=.7,down=.85",
    )  # fmt: skip
    assert [row["zeros"] for row in rows] == ["read", "left out"]
    read, left = rows
    assert read["left_out_mb"] == 0
    saved = read["bytes_per_token"] - left["bytes_per_token"]
    assert saved > 0
    assert saved == pytest.approx(left["left_out_mb"] * 1e6, abs=1e5)


@pytest.mark.parametrize(
    ("model_name", "format", "zeros", "message"),
    [
        ("random:relu2", "t5", "up=.7", "must be two rates"),
        ("random:relu2", "t5", "up=.7,down=x", "must be two rates"),
        ("random:relu2", "t5", "up=.4,down=.8", "0.5 <= up <= down < 1"),
        ("random:relu2", "q4_0", "up=.7,down=.8", "a scale for each row"),
        ("random:tiny", "t5", "up=.7,down=.8", "a relu2 model"),
        ("nano", "t5", "up=.7,down=.8", "of a random model"),
    ],
)
def test_bench_says_which_zeros_it_takes(
    model_name: str, format: str, zeros: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "relu2", SHAPE)
    with pytest.raises(RequestError, match=message):
        e2e.run(model_name, format=format, pp=(), tg=(1,), threads=1, repeat=1, zeros=zeros)
