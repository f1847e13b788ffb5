"""The thread pool: its barrier, and how work is divided among threads of different speed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from helpers import failure

from sterna import _native
from sterna.bench import barrier
from sterna.cli import main
from sterna.errors import RequestError
from sterna.runtime import Threads

# ------------------------------------------------------------------------------------ the barrier


def test_barrier_rows() -> None:
    """Every count that was asked for, with the fields of the other benchmarks empty."""
    rows = barrier.run([1, 3, 2])
    assert [row["threads"] for row in rows] == [1, 3, 2]
    for row in rows:
        assert 0 < row["barrier_ns"] < 1e9
        assert row["format"] is row["shape"] is row["gb_s"] is row["fraction_of_peak"] is None


def test_barrier_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of two, and the default number itself."""
    monkeypatch.setenv("STERNA_THREADS", "6")
    monkeypatch.delenv("STERNA_CORES", raising=False)
    monkeypatch.setattr(_native, "barrier_ns", lambda threads, rounds: 170.0)
    assert [row["threads"] for row in barrier.run()] == [1, 2, 4, 6]


def test_barrier_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fake(threads: Threads, rounds: int) -> float:
        asked.append((int(threads), threads.cpus))
        return 170.25

    monkeypatch.setattr(_native, "barrier_ns", fake)
    cpu = _native.topology()["cpus"][0]
    result = CliRunner().invoke(main, f"bench barrier --threads 1 --cores {cpu} --json".split())
    (row,) = json.loads(result.stdout)
    assert (row["threads"], row["barrier_ns"], row["isa"]) == (1, 170.2, None)
    assert asked == [(1, (cpu,))]
    assert "170" in CliRunner().invoke(main, ["bench", "barrier", "--threads", "1,2"]).stdout
    for flags in ("--threads 1,x", "--threads 0", "--threads 2 --cores 0", "--cores slow"):
        result = CliRunner().invoke(main, ["bench", "barrier", *flags.split()])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), flags


def test_bad_barriers() -> None:
    failure(lambda: barrier.run([0]), RequestError, "threads", "0")
    failure(lambda: barrier.run("12"), RequestError, "threads", "12")
    with pytest.raises(ValueError, match="rounds"):
        _native.barrier_ns(1, 0)


@pytest.mark.parametrize("threads", [1, 2, 4, 5, 8])
def test_a_barrier_separates(threads: int) -> None:
    """Nobody enters a round before all have left the one before, in small teams and large ones."""
    assert _native.barrier_holds(threads, 3000)
