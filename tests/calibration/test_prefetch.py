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
from sterna.calibration import measured, memory_trials, prefetch
from sterna.calibration.measured import GAIN, kept, place, usual_seconds
from sterna.calibration.memory_trials import CANDIDATES, Mood
from sterna.calibration.prefetch import FAR, MOST_MOODS, choose
from sterna.calibration.readings import Reading, Readings, current
from sterna.engine import KV_DTYPES, Engine, Sequence
from sterna.errors import RequestError
from sterna.runtime import Threads

ONE, FOUR = Reading(1, 4096, 4096), Reading(4, 512, 2048)
DEFAULT = Readings(FOUR, FOUR, True)
TEAM = Threads(2)


def mood(gb_s: float = 30.0, few: float = 1.0, many: float = 1.0, pages: float = 1.0) -> Mood:
    """ONE costs `few` and `many` times what FOUR does, all others more; no page ahead `pages`."""

    def costs(kind: str, of_one: float) -> dict[str, float]:
        others = {str(way): 9.0 for way in CANDIDATES[kind]}
        return {**others, str(FOUR): 1.0, str(ONE): of_one}

    return Mood(
        gb_s, costs("few_bits", few), costs("many_bits", many), {"True": 1.0, "False": pages}
    )


def test_the_cheapest_is_chosen_of_each() -> None:
    assert choose([mood(few=0.8, many=1.2)], DEFAULT) == (ONE, FOUR, True)
    assert choose([mood(few=1.2, many=0.8)], DEFAULT) == (FOUR, ONE, True)
    assert choose([mood(few=1.2, many=1.2, pages=0.8)], DEFAULT) == (FOUR, FOUR, False)


def test_the_default_stays_within_noise() -> None:
    assert choose([mood(few=1.001 / GAIN)], DEFAULT).few_bits == FOUR
    assert choose([mood(few=0.999 / GAIN)], DEFAULT).few_bits == ONE


def test_the_default_may_be_no_candidate() -> None:
    odd = Reading(3, 512, 0)
    assert choose([mood(few=1.2, many=0.5)], Readings(odd, odd)) == (FOUR, ONE, True)


def test_all_measurements_count() -> None:
    """ONE gains a little in slow memory and loses more in fast."""
    slow, fast = mood(30, few=0.9), mood(60, few=1.3)
    assert choose([slow], DEFAULT).few_bits == ONE
    assert choose([slow, fast], DEFAULT).few_bits == FOUR


def test_a_readings_text_is_read_again() -> None:
    for way in (*CANDIDATES["few_bits"], *CANDIDATES["many_bits"]):
        assert Reading.parse(str(way)) == way


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


def usual(clock: Clock, budget_s: float) -> dict[Reading, float] | None:
    return usual_seconds([FOUR, ONE], clock.read, budget_s, clock)


def test_rounds_take_turns_and_end_with_the_budget() -> None:
    clock = Clock({ONE: 0.010, FOUR: 0.015})
    assert usual(clock, 0.135) == {FOUR: 0.015, ONE: 0.010}
    assert clock.asked == [FOUR, ONE] * 5  # 25 ms each: a sixth round would end at 150 ms


def test_a_busy_machine_decides_nothing() -> None:
    clock = Clock({ONE: 0.010, FOUR: 0.015})
    assert usual(clock, 0.11) is None  # four rounds
    clock = Clock({ONE: 3.0, FOUR: 4.0})
    assert usual(clock, 0.11) is None
    assert len(clock.asked) == 2  # one round whatever it costs


def test_disturbed_rounds_decide_nothing() -> None:
    """A slow first round, and other work that slows two rounds of three of the faster one."""
    times = {ONE: itertools.chain([0.090], itertools.cycle([0.010, 0.020, 0.030])),
             FOUR: itertools.repeat(0.012)}  # fmt: skip
    rounds = itertools.count()
    seconds = usual_seconds([FOUR, ONE], lambda r: next(times[r]), 24, lambda: next(rounds))
    assert seconds == {FOUR: 0.012, ONE: 0.010}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, nothing prepared, and everything as it was afterwards."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STERNA_READING", raising=False)
    monkeypatch.setattr(prefetch, "_prepared", set())
    before = current(TEAM)
    DEFAULT.set(TEAM)
    yield tmp_path / "cache" / "measured.json"
    before.set(TEAM)


