"""The parts of a processor, read from made-up file trees."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sysfs_tree import CPUS, Tree, intel_hybrid, quota

from sterna import _native, _testing
from sterna.runtime import cpu_list


def kinds(topology: Any) -> tuple[list[list[int]], list[list[int]]]:
    """CPUs of the performance cores, and of the efficiency cores."""
    cores = topology["cores"]
    return (
        [core["cpus"] for core in cores if core["performance"]],
        [core["cpus"] for core in cores if not core["performance"]],
    )


# ------------------------------------------------------------------------------------- the lists


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8,10-11", [0, 1, 2, 3, 8, 10, 11]),
        ("5\n", [5]),
        (" 2 , 0-1 \t\n", [0, 1, 2]),
        ("3-1,7", [7]),
        ("", []),
        ("\n", []),
        (",,4,", [4]),
        ("a,1,-2,3-,-,4-x,0x5,6", [1, 6]),
        ("0-99999999999999999999,1", [1]),
        ("0-8192,8191", [8191]),  # more CPUs than any kernel has
        ("1\0002,3", [3]),
    ],
)
def test_lists_of_the_kernel(text: str, cpus: list[int]) -> None:
    assert _testing.parse_cpu_list(text) == cpus


@given(st.sets(st.integers(0, 300)))
def test_lists_there_and_back(cpus: set[int]) -> None:
    assert _testing.parse_cpu_list(cpu_list(cpus)) == sorted(cpus)


@given(st.text("0123456789-, \nx", max_size=40))
def test_damaged_lists_are_no_crash(text: str) -> None:
    cpus = _testing.parse_cpu_list(text)
    assert cpus == sorted(set(cpus))
    assert all(0 <= cpu < 8192 for cpu in cpus)


# ----------------------------------------------------------------------------------- the machine


def test_intel_hybrid(tree: Tree) -> None:
    """Siblings share a core; what is not in cpu_core is an efficiency core."""
    topology = intel_hybrid(tree).read(list(range(14)))
    fast, slow = kinds(topology)
    assert fast == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert slow == [[8], [9], [10], [11], [12], [13]]
    assert topology["cpu_quota"] == 0


def test_the_affinity_restricts_all_of_it(tree: Tree) -> None:
    """Half a core is a core; the kinds are those of the machine, not of what is left of it."""
    tree = intel_hybrid(tree).write("sys/devices/system/node/node0/cpulist", "0-13\n")
    topology = tree.read([13, 3, 9, 3])
    assert topology["cpus"] == [3, 9, 13]
    assert kinds(topology) == ([[3]], [[9], [13]])
    assert topology["nodes"] == [{"id": 0, "cpus": [3, 9, 13]}]
    assert kinds(tree.read([8, 9])) == ([], [[8], [9]])


def test_siblings_far_apart(tree: Tree) -> None:
    """Servers number the second threads after all the first ones."""
    for cpu in range(8):
        tree.cpu(cpu, f"{cpu % 4},{cpu % 4 + 4}")
    assert kinds(tree.read(list(range(8))))[0] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize("file", ["cpu_capacity", "acpi_cppc__highest_perf"])
def test_three_kinds_of_arm_cores(tree: Tree, file: str) -> None:
    """The widest step divides: the middle cores are no efficiency cores."""
    for cpu, value in enumerate([330, 330, 760, 760, 760, 1024]):
        tree.cpu(cpu, str(cpu), **{file: value})
    assert kinds(tree.read(list(range(6)))) == ([[2], [3], [4], [5]], [[0], [1]])


def test_the_next_file_where_one_does_not_tell(tree: Tree) -> None:
    """Capacities all alike (a kernel that does not know) leave it to the clock."""
    for cpu, khz in enumerate([5_100_000, 5_100_000, 3_300_000, 3_300_000]):
        tree.cpu(cpu, str(cpu), cpu_capacity=1024, cpufreq__cpuinfo_max_freq=khz)
    assert kinds(tree.read([0, 1, 2, 3])) == ([[0], [1]], [[2], [3]])


def test_favoured_cores_are_no_kind_of_their_own(tree: Tree) -> None:
    """Cores of one kind are binned: single steps of up to 15 % mean nothing."""
    for cpu, value in enumerate([166, 161, 156, 151, 130]):
        tree.cpu(cpu, str(cpu), acpi_cppc__highest_perf=value)
    assert kinds(tree.read(list(range(5))))[1] == []


def test_a_cpu_without_a_rank_counts_as_fast(tree: Tree) -> None:
    """So do those that are offline (no folders) or that sysfs does not list at all."""
    tree.cpu(0, "0", cpu_capacity=1024).cpu(1, "1", cpu_capacity=400).cpu(2)
    assert kinds(tree.read([0, 1, 2, 9])) == ([[0], [2], [9]], [[1]])


def test_numa_nodes(tree: Tree) -> None:
    """Nodes by number, only with CPUs that may be used; one of memory alone has none."""
    for node, cpus in ((10, "4-7"), (0, "0-3"), (2, "\n"), (3, "8-11\n")):
        tree.write(f"sys/devices/system/node/node{node}/cpulist", cpus)
    tree.write("sys/devices/system/node/possible", "0-10")
    expected = [{"id": 0, "cpus": [2, 3]}, {"id": 10, "cpus": [4]}]
    assert tree.read([2, 3, 4])["nodes"] == expected


def test_a_cpu_belongs_to_one_node(tree: Tree) -> None:
    """Damaged lists neither repeat a CPU nor lose one."""
    for node, cpus in ((0, "0-1"), (1, "1-2"), (2, "rubbish")):
        tree.write(f"sys/devices/system/node/node{node}/cpulist", cpus)
    nodes = tree.read([0, 1, 2, 3])["nodes"]
    assert nodes == [{"id": 0, "cpus": [0, 1, 3]}, {"id": 1, "cpus": [2]}]


def test_nothing_there(tree: Tree) -> None:
    """Without sysfs every CPU is a core of its own, in one node."""
    topology = tree.read([0, 5])
    assert kinds(topology) == ([[0], [5]], [])
    assert topology["nodes"] == [{"id": 0, "cpus": [0, 5]}]
    assert tree.read([]) == {"cpus": [], "cores": [], "nodes": [], "cpu_quota": 0}


@pytest.mark.parametrize("rubbish", [b"", b"\n", b"\xff\xfe\0\0", b"-1\n", b"9" * 5000, b"7-0,x"])
def test_damaged_files(tree: Tree, rubbish: bytes) -> None:
    """With any contents, each CPU occurs once."""
    for cpu in range(4):
        tree.cpu(cpu)
        for name in ("cpu_capacity", "acpi_cppc/highest_perf", "topology/thread_siblings_list"):
            tree.write(f"{CPUS}/cpu{cpu}/{name}", rubbish)
    for name in ("cpu_core/cpus", "cpu_atom/cpus", "system/node/node0/cpulist"):
        tree.write(f"sys/devices/{name}", rubbish)
    for name in ("mountinfo", "cgroup"):
        tree.write(f"proc/self/{name}", rubbish)
    (tree.root / "sys/devices/system/node/node1/cpulist").mkdir(parents=True)  # not even a file
    topology = tree.read([0, 1, 2, 3])
    assert kinds(topology) == ([[0], [1], [2], [3]], [])
    assert topology["nodes"] == [{"id": 0, "cpus": [0, 1, 2, 3]}]
    assert topology["cpu_quota"] == 0


def test_the_least_quota_of_all_parents(tree: Tree) -> None:
    files = {"/a/b": "max 100000\n", "/a": "150000 100000\n", "": "400000 100000\n"}
    assert quota(tree, files) == 1.5


def test_a_quota_of_the_first_kind(tree: Tree) -> None:
    """cgroup v1 has two files, and a path that may begin with the mount's own."""
    mount = "30 23 0:26 /docker/x /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    tree.write("proc/self/mountinfo", mount).write("proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n")
    tree.write("cg/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
    tree.write("cg/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert tree.read([0])["cpu_quota"] == 2.5


def test_no_quota(tree: Tree) -> None:
    assert quota(tree, {"": "max 100000"}, group="/") == 0
    assert quota(tree, {"/a": "0 100000", "": "-1 0"}) == 0


def test_this_machine() -> None:
    """Every CPU of the affinity mask once, in cores and in nodes."""
    topology = _native.topology()
    for part in ("cores", "nodes"):
        groups: Any = topology[part]  # type: ignore[literal-required]
        assert sorted(cpu for group in groups for cpu in group["cpus"]) == topology["cpus"]
    if hasattr(os, "sched_getaffinity"):
        assert set(topology["cpus"]) == os.sched_getaffinity(0)
    assert _native.tile_state() in ("granted", "refused by the system", "not present")
    has_amx = "amx_tile" in _native.cpu_info()["features"]
    assert has_amx or _native.tile_state() != "granted"


# A seccomp filter for the process itself: arch_prctl(ARCH_REQ_XCOMP_PERM, ...) fails with EPERM.
REFUSE_TILES = """
import ctypes, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 3, 158), (0x20, 0, 0, 16), (0x15, 0, 1, 0x1023)]
code += [(0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(f"no seccomp here: errno {ctypes.get_errno()}")
from sterna import LLM, _native
print(_native.tile_state(), *_native.isas(), sep=",")
LLM(sys.argv[1], threads=1).generate([1, 2, 3], max_tokens=2)
"""


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="AMX is of x86-64 Linux"
)
def test_refused_tiles(checkpoint: Callable[[str], Path]) -> None:
    """Where the kernel refuses the tile registers, no unit uses them, and the state says why."""
    folder = checkpoint("bitnet-multiply")
    run = subprocess.run(
        [sys.executable, "-c", REFUSE_TILES, str(folder)],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "STERNA_ISA"},
        check=False,
    )
    if "no seccomp here" in run.stderr:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr
    state, *isas = run.stdout.strip().split(",")
    listed = "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    assert state == ("refused by the system" if listed else "not present")
    assert not [isa for isa in isas if "amx" in isa]
