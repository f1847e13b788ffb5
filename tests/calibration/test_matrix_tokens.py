"""A matrix unit leaves few tokens to vectors where these are faster: no bit depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sterna import _native, formats, loading, ops
from sterna.calibration import matrix_tokens as tiles
from sterna.calibration import measured
from sterna.calibration.matrix_tokens import COUNTS, fewest_on_tiles, known, tile_tokens
from sterna.calibration.measured import GAIN
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna.runtime import Threads

TEAM = Threads(2)
TILES, VECTORS = 0, 256
UNITS = [isa for isa in _native.isas() if _native.has_tiles(isa)]
GROUPED = ("q4_0", "q4_k", "q6_k", "mxfp4", "nvfp4", "i2:g128", "nf4", "iq2_xxs")


@pytest.fixture
def isa() -> str:
    if not UNITS:
        pytest.skip("no matrix unit here (tests/emulator has one)")
    return UNITS[-1]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STERNA_TILE_TOKENS", raising=False)
    return tmp_path / "cache" / "measured.json"


def weights(*names: str) -> list[formats.PackedWeight]:
    w = np.random.default_rng(3).standard_normal((100, 512)).astype(np.float32)
    return [ops.quantize(w, name) for name in names]


def times(crossing: int, gain: float = 1.5) -> dict[tuple[int, int], float]:
    """Seconds of steps where tiles gain from `crossing` tokens on, and lose before."""
    seconds = {(n, VECTORS): 1.0 * n for n in COUNTS}
    return seconds | {(n, TILES): n / gain if n >= crossing else n * gain for n in COUNTS}


@pytest.mark.parametrize("crossing", COUNTS[1:])
def test_the_crossing_is_found(crossing: int) -> None:
    assert fewest_on_tiles(times(crossing)) == crossing


def test_vectors_have_to_gain() -> None:
    assert fewest_on_tiles(times(COUNTS[0])) == TILES
    assert fewest_on_tiles(times(1000)) == VECTORS
    assert fewest_on_tiles(times(1000, GAIN * 0.999)) == TILES
    assert fewest_on_tiles(times(1000, GAIN * 1.001)) == VECTORS


def test_units_without_tiles_measure_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_measured", lambda *_: pytest.fail("measured"))
    without = [unit for unit in _native.isas() if unit not in UNITS]
    assert [tile_tokens(weights("q4_0"), TEAM, unit, 1 << 30) for unit in without] == [
        {} for _ in without
    ]


def test_scales_in_groups_are_measured(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fake(packed: list[formats.PackedWeight], *_: object) -> int:
        calls.append(packed[0].format.name)
        return 64

    monkeypatch.setattr(tiles, "_measured", fake)
    several = weights("i2", "q4_0", "i8", "q4_k", "bf16")
    assert tile_tokens(several, TEAM, isa, 1 << 20) == {}
    for nbytes in (1 << 30, 0):
        assert tile_tokens(several, TEAM, isa, nbytes) == {"q4_0": 64, "q4_k": 64}
    assert calls == ["q4_0", "q4_k"]
    assert known(TEAM, isa) == {"q4_0": 64, "q4_k": 64}


def test_a_real_measurement_is_a_number(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LEAST_ROUNDS", 1)  # however busy this machine is
    assert tiles._measured(weights("q4_0"), TEAM, isa, 0.01) in (TILES, *COUNTS[1:], VECTORS)


def test_the_environment_pins(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = (UNITS or _native.isas())[-1]
    monkeypatch.setenv("STERNA_TILE_TOKENS", "99")
    assert tile_tokens(weights("i2", "q8_0"), TEAM, unit, 0) == ({"q8_0": 99} if UNITS else {})
    for wrong in ("16", "257", "many"):
        monkeypatch.setenv("STERNA_TILE_TOKENS", wrong)
        with pytest.raises(RequestError, match=r"STERNA_TILE_TOKENS: must lie in 17\.\.256"):
            tile_tokens(weights("q8_0"), TEAM, unit, 0)


def test_a_weight_refuses_what_cannot_be() -> None:
    (native,) = (w.native() for w in weights("q4_0"))
    for fewest in (-1, 257):
        with pytest.raises(ValueError, match="tile_tokens"):
            native.tile_tokens = fewest
    native.tile_tokens = VECTORS
    assert native.tile_tokens == VECTORS


@pytest.mark.parametrize("unit", UNITS or _native.isas()[-1:])
@pytest.mark.parametrize("name", GROUPED)
def test_no_way_changes_a_bit(name: str, unit: str) -> None:
    """A unit without tiles takes its own way, whatever a weight says."""
    native = weights(name)[0].native()
    x = np.random.default_rng(5).standard_normal((256, 512)).astype(np.float32)
    for n in (17, 31, 255, 256):
        part = np.ascontiguousarray(x[:n])
        native.tile_tokens = TILES
        expected = _native.linear(native, part, "scalar", TEAM)
        for fewest in (TILES, 32, VECTORS):
            native.tile_tokens = fewest
            assert np.array_equal(_native.linear(native, part, unit, TEAM), expected), fewest


@pytest.mark.parametrize("activations", ["int8", "int8x2"])
@pytest.mark.parametrize("recipe", ["llama-256", "mixtral"])
def test_no_way_changes_a_models_logits(
    recipe: str,
    activations: str,
    isa: str,
    checkpoint: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Experts get a few rows of a step, which lie in the blocks of many."""
    model = loading.load(checkpoint(recipe), format="q4_0", head="int8")
    tokens = np.random.default_rng(7).integers(0, 256, 53).tolist()
    digests = set()
    for fewest in ("17", "32", "256"):
        monkeypatch.setenv("STERNA_TILE_TOKENS", fewest)
        engine = Engine(model, threads=2, isa=isa, activations=activations)
        for chunk in (None, 20):
            logits = np.ascontiguousarray(engine.logits([tokens], chunk=chunk)[0])
            digests.add(hashlib.sha256(logits.tobytes()).hexdigest())
    assert len(digests) == 1
