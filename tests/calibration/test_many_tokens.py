"""Ternary layers by dot products and lookups at once: no bit depends on it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from sterna import _native, formats, ops
from sterna.bench.random_models import random_model
from sterna.calibration import many_tokens, measured
from sterna.calibration.many_tokens import COUNTS, fewest_joint, joint_tokens, known
from sterna.calibration.measured import GAIN
from sterna.engine import Engine, Sequence
from sterna.errors import RequestError
from sterna.runtime import Threads

TEAM = Threads(2)
NEVER, ALWAYS = 0, COUNTS[0]
UNITS = [isa for isa in _native.isas() if _native.joint_layouts(isa)]
TERNARY = ("i2", "t5")


@pytest.fixture
def isa() -> str:
    if not UNITS:
        pytest.skip("no unit here multiplies by lookups")
    return UNITS[-1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STERNA_JOINT_TOKENS", raising=False)
    return tmp_path / "cache" / "measured.json"


def weights(*names: str) -> list[formats.PackedWeight]:
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    return [ops.quantize(w, name) for name in names]


def times(crossing: int, gain: float = 1.5) -> dict[tuple[int, int], float]:
    """Seconds of steps where lookups gain from `crossing` tokens on, and lose before."""
    seconds = {(n, NEVER): 1.0 * n for n in COUNTS}
    return seconds | {(n, ALWAYS): n / gain if n >= crossing else n * gain for n in COUNTS}


@pytest.mark.parametrize("crossing", COUNTS)
def test_the_crossing_is_found(crossing: int) -> None:
    assert fewest_joint(times(crossing)) == crossing


def test_lookups_have_to_gain() -> None:
    assert fewest_joint(times(1000)) == NEVER
    assert fewest_joint(times(8, GAIN * 0.999)) == NEVER
    assert fewest_joint(times(8, GAIN * 1.001)) == 8


def test_only_ternary_weights_of_units_that_can_are_measured(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fake(packed: list[formats.PackedWeight], *_: object) -> int:
        calls.append(packed[0].format.name)
        return 16

    monkeypatch.setattr(many_tokens, "_measured", fake)
    several = weights("i2", "t5", "i2p", "i2:g128", "q8_0", "bf16")
    assert joint_tokens(several, TEAM, isa, 1 << 20) == {}
    assert joint_tokens(several, TEAM, "scalar", 1 << 30) == {}
    assert joint_tokens(several, TEAM, isa, 1 << 30) == {"i2": 16, "t5": 16}
    assert joint_tokens(several, TEAM, isa, 0) == {"i2": 16, "t5": 16}
    assert calls == ["i2", "t5"]
    assert known(TEAM, isa) == {"i2": 16, "t5": 16}


def test_a_real_measurement_is_a_number(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LEAST_ROUNDS", 1)  # however busy this machine is
    assert many_tokens._measured(weights("t5"), TEAM, isa, 0.01) in (NEVER, *COUNTS)


def test_the_environment_pins(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_JOINT_TOKENS", "9")
    assert joint_tokens(weights("i2", "q8_0"), TEAM, isa, 0) == {"i2": 9}
    monkeypatch.setenv("STERNA_JOINT_TOKENS", "7")
    with pytest.raises(RequestError, match=r"STERNA_JOINT_TOKENS: must lie in 8\.\.65535"):
        joint_tokens(weights("i2"), TEAM, isa, 0)


def test_a_weight_refuses_what_cannot_be() -> None:
    i2, i2p, groups, floats = (w.native() for w in weights("i2", "i2p", "i2:g128", "bf16"))
    for native, fewest in ((i2, 7), (i2, -1), (i2p, 8), (groups, 8), (floats, 8)):
        with pytest.raises(ValueError, match="joint_tokens"):
            native.joint_tokens = fewest
    i2.joint_tokens = 8
    assert i2.joint_tokens == 8


# (rows, k). Rows: no multiples of tiles (48, 64) or of four row blocks, and more than one piece of
# work. k: no multiples of groups (28) or blocks (224), and more blocks than have lines at once.
SHAPES = [(1, 5), (49, 224), (64, 64), (100, 448), (145, 700), (200, 1000), (4000, 40), (70, 5000)]


@pytest.mark.parametrize("name", TERNARY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("unit", _native.isas()[1:])
def test_no_way_changes_a_bit(unit: str, shape: tuple[int, int], name: str) -> None:
    """A unit that has no such kernel takes its own, whatever a weight says."""
    rng = np.random.default_rng(5)
    levels = rng.integers(-1, 2, shape).astype(np.int8)
    packed = ops.pack(levels, rng.uniform(0.01, 2, shape[0]).astype(np.float32), format=name)
    native = packed.native()
    x = rng.standard_normal((64, shape[1])).astype(np.float32)
    for n in (8, 9, 15, 16, 64):
        part = np.ascontiguousarray(x[:n])
        native.joint_tokens = NEVER
        expected = _native.linear(native, part, "scalar", TEAM)
        assert np.array_equal(_native.linear(native, part, unit, TEAM), expected)
        native.joint_tokens = ALWAYS
        assert np.array_equal(_native.linear(native, part, unit, TEAM), expected)


@pytest.mark.parametrize("name", TERNARY)
@pytest.mark.parametrize("level", [-1, 1])
def test_the_greatest_sums_fit(level: int, name: str, isa: str) -> None:
    native = ops.pack(np.full((48, 1000), level, np.int8), 0.5, format=name).native()
    native.joint_tokens = ALWAYS
    x = np.full((130, 1000), -7.25, np.float32)  # all quantise to -127; two parts of the tokens
    x[::2] *= -1
    y = _native.linear(native, x, isa, TEAM)
    assert np.array_equal(y, _native.linear(native, x, "scalar", TEAM))
    assert np.array_equal(np.sign(y), np.sign(x[:, :48] * level))


@pytest.mark.parametrize("format", TERNARY)
def test_no_way_changes_a_models_logits(
    format: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model("tiny", format=format)
    digests = set()
    for fewest in ("8", "10", "65535"):
        monkeypatch.setenv("STERNA_JOINT_TOKENS", fewest)
        engine, sequence = Engine(model, threads=2, isa=isa), Sequence()
        digest = hashlib.sha256()
        for tokens in ([5, 6, 7], [8] * 9, [9] * 33, [10, 11]):
            digest.update(engine.step([(sequence, tokens, len(tokens))])[0].tobytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1
