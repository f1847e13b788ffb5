"""How weights are read: chosen by a clock, kept for the machine, and of no consequence to a bit."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sterna import _native, formats, ops
from sterna.bench.random_models import random_model
from sterna.calibration import measured, prefetch
from sterna.calibration.measured import GAIN, kept, place
from sterna.calibration.prefetch import CANDIDATES, Reading, choose
from sterna.engine import KV_DTYPES, Engine, Sequence
from sterna.errors import RequestError
from sterna.runtime import Threads

ONE, FOUR = Reading(1, 4096, 4096), Reading(4, 512, 2048)
TEAM = Threads(2)


class Clock:
    """Time that passes only where weights are read."""

    def __init__(self, seconds: dict[Reading, float]) -> None:
        self.seconds, self.now, self.asked = seconds, 0.0, list[Reading]()

    def __call__(self) -> float:
        return self.now

    def read(self, which: Reading) -> float:
        self.asked.append(which)
        self.now += self.seconds[which]
        return self.seconds[which]


def chosen(
    seconds: dict[Reading, float], default: Reading, budget_s: float = 1.0
) -> Reading | None:
    clock = Clock(seconds)
    return choose(list(seconds), default, clock.read, budget_s, clock)


def test_the_fastest_is_chosen() -> None:
    assert chosen({ONE: 0.010, FOUR: 0.013}, FOUR) == ONE
    assert chosen({ONE: 0.013, FOUR: 0.010}, ONE) == FOUR


def test_the_default_stays_within_noise() -> None:
    assert chosen({ONE: 0.0100, FOUR: 0.0100 * GAIN * 0.999}, FOUR) == FOUR
    assert chosen({ONE: 0.0100, FOUR: 0.0100 * GAIN * 1.001}, FOUR) == ONE


def test_rounds_take_turns_and_end_with_the_budget() -> None:
    clock = Clock({ONE: 0.010, FOUR: 0.015})
    assert choose([ONE, FOUR], FOUR, clock.read, 0.135, clock) == ONE
    assert clock.asked == [FOUR, ONE] * 5  # 25 ms each: a sixth round would end at 150 ms


def test_a_busy_machine_decides_nothing() -> None:
    clock = Clock({ONE: 0.010, FOUR: 0.015})
    assert choose([ONE, FOUR], FOUR, clock.read, 0.11, clock) is None  # four rounds
    clock = Clock({ONE: 3.0, FOUR: 4.0})
    assert choose([ONE, FOUR], FOUR, clock.read, 0.11, clock) is None
    assert len(clock.asked) == 2  # one round whatever it costs


def test_one_slow_round_decides_nothing() -> None:
    times = {ONE: itertools.chain([0.010, 0.090], itertools.repeat(0.010)),
             FOUR: itertools.repeat(0.012)}  # fmt: skip
    rounds = itertools.count()
    assert choose([ONE, FOUR], FOUR, lambda r: next(times[r]), 8, lambda: next(rounds)) == ONE


def test_disturbed_rounds_decide_nothing() -> None:
    """Other work slows two rounds of three of the one that is faster."""
    times = {ONE: itertools.chain([0.010], itertools.cycle([0.010, 0.020, 0.030])),
             FOUR: itertools.repeat(0.012)}  # fmt: skip
    rounds = itertools.count()
    assert choose([ONE, FOUR], FOUR, lambda r: next(times[r]), 24, lambda: next(rounds)) == ONE


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, nothing prepared, and everything as it was afterwards."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STERNA_READING", raising=False)
    monkeypatch.setattr(prefetch, "_prepared", set())
    before = _native.reading(TEAM)
    yield tmp_path / "cache" / "measured.json"
    _native.set_reading(TEAM, *before)


@pytest.fixture
def isa() -> str:
    if len(_native.isas()) < 2:
        pytest.skip("this CPU has no vector unit, and `scalar` is never measured")
    return _native.isas()[-1]


def measured_as(monkeypatch: pytest.MonkeyPatch, result: Reading | None) -> list[str]:
    calls: list[str] = []

    def fake(_: Threads, isa: str) -> Reading | None:
        calls.append(isa)
        return result

    monkeypatch.setattr(prefetch, "_measured", fake)
    return calls


def test_measured_once_and_kept(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = measured_as(monkeypatch, Reading(2, 4096, 4096))
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"
    assert prefetch.current(TEAM) == (2, 4096, 4096, True)
    assert json.loads(cache.read_text()) == {place(TEAM): {"reading": [2, 4096, 4096, True]}}
    _native.set_reading(TEAM, *FOUR)
    monkeypatch.setattr(prefetch, "_prepared", set())  # another process
    assert prefetch.prepare(TEAM, isa, 0) == "measured"  # however small the model
    assert prefetch.current(TEAM) == (2, 4096, 4096, True)
    assert calls == [isa]


def test_each_team_has_its_own(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_as(monkeypatch, ONE)
    prefetch.prepare(TEAM, isa, 1 << 30)
    measured_as(monkeypatch, FOUR)
    prefetch.prepare(Threads(1), isa, 1 << 30)
    assert kept("reading", place(TEAM)) == list(ONE)
    assert kept("reading", place(Threads(1))) == list(FOUR)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[1]", '{"a": 1}', '{"NAME": 1}', '{"NAME": "x"}', "\x00", "[" * 9999),
        *('{"NAME": {"reading": [9, 9, 9, true]}}', '{"NAME": {"reading": [1, 4096, 4096]}}'),
        '{"NAME": {"reading": {"streams": 1}}}',
    ],
)
def test_a_damaged_file_counts_as_none(
    text: str, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, ONE)
    cache.parent.mkdir()
    cache.write_text(text.replace("NAME", place(TEAM)))
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"
    assert calls == [isa]
    assert kept("reading", place(TEAM)) == list(ONE)
    assert measured._read(cache)[place(TEAM)] == {"reading": list(ONE)}


def test_small_models_no_cache_and_scalar_are_not_measured(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, ONE)
    assert prefetch.prepare(TEAM, isa, 1 << 20) == "default"
    assert prefetch.prepare(TEAM, "scalar", 1 << 30) == "default"
    monkeypatch.setenv("STERNA_CACHE", "off")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "default"
    assert not calls


def test_a_cache_that_cannot_be_written_is_no_error(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as(monkeypatch, ONE)
    cache.parent.write_text("a file where the folder should be")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"


def test_what_could_not_be_measured_leaves_the_default(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as(monkeypatch, None)
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "default"
    assert not cache.exists()


def test_a_real_measurement_is_one_of_the_candidates(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prefetch.current(TEAM)
    monkeypatch.setattr(measured, "LEAST_ROUNDS", 1)  # however busy this machine is
    chosen = prefetch._measured(TEAM, isa)
    assert chosen is not None
    assert chosen._replace(next_page=True) in (*CANDIDATES, before)
    assert prefetch.current(TEAM) == before


def test_the_environment_pins(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STERNA_READING", "3,1024,0")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "STERNA_READING"
    assert prefetch.current(TEAM) == (3, 1024, 0, True)
    monkeypatch.setenv("STERNA_READING", "3,1024,0,0")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "STERNA_READING"
    assert prefetch.current(TEAM) == (3, 1024, 0, False)


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "1,2",
        "a,b,c",
        "0,4096,0",
        "5,4096,0",
        "1,16,0",
        "1,4096,-1",
        "1,4096,0,2",
        "1,4096,0,1,1",
    ],
)
def test_what_is_no_reading_is_refused(
    text: str, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STERNA_READING", text)
    with pytest.raises(RequestError, match="STERNA_READING: must be streams,turn_bytes"):
        prefetch.prepare(TEAM, isa, 1 << 30)


@pytest.mark.parametrize("isa_name", _native.isas())
def test_no_reading_changes_a_bit(isa_name: str, cache: Path) -> None:
    """Every format x 1 to 17 tokens: one digest for all readings, odd ones included."""
    rng = np.random.default_rng(5)
    readings = [*CANDIDATES, Reading(3, 256, 0), Reading(2, 777, 100_000), Reading(4, 32768, 64)]
    counts = (1, 2, 5, 7, 9, 16, 17)
    for name in formats.names():
        weight = ops.quantize(rng.standard_normal((200, 512)).astype(np.float32), name)
        x = rng.standard_normal((max(counts), 512)).astype(np.float32)
        digests = set()
        for way in readings:
            _native.set_reading(TEAM, *way)
            digest = hashlib.sha256()
            for n in counts:
                y = ops.linear(x[:n], weight, isa=isa_name, threads=TEAM)
                digest.update(y.tobytes())
            digests.add(digest.hexdigest())
        assert len(digests) == 1, name


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("isa_name", _native.isas())
def test_pages_asked_for_or_not_are_the_same_bits(
    isa_name: str, kv_dtype: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of six pages and then a token: within a chunk, at its end and at the context's."""
    model, digests = random_model("tiny"), set()
    for pinned in ("1,4096,4096,0", "1,4096,4096,1"):
        monkeypatch.setenv("STERNA_READING", pinned)
        engine, sequence = Engine(model, isa=isa_name, threads=2, kv_dtype=kv_dtype), Sequence()
        digest = hashlib.sha256()
        for tokens in (range(383), [7], [8], [9]):
            digest.update(engine.step([(sequence, tokens, 1)])[0].tobytes())
        digests.add(digest.hexdigest())
    assert len(digests) == 1


def test_the_timer_reads_all_its_pages(cache: Path) -> None:
    timer = _native.AttentionTimer(2, 64, 256, "i8")
    assert timer.bytes == 256 * _native.kv_bytes(1, 2, 64, "i8")
    assert timer.seconds(_native.isas()[-1], TEAM, 4) > 0
    with pytest.raises(ValueError, match="whole pages"):
        _native.AttentionTimer(2, 64, 100, "i8")
    with pytest.raises(ValueError, match="queries_per_kv"):
        timer.seconds(_native.isas()[-1], TEAM, 257)
