"""How many threads follow from a machine and the options, and on which CPUs they run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import failure
from sysfs_tree import Tree, intel_hybrid, quota

from sterna import LLM, _native, _testing, runtime
from sterna.engine import Engine
from sterna.errors import RequestError
from sterna.runtime import Threads, resolve_threads

MACHINE = sorted(_native.topology()["cpus"])  # those this process may use

# ------------------------------------------------------------------------------------ the policy


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tree, list[int]], None]:
    """Puts the process on another machine, with nothing set in the environment."""
    for name in ("STERNA_THREADS", "STERNA_CORES"):
        monkeypatch.delenv(name, raising=False)

    def put(tree: Tree, allowed: list[int]) -> None:
        topology = tree.read(allowed)
        monkeypatch.setattr(runtime, "_topology", lambda _: topology)

    return put


def resolved(threads: int | None = None, cores: str | None = None) -> Any:
    team = resolve_threads(threads, cores)
    return int(team), list(team.cpus), team.pinned


Put = Callable[[Tree, list[int]], None]


def test_the_default_is_a_thread_for_each_core(tree: Tree, on: Put) -> None:
    """Cores of both kinds have threads: dynamic chunks balance them."""
    on(intel_hybrid(tree), list(range(14)))
    assert resolved() == (10, [], False)
    assert resolved(cores="all") == (10, [], False)
    assert resolved(threads=3) == (3, [], False)
    assert resolved(threads=20) == (20, [], False)  # no set was asked for
    assert resolved(threads=14, cores="all") == (14, [], False)  # siblings count
    failure(lambda: resolved(15, "all"), RequestError, "threads", "14", "15")


def test_the_machine_is_read_once_for_a_set_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes longer than a small layer, and `ops.linear` asks for threads each time."""
    for name in ("STERNA_THREADS", "STERNA_CORES"):
        monkeypatch.delenv(name, raising=False)
    real, reads = _native.topology(), []
    runtime._topology.cache_clear()
    monkeypatch.setattr(_native, "topology", lambda: reads.append(1) or real)
    for allowed in ({0}, {0}, {0, 1}, {0}):
        monkeypatch.setattr(runtime, "allowed_cpus", lambda allowed=allowed: frozenset(allowed))
        assert resolved()[0] >= 1
    assert len(reads) == 2
    runtime._topology.cache_clear()


def test_performance_cores(tree: Tree, on: Put) -> None:
    on(intel_hybrid(tree), list(range(1, 14)))
    assert resolved(cores="performance") == (4, [1, 2, 3, 4, 5, 6, 7], False)
    assert resolved(7, "performance") == (7, [1, 2, 3, 4, 5, 6, 7], False)
    failure(lambda: resolved(8, "performance"), RequestError, "threads", "7", "8")


def test_performance_cores_where_all_are_alike(tree: Tree, on: Put) -> None:
    on(tree, [0, 1, 2])
    assert resolved(cores="performance") == (3, [], False)


def test_performance_cores_where_there_is_none(tree: Tree, on: Put) -> None:
    on(intel_hybrid(tree), [9, 10])
    failure(lambda: resolved(cores="performance"), RequestError, "cores", "9-10", "all")


def test_a_list(tree: Tree, on: Put) -> None:
    """One thread each, pinned, in ascending order and once each; fewer take the first."""
    on(intel_hybrid(tree), list(range(14)))
    assert resolved(cores="8,0-2") == (4, [0, 1, 2, 8], True)
    assert resolved(2, "8,0-2") == (2, [0, 1], True)
    failure(lambda: resolved(5, "8,0-2"), RequestError, "threads", "4", "5")
    failure(lambda: resolved(cores="13-14"), RequestError, "cores", "0-13", "13-14")


@pytest.mark.parametrize(
    "cores", ["", "fast", "ALL", "0-", "-1", "1-0", "0,,1", "0 1", "0-99999999999", "٣", "0\n"]
)
def test_bad_lists(tree: Tree, on: Put, cores: str) -> None:
    on(tree, [0, 1])
    failure(lambda: resolved(cores=cores), RequestError, "cores", "performance", repr(cores))


@pytest.mark.parametrize("cores", [0, True, [0], b"0", 1.5])
def test_cores_is_a_string(tree: Tree, on: Put, cores: Any) -> None:
    on(tree, [0, 1])
    failure(lambda: resolved(cores=cores), RequestError, "cores", repr(cores))


def test_the_quota_caps_what_was_not_asked_for(tree: Tree, on: Put) -> None:
    quota(intel_hybrid(tree), {"/a": "250000 100000"})
    on(tree, list(range(14)))
    assert resolved() == (3, [], False)
    assert resolved(cores="performance")[0] == 3
    assert resolved(cores="0-5")[0] == 6
    assert resolved(threads=8)[0] == 8


