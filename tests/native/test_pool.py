"""The thread pool: its barrier, and how work is divided among threads of different speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from helpers import failure
from waits import HANGS_S

from sterna import _native, _testing
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


@pytest.mark.parametrize("threads", [1, 2, 4, 5, 8, 16, 64])
def test_a_barrier_separates(threads: int) -> None:
    """Nobody enters a round before all have left the one before, in small teams and large ones."""
    assert _testing.barrier_holds(threads, 3000 if threads <= 8 else 100)


#: Drives both threads onto one CPU and lets them go, until they have parted within a run three
#: times, or a hundred times.
CROWDED = """
import os, threading
from sterna import _native

first = threading.Thread()  # with which a thread sanitizer starts one of its own
first.start()
first.join()
cpus, before = sorted(os.sched_getaffinity(0))[:2], set(os.listdir("/proc/self/task"))
_native.barrier_ns(2, 10)
threads = [os.getpid(), *(int(t) for t in set(os.listdir("/proc/self/task")) - before)]
assert len(threads) == 2


def run_on(allowed):
    for thread in threads:
        os.sched_setaffinity(thread, allowed)
    _native.barrier_ns(2, 10)


def cpu_of(thread):
    with open(f"/proc/self/task/{thread}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[36])


parted = 0
for _ in range(100):
    if parted == 3:
        break
    run_on(cpus[:1])
    run_on(cpus)
    parted += cpu_of(threads[0]) != cpu_of(threads[1])
    assert os.sched_getaffinity(threads[1]) == set(cpus)
print(parted)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_threads_on_one_cpu_part() -> None:
    """A neighbour that drives two threads onto one CPU does not leave them there: they would take
    turns at half the speed, which the system sees as the load of one."""
    done = subprocess.run(
        [sys.executable, "-c", CROWDED],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3  # 0 of 20 without; whoever takes a CPU may keep them from parting


# ----------------------------------------------------------------------- threads of unequal speed

#: The matrices of a BitNet-2B layer and its head, rows x columns, and bits of a weight.
SHAPES = {
    "qkv": (3840, 2560, 2),
    "o": (2560, 2560, 2),
    "gate and up": (13824, 2560, 2),
    "down": (2560, 6912, 2),
    "head, bf16": (128256, 2560, 16),
    "head, int8": (128256, 2560, 8),
}


def tiles_of(shape: tuple[int, int, int]) -> tuple[int, int]:
    """Tiles of 64 rows, and bytes of a tile."""
    rows, columns, bits = shape
    return -(-rows // 64), 64 * columns * bits // 8


def loss(makespan: float, tiles: int, slowdown: list[int]) -> float:
    """Time beyond that of workers who end together, as a part of it."""
    ideal = tiles / sum(1 / s for s in slowdown)
    return makespan / ideal - 1


def dynamic(tiles: int, tokens: int, slowdown: list[int]) -> int:
    """When the last worker is done, with the chunks that programs use."""
    shares = _testing.rehearse(tiles, tokens, slowdown)
    assert sum(taken for taken, _ in shares) == tiles
    assert [time for _, time in shares] == [
        taken * s for (taken, _), s in zip(shares, slowdown, strict=True)
    ]
    return max(time for _, time in shares)


def static(tiles: int, slowdown: list[int]) -> int:
    """The time with an even division made beforehand."""
    n = len(slowdown)
    return max((tiles * (i + 1) // n - tiles * i // n) * s for i, s in enumerate(slowdown))


@pytest.mark.parametrize("tokens", [1, 8, 512])
@pytest.mark.parametrize("slow", [0, -1], ids=["the caller", "the last worker"])
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_one_worker_at_half_speed(name: str, threads: int, slow: int, tokens: int) -> None:
    """Dynamic chunks lose at most 15 %, where an even split loses at least 40."""
    tiles, _ = tiles_of(SHAPES[name])
    slowdown = [1] * threads
    slowdown[slow] = 2
    assert loss(dynamic(tiles, tokens, slowdown), tiles, slowdown) <= 0.15
    assert loss(static(tiles, slowdown), tiles, slowdown) >= 0.40


@pytest.mark.parametrize("tokens", [1, 512])
@pytest.mark.parametrize("threads", [8, 16, 64])
@pytest.mark.parametrize("name", SHAPES)
def test_many_workers(name: str, threads: int, tokens: int) -> None:
    """With one at half speed, they end at most a tile of its later: "o" has fewer tiles than 64."""
    tiles, _ = tiles_of(SHAPES[name])
    slowdown = [2] + [1] * (threads - 1)
    ideal = tiles / sum(1 / s for s in slowdown)
    assert dynamic(tiles, tokens, slowdown) <= 1.15 * ideal + 2


@pytest.mark.parametrize("slowdown", [[3, 1], [1, 5], [1, 2, 1, 2], [1] * 7 + [3], [2, 3] * 4])
def test_a_token_on_mixed_cores(slowdown: list[int]) -> None:
    """Over the matrices that a token reads, whatever the mixture, weighted by their bytes."""
    took = ideal = 0.0
    for shape in SHAPES.values():
        tiles, tile_bytes = tiles_of(shape)
        made = dynamic(tiles, 1, slowdown)
        took += made * tile_bytes
        ideal += made / (1 + loss(made, tiles, slowdown)) * tile_bytes
    assert took <= 1.15 * ideal


def test_equal_workers_share_evenly() -> None:
    """No chunk is so large that one of them is left without work."""
    for threads in (1, 2, 4, 8):
        tiles, _ = tiles_of(SHAPES["o"])
        shares = _testing.rehearse(tiles, 1, [1] * threads)
        assert max(time for _, time in shares) <= 1.15 * tiles / threads, threads


def test_a_rehearsal_is_no_measurement() -> None:
    """The same division every time, and the least possible one for chunks of one tile."""
    shares = [_testing.rehearse(40, 512, [1, 2]) for _ in range(5)]
    assert shares == [[(27, 27), (13, 26)]] * 5
    assert _testing.rehearse(0, 1, [1, 1]) == [(0, 0), (0, 0)]
    with pytest.raises(ValueError, match="slowdown"):
        _testing.rehearse(1, 1, [])
