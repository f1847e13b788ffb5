"""Steps of a few tokens: the way is chosen by a clock, and of no consequence to a bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from sterna import _native, formats, ops
from sterna.bench.random_models import random_model
from sterna.calibration import few_tokens, measured, token_counts
from sterna.calibration.few_tokens import COUNTS, direct_tokens, known, most_direct
from sterna.calibration.measured import GAIN, place, usual_seconds
from sterna.engine import Engine, Sequence
from sterna.errors import RequestError
from sterna.runtime import Threads

TEAM = Threads(2)
GUESS, PANEL, DIRECT = 0, 1, 16


def times(crossing: int, guess: int, panel: float = 10.0) -> dict[tuple[int, int], float]:
    """Seconds of steps where the panel is the faster one beyond `crossing` tokens."""
    seconds = {}
    for n in COUNTS:
        seconds[n, PANEL] = panel
        seconds[n, DIRECT] = panel * (0.5 if n <= crossing else 2.0)
        seconds[n, GUESS] = seconds[n, DIRECT if n <= guess else PANEL]
    return seconds


@pytest.mark.parametrize("crossing", [1, *COUNTS])
def test_the_crossing_is_found(crossing: int) -> None:
    guess = 16 if crossing < 8 else 1
    assert most_direct(times(crossing, guess)) == crossing


def test_the_guess_stays_where_it_is_as_good() -> None:
    assert most_direct(times(8, 8)) == GUESS
    slower = times(8, 8)
    for n in COUNTS:  # within noise of the best everywhere
        slower[n, GUESS] *= GAIN * 0.999
    assert most_direct(slower) == GUESS
    for n in COUNTS:
        slower[n, GUESS] *= 1.002
    assert most_direct(slower) == 8


def test_short_steps_weigh_as_much_as_long_ones() -> None:
    seconds = times(2, 1, panel=1.0)
    for n in COUNTS[1:]:  # a panel gains little on many tokens, and loses much on two
        seconds[n, DIRECT] = 1.05
    seconds[2, PANEL] = 2.0
    assert most_direct(seconds) == 2


def test_rounds_end_with_the_budget() -> None:
    now, asked = [0.0], list[str]()

    def seconds_of(way: str) -> float:
        asked.append(way)
        now[0] += 0.010
        return 0.010 if way == "a" else 0.020

    assert usual_seconds("ab", seconds_of, 0.105, lambda: now[0]) == {"a": 0.010, "b": 0.020}
    assert asked == ["a", "b"] * 5  # 20 ms a round: a sixth would end at 120 ms
    assert usual_seconds("ab", seconds_of, 0.085, lambda: now[0]) is None  # a fifth did not fit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STERNA_DIRECT_TOKENS", raising=False)
    return tmp_path / "cache" / "measured.json"


@pytest.fixture
def isa() -> str:
    if len(_native.isas()) < 2:
        pytest.skip("this CPU has no vector unit, and `scalar` is never measured")
    return _native.isas()[-1]


def weights(*names: str) -> list[formats.PackedWeight]:
    w = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    return [ops.quantize(w, name) for name in names]


def measured_as(monkeypatch: pytest.MonkeyPatch, most: int | None) -> list[str]:
    calls: list[str] = []

    def fake(packed: list[formats.PackedWeight], *_: object) -> int | None:
        calls.append(packed[0].format.name)
        return most

    monkeypatch.setattr(few_tokens, "_measured", fake)
    return calls


def test_measured_once_a_format_and_kept(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, 6)
    assert direct_tokens(weights("i2", "q8_0", "i2"), TEAM, isa, 1 << 30) == {"i2": 6, "q8_0": 6}
    measured_as(monkeypatch, 12)
    assert direct_tokens(weights("i2", "bf16"), TEAM, isa, 1 << 30) == {"i2": 6, "bf16": 12}
    assert direct_tokens(weights("i2"), TEAM, isa, 0) == {"i2": 6}  # however small the model
    assert sorted(calls) == ["i2", "q8_0"]
    where = f"{place(TEAM)}, {isa}"
    assert json.loads(cache.read_text())[where]["direct tokens of memory"] == known(TEAM, isa)
    assert known(TEAM, isa) == {"i2": 6, "q8_0": 6, "bf16": 12}
    assert known(Threads(1), isa) == {}


def test_what_could_not_be_measured_is_the_guess(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as(monkeypatch, None)
    assert direct_tokens(weights("i2"), TEAM, isa, 1 << 30) == {}
    assert known(TEAM, isa) == {}
    measured_as(monkeypatch, 4)  # the next start tries again
    assert direct_tokens(weights("i2"), TEAM, isa, 1 << 30) == {"i2": 4}


def test_small_models_no_cache_and_scalar_are_not_measured(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, 6)
    assert direct_tokens(weights("i2"), TEAM, isa, 1 << 20) == {}
    assert direct_tokens(weights("i2"), TEAM, "scalar", 1 << 30) == {}
    monkeypatch.setenv("STERNA_CACHE", "off")
    assert direct_tokens(weights("i2"), TEAM, isa, 1 << 30) == {}
    assert not calls


@pytest.mark.parametrize("kept", ["[]", '{"i2": 99}', '{"i2": "6"}', '{"i2": [6]}', '"i2"'])
def test_what_is_kept_wrongly_is_measured_again(
    kept: str, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir()
    where = json.dumps(f"{place(TEAM)}, {isa}")
    cache.write_text(f'{{{where}: {{"direct tokens of memory": {kept}}}}}')
    assert known(TEAM, isa) == {}
    measured_as(monkeypatch, 4)
    assert direct_tokens(weights("i2"), TEAM, isa, 1 << 30) == {"i2": 4}


def test_a_real_measurement_is_a_limit(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LEAST_ROUNDS", 1)  # however busy this machine is
    assert few_tokens._measured(weights("q4_0"), TEAM, isa, 0.01) in (0, 1, *COUNTS)


def test_weights_of_one_shape_that_no_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of them that is timed well; else the shape of the most bytes."""
    rng = np.random.default_rng(3)

    def several(count: int, M: int, K: int) -> list[formats.PackedWeight]:
        return [ops.quantize(rng.standard_normal((M, K), np.float32), "i8") for _ in range(count)]

    small, middle, large = several(9, 64, 64), several(4, 64, 128), several(4, 64, 256)
    of_model = [*small, *large, *middle]
    monkeypatch.setattr(token_counts, "_LEAST_WEIGHT_BYTES", small[0].nbytes + 1)
    for least, expected in ((4 * middle[0].nbytes, middle), (4 * large[0].nbytes, large)):
        monkeypatch.setattr(token_counts, "LEAST_BYTES", least)
        assert token_counts.samples_of(of_model) == {"i8": expected}
    monkeypatch.setattr(token_counts, "LEAST_BYTES", 1 << 30)
    assert token_counts.samples_of(of_model) == {"i8": large}