def test_the_environment(tree: Tree, on: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in for arguments that were not given, and is named where it is wrong."""
    on(intel_hybrid(tree), list(range(14)))
    monkeypatch.setenv("STERNA_CORES", "4-6")
    assert resolved() == (3, [4, 5, 6], True)
    assert resolved(2) == (2, [4, 5], True)
    assert resolved(cores="performance")[0] == 4
    monkeypatch.setenv("STERNA_THREADS", "4")
    failure(resolved, RequestError, "STERNA_THREADS", "STERNA_CORES", "4-6")
    assert resolved(3) == (3, [4, 5, 6], True)
    monkeypatch.setenv("STERNA_CORES", "many")
    failure(lambda: resolved(3), RequestError, "STERNA_CORES", "many")
    monkeypatch.setenv("STERNA_CORES", "")
    assert resolved() == (4, [], False)


def test_what_is_resolved_stays(tree: Tree, on: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passing it on must not ask the environment again; a new choice of cores may."""
    on(intel_hybrid(tree), list(range(14)))
    team = Threads(2, (8, 9), True)
    monkeypatch.setenv("STERNA_CORES", "performance")
    assert resolve_threads(team) is team
    assert resolved(team, "0-3") == (2, [0, 1], True)


# ------------------------------------------------------------------------------------ the threads


def test_threads_run_where_they_should() -> None:
    """Each pinned thread on its CPU, the others on any of the set; the caller only for the run."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("threads are placed on Linux only")
    before = os.sched_getaffinity(0)
    first, last = MACHINE[0], MACHINE[-1]
    assert _testing.pool_cpus(Threads(1, (last,), True)) == [[last]]
    assert os.sched_getaffinity(0) == before
    both = (first, last)
    assert _testing.pool_cpus(Threads(2, both, True)) == [[first], [last]]
    assert _testing.pool_cpus(Threads(2, both[:1], False)) == [[first], [first]]
    assert _testing.pool_cpus(Threads(3, both, False)) == [sorted(set(both))] * 3
    assert _testing.pool_cpus(Threads(2)) == [MACHINE] * 2  # not what another pool was given
    assert _testing.pool_cpus(2) == [MACHINE] * 2
    assert os.sched_getaffinity(0) == before


def test_a_caller_that_is_there_already() -> None:
    """Its CPUs stay what they were, and workers do not inherit them."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("threads are placed on Linux only")
    first, last = MACHINE[0], MACHINE[-1]
    try:
        os.sched_setaffinity(0, {last})
        assert _testing.pool_cpus(Threads(2, (last, first), True)) == [[last], [first]]
        assert os.sched_getaffinity(0) == {last}
    finally:
        os.sched_setaffinity(0, MACHINE)


def test_a_forked_child_is_placed_too() -> None:
    """Its pool has workers of its own, on the same CPUs."""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("threads are placed on Linux only")
    team, last = Threads(2, (MACHINE[-1],), False), MACHINE[-1]
    assert _testing.pool_cpus(team) == [[last]] * 2
    child = os.fork()
    if child == 0:
        os._exit(0 if _testing.pool_cpus(team) == [[last]] * 2 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_cpu_that_is_gone() -> None:
    """A thread whose CPU the system refuses runs all the same."""
    assert _testing.pool_cpus(Threads(2, (8190, 8191), True)) == [MACHINE] * 2


def test_a_pool_needs_a_cpu_for_each_pinned_thread() -> None:
    with pytest.raises(ValueError, match="pinned"):
        _testing.pool_cpus(Threads(2, (0,), True))


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**30])
def test_threads_out_of_range(threads: int) -> None:
    with pytest.raises(ValueError, match="threads"):
        _testing.pool_cpus(threads)


def test_a_model_on_a_list(checkpoint: Callable[[str], Path]) -> None:
    """`cores` of LLM and Engine arrives at the pool, and changes no bit."""
    folder = checkpoint("bitnet-multiply")
    last = MACHINE[-1]
    llm = LLM(folder, cores=str(last))
    assert (llm.engine.threads, llm.engine.threads.cpus) == (1, (last,))
    assert llm.info()["threads"] == 1
    plain = LLM(folder, threads=1)
    assert llm.generate([5, 6, 7], max_tokens=8).tokens == (
        plain.generate([5, 6, 7], max_tokens=8).tokens
    )
    engine = Engine(plain.engine.model, cores=str(last))
    assert engine.threads.pinned
    failure(lambda: LLM(folder, cores="8191"), RequestError, "cores", "8191")
    failure(lambda: LLM(folder, threads=2, cores=str(last)), RequestError, "threads")