@pytest.fixture
def isa() -> str:
    if len(_native.isas()) < 2:
        pytest.skip("this CPU has no vector unit, and `scalar` is never measured")
    return _native.isas()[-1]


def measured_as(monkeypatch: pytest.MonkeyPatch, *results: Mood | None) -> list[str]:
    """Each measurement finds the next of the results; the units that measured."""
    calls: list[str] = []
    left = iter(results)

    def fake(_: Threads, isa: str) -> Mood | None:
        calls.append(isa)
        return next(left)

    monkeypatch.setattr(prefetch, "measured", fake)
    return calls


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    DEFAULT.set(TEAM)
    monkeypatch.setattr(prefetch, "_prepared", set())


def test_measured_once_and_kept(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = mood(few=0.5)
    calls = measured_as(monkeypatch, found)
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"
    assert current(TEAM) == (ONE, FOUR, True)
    assert json.loads(cache.read_text()) == {place(TEAM): {"reading of memory": [found._asdict()]}}
    another_process(monkeypatch)
    assert prefetch.prepare(TEAM, isa, 0) == "measured"  # however small the model
    assert current(TEAM) == (ONE, FOUR, True)
    assert calls == [isa]


def test_each_team_has_its_own(cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_as(monkeypatch, mood(few=0.5), mood(many=0.5))
    prefetch.prepare(TEAM, isa, 1 << 30)
    prefetch.prepare(Threads(1), isa, 1 << 30)
    for team, found in ((TEAM, mood(few=0.5)), (Threads(1), mood(many=0.5))):
        assert kept("reading of memory", place(team)) == [found._asdict()]


def test_measured_again_where_memory_has_another_speed(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until there are enough measurements; of a model that no cache holds."""
    speeds = [30.0 * (FAR * 1.01) ** i for i in range(MOST_MOODS + 1)]
    now = iter([speeds[0] * 1.2, speeds[0] / 1.2, *speeds[1:]])
    calls = measured_as(monkeypatch, mood(30, few=0.9), *(mood(s, few=1.3) for s in speeds[1:]))
    monkeypatch.setattr(_native, "read_gb_s", lambda *_: next(now))
    monkeypatch.setattr(prefetch, "cache_bytes", lambda: {3: 1 << 20})
    weights = [np.zeros((4, 8 << 20), np.uint8)] * 3
    measurements = [1, 1, 1, 2, 3, 3, 3]
    chosen = []
    for count in measurements:
        another_process(monkeypatch)
        assert prefetch.prepare(TEAM, isa, 1 << 30, weights) == "measured"
        assert len(calls) == count
        chosen.append(current(TEAM).few_bits)
    assert chosen == [ONE] * 3 + [FOUR] * 4


def test_what_a_cache_may_hold_tells_no_speed(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, mood())
    monkeypatch.setattr(_native, "read_gb_s", lambda *_: 1e3)
    monkeypatch.setattr(prefetch, "cache_bytes", lambda: {3: 1 << 30})
    for weights in ([np.zeros(64 << 20, np.uint8)], []):
        another_process(monkeypatch)
        prefetch.prepare(TEAM, isa, 1 << 30, weights)
    assert len(calls) == 1


def test_memory_is_read_where_it_lies() -> None:
    """Arrays of any size and begin, each thread a part; a speed is a speed."""
    arrays = [np.ones(1 << 20, np.uint8)[odd:] for odd in (0, 1, 33, 63)]
    assert 0.01 < _native.read_gb_s(TEAM, arrays) < 1e5
    with pytest.raises(ValueError, match="arrays: must have bytes"):
        _native.read_gb_s(TEAM, [np.ones(100, np.uint8)])


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[1]", '{"a": 1}', '{"NAME": 1}', '{"NAME": "x"}', "\x00", "[" * 9999),
        *('{"NAME": {"WHAT": [9, 9]}}', '{"NAME": {"WHAT": {"gb_s": 1}}}'),
        '{"NAME": {"WHAT": [{"gb_s": 1, "few_bits": {}, "many_bits": {}, "next_page": {}}]}}',
    ],
)
def test_a_damaged_file_counts_as_none(
    text: str, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch, mood())
    cache.parent.mkdir()
    cache.write_text(text.replace("NAME", place(TEAM)).replace("WHAT", "reading of memory"))
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"
    assert calls == [isa]
    assert measured._read(cache)[place(TEAM)] == {"reading of memory": [mood()._asdict()]}


def test_small_models_no_cache_and_scalar_are_not_measured(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = measured_as(monkeypatch)
    assert prefetch.prepare(TEAM, isa, 1 << 20) == "default"
    assert prefetch.prepare(TEAM, "scalar", 1 << 30) == "default"
    monkeypatch.setenv("STERNA_CACHE", "off")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "default"
    assert not calls


def test_a_cache_that_cannot_be_written_is_no_error(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as(monkeypatch, mood())
    cache.parent.write_text("a file where the folder should be")
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "measured"


def test_what_could_not_be_measured_leaves_the_default(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_as(monkeypatch, None)
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "default"
    assert not cache.exists()


def test_a_real_measurement_has_all_candidates(
    cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "LEAST_ROUNDS", 1)  # however busy this machine is
    found = memory_trials.measured(TEAM, isa)
    assert found is not None
    assert prefetch._checked([found._asdict()]) == [found]
    assert min(found.few_bits.values()) == min(found.many_bits.values()) == 1
    assert current(TEAM) == DEFAULT


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3,1024,0", Readings(Reading(3, 1024, 0), Reading(3, 1024, 0), True)),
        ("3,1024,0,0", Readings(Reading(3, 1024, 0), Reading(3, 1024, 0), False)),
        ("1,4096,4096;1,4096,1280L2", Readings(ONE, Reading(1, 4096, 1280, True), True)),
        ("1,4096,4096;4,512,2048,0", Readings(ONE, FOUR, False)),
    ],
)
def test_the_environment_pins(
    text: str, expected: Readings, cache: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STERNA_READING", text)
    assert prefetch.prepare(TEAM, isa, 1 << 30) == "STERNA_READING"
    assert current(TEAM) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("1", "1,2", "a,b,c", "0,4096,0", "5,4096,0", "1,16,0", "1,4096,-1", "1,4096,0,2"),
        *("1,4096,0,1,1", "1,4096,0;", "1,4096,0;1,4096,0;1,4096,0", "1,4096,0,0;1,4096,0"),
        "1,4096,L2",
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
    odd = Reading(3, 256, 0), Reading(2, 777, 100_000, True), Reading(4, 32768, 64)
    readings = {*CANDIDATES["few_bits"], *CANDIDATES["many_bits"], *odd}
    # The scalar unit is slow, so it has few rows, and one count of each way.
    counts = (1, 2, 5, 7, 9, 16, 17) if isa_name != "scalar" else (1, 5, 17)
    rows = 200 if isa_name != "scalar" else 40
    for name in formats.names():
        weight = ops.quantize(rng.standard_normal((rows, 512)).astype(np.float32), name)
        x = rng.standard_normal((max(counts), 512)).astype(np.float32)
        digests = set()
        for way in readings:
            Readings(way, way).set(TEAM)
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
    """A prompt of six pages, for scalar of one, and then tokens: within a chunk, at its end and at
    the context's.
    """
    model, digests = random_model("tiny"), set()
    prompt = range(383 if isa_name != "scalar" else 63)  # which is slow
    for pinned in ("1,4096,4096,0", "1,4096,4096,1"):
        monkeypatch.setenv("STERNA_READING", pinned)
        engine, sequence = Engine(model, isa=isa_name, threads=2, kv_dtype=kv_dtype), Sequence()
        digest = hashlib.sha256()
        for tokens in (prompt, [7], [8], [9]):
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