def test_the_environment_pins(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_DIRECT_TOKENS", "7")
    assert direct_tokens(weights("i2", "bf16"), TEAM, isa, 0) == {"i2": 7, "bf16": 7}


@pytest.mark.parametrize("text", ["0", "17", "-1", "x", "1.5", "²"])
def test_what_is_no_limit_is_refused(
    text: str, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STERNA_DIRECT_TOKENS", text)
    with pytest.raises(RequestError, match=r"STERNA_DIRECT_TOKENS: must lie in 1\.\.16"):
        direct_tokens(weights("i2"), TEAM, isa, 0)


def test_a_weight_refuses_what_is_no_limit() -> None:
    (packed,) = weights("i2")
    native = packed.native()
    for most in (-1, 17):
        with pytest.raises(ValueError, match="direct_tokens"):
            native.direct_tokens = most


@pytest.mark.parametrize("name", formats.names())
@pytest.mark.parametrize("isa_name", _native.isas())
def test_no_way_changes_a_bit(isa_name: str, name: str) -> None:
    """One digest of 1 to 17 tokens for every limit, in a run of a layer as in a model's."""
    rng = np.random.default_rng(5)
    packed = ops.quantize(rng.standard_normal((200, 512)).astype(np.float32), name)
    x = rng.standard_normal((17, 512)).astype(np.float32)
    native = packed.native()
    digests = set()
    for native.direct_tokens in (0, 1, 2, 3, 4, 7, 8, 12, 16):
        digest = hashlib.sha256()
        for n in (1, 2, 3, 5, 8, 9, 13, 16, 17):
            y = _native.linear(native, np.ascontiguousarray(x[:n]), isa_name, TEAM)
            digest.update(y.tobytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("format", ["i2", "q4_0", "bf16"])
def test_no_way_changes_a_models_logits(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("tiny", format=format)
    digests = set()
    for most in ("1", "4", "16"):
        monkeypatch.setenv("STERNA_DIRECT_TOKENS", most)
        engine, sequence = Engine(model, threads=2), Sequence()
        digest = hashlib.sha256()
        for tokens in ([5, 6, 7], [8] * 9, [9], [10, 11]):
            digest.update(engine.step([(sequence, tokens, len(tokens))])[0].tobytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1
