"""What benchmarks say of a machine that did something else at the same time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import command

from sterna import _native
from sterna.bench import machine
from sterna.bench.machine import OtherLoad
from sterna.calibration import bandwidth
from sterna.files import system
from sterna.runtime import resolve_threads

pytestmark = pytest.mark.usefixtures("little_bandwidth")
GEMV = ("gemv", "--shapes", "64x512", "--formats", "i2", "--repeat", "1", "--threads", "1",
        "--working-set", "1")  # fmt: skip


def test_ratios_of_a_busy_machine_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.42)
    result = command("bench", *GEMV, "--json")
    (row,) = json.loads(result.stdout)
    assert row["others_share"] == 0.42
    assert (row["fraction_of_bandwidth"], row["fraction_of_peak"]) == (None, None)
    assert row["gb_s"] > 0
    assert "other programs took 42% of the CPU time" in result.stderr
    assert "--anyway" in result.stderr


def test_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OtherLoad, "share", lambda self: 0.42)
    result = command("bench", *GEMV, "--json", "--anyway")
    (row,) = json.loads(result.stdout)
    assert row["fraction_of_bandwidth"] > 0
    assert "ratios mean little" in result.stderr


def test_memory_that_was_faster_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`sterna info` and benchmarks keep the best that they measured."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path))
    team, speeds = resolve_threads(1), iter([20.0, 10.0])
    monkeypatch.setattr(_native, "bandwidth_gb_s", lambda threads, nbytes: next(speeds))
    assert bandwidth.measure_bandwidth(team) == bandwidth.best_bandwidth(team) == 20.0
    assert (bandwidth.measure_bandwidth(team), bandwidth.best_bandwidth(team)) == (10.0, 20.0)
    monkeypatch.setattr(_native, "bandwidth_gb_s", lambda threads, nbytes: 10.0)
    result = command("bench", *GEMV, "--json")
    assert json.loads(result.stdout)[0]["fraction_of_bandwidth"] is None
    assert "memory gave 10.0 GB/s, after 20.0 at its best" in result.stderr


@pytest.mark.parametrize(
    ("own_s", "all_s", "share"),
    [(2.0, 2.0, 0.0), (1.0, 2.0, 0.5), (3.0, 2.0, 0.0), (0.0, 9.0, 1.0), (1.0, None, None)],
)
def test_the_share_of_others(
    monkeypatch: pytest.MonkeyPatch, own_s: float, all_s: float | None, share: float | None
) -> None:
    """A second of two CPUs, in which this process took own_s and all programs together all_s."""
    monkeypatch.undo()
    now = [0.0, 0.0, 0.0 if all_s is not None else None]
    monkeypatch.setattr(OtherLoad, "_now", staticmethod(lambda: tuple(now)))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    load = OtherLoad()
    now[:] = [1.0, own_s, all_s]
    assert load.share() == share


def test_the_time_of_all_programs_rises() -> None:
    before = system.busy_seconds()
    if before is None:
        pytest.skip("this system does not say what all programs took")
    sum(range(3_000_000))  # some tens of milliseconds: several ticks
    assert system.busy_seconds() > before
