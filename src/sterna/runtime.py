"""Which kernel unit, how many threads and where: the argument, the environment, or the machine."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from sterna import _native
from sterna.checks import checked_name, checked_whole
from sterna.errors import RequestError, UnsupportedCPUError, shown

__all__ = [
    "NodeThreads",
    "Threads",
    "available_bytes",
    "cache_bytes",
    "cpu_list",
    "is_inside",
    "memory_bytes",
    "on_nodes",
    "resident_bytes",
    "resolve_isa",
    "resolve_threads",
]

MAX_THREADS = 1024
#: Where weights lie on a machine of several memory nodes: each node has the part that its threads
#: read, or all of them, or they lie where they were read to.
NUMA = ("split", "replicas", "off")
_MEMORY = "proc/meminfo"
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_NODES = Path("/sys/devices/system/node/online")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Where the system does not tell: what is common for a core, and for a machine.
_DEFAULT_CACHES = {2: 1 << 20, 3: 64 << 20}


def is_inside(owner: object, method: CodeType) -> bool:
    """Whether this thread is in the middle of this method of the owner, but for the one that asks.

    A signal handler runs between any two instructions of a thread. What a frame has left is no
    matter, so an interrupt cannot leave a mark behind that lasts.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is method and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def resolve_isa(isa: str | None = None) -> str:
    """Name of the kernel unit to use: `isa`, else `STERNA_ISA`, else the best one that runs here.

    Raises RequestError for an unknown name, UnsupportedCPUError for one this machine cannot run.
    """
    runnable = _native.isas()
    source = "isa" if isa is not None else "STERNA_ISA"
    name = isa if isa is not None else os.environ.get("STERNA_ISA", "")
    if not isinstance(name, str):
        raise RequestError(f"{source}: must be a name, but got {shown(name)}")
    if not name:
        return runnable[-1]
    if name in runnable:
        return name
    known = dict(_native.known_isas())
    if name in known:
        raise UnsupportedCPUError(
            f"{source}: this CPU (or its operating system) cannot run {shown(name)}, which needs "
            f"{known[name]}; choose one of {', '.join(runnable)}"
        )
    raise RequestError(
        f"{source}: must be one of {', '.join(runnable)}, but got {shown(name)}; "
        "unset it to let Sterna choose"
    )


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory this process may still take: the system's, or its control groups'.

    root: in the place of /, for tests on a made-up file tree.
    """
    try:
        found = re.search(r"^MemAvailable: *(\d+) kB$", (root / _MEMORY).read_text(), re.MULTILINE)
    except OSError:
        found = None
    # What is free at once is less than that, but known where the file is not to be had.
    available = int(found[1]) << 10 if found else _pages("SC_AVPHYS_PAGES")
    left = _native.cgroup_memory_left("" if root == Path("/") else str(root))
    return available if left is None else min(available, int(left))


def memory_bytes() -> int:
    """Bytes of the machine's memory."""
    return _pages("SC_PHYS_PAGES")


def resident_bytes(process: int | None = None) -> int:
    """Bytes of memory that a process has now, by default this one; OSError where it is gone."""
    pages = Path(f"/proc/{process or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def cache_bytes(folder: Path = _CACHES) -> dict[int, int]:
    """Bytes of CPU 0's data caches by level; usual sizes where the system does not tell."""
    sizes: dict[int, int] = {}
    for index in folder.glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            level = int((index / "level").read_text())
            text = (index / "size").read_text().strip()
            number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
            if kind != "Instruction":
                sizes[level] = int(number) * unit
        except (OSError, ValueError):  # a CPU taken offline meanwhile, a field left empty
            continue
    return sizes or dict(_DEFAULT_CACHES)


class NodeThreads(NamedTuple):
    """Threads of one memory node, and the logical CPUs that they may use; none in a rehearsal."""

    threads: int
    cpus: tuple[int, ...] = ()


class Threads(int):
    """A number of threads that knows where they run; the native core reads it from there.

    cpus: logical CPUs that the threads may use, empty for no restriction; pinned: thread i runs on
    cpus[i] alone, otherwise each on any of them. nodes: the memory nodes of the threads, in their
    order, where these belong to several; each thread then runs on CPUs of its node. replicas:
    whether each node has all weights, or only the part that its threads read.
    """

    cpus: tuple[int, ...]
    pinned: bool
    nodes: tuple[NodeThreads, ...]
    replicas: bool

    def __new__(
        cls,
        count: int,
        cpus: Iterable[int] = (),
        pinned: bool = False,
        nodes: Iterable[NodeThreads] = (),
        replicas: bool = False,
    ) -> Threads:
        """`count` threads on `cpus`."""
        self = super().__new__(cls, count)
        self.cpus = tuple(cpus)
        self.pinned = pinned
        self.nodes = tuple(nodes)
        self.replicas = replicas
        return self


class _Team(NamedTuple):
    """What a setting of `cores` allows: the default, and the most threads it has room for."""

    default: int
    most: int
    cpus: tuple[int, ...] = ()
    pinned: bool = False


def resolve_threads(threads: int | None = None, cores: str | None = None) -> Threads:
    """How many threads, and on which CPUs.

    threads: else `STERNA_THREADS`, else one for each physical core of the set, at most the cgroup's
    quota of CPU time. cores: else `STERNA_CORES`, else all.

    - "all": every core that the affinity mask allows; the system places the threads.
    - "performance": those of them that are not efficiency cores; the threads stay on these, and
      the system places them there.
    - a list such as "0-3,8": these logical CPUs, one thread pinned to each, whatever the quota;
      with fewer threads the first ones.

    Where their CPUs belong to several memory nodes, each thread keeps to one of these, in
    proportion to their cores, unless `STERNA_NUMA` is "off" (`Threads.nodes`).

    A `Threads` passes unchanged unless `cores` is given. Raises RequestError for a number outside
    1..1024, for more threads than the set that was asked for has CPUs, for CPUs that the process
    may not use, or for another word in `STERNA_NUMA`.
    """
    if isinstance(threads, Threads) and cores is None:
        return threads
    numa = checked_name("STERNA_NUMA", os.environ.get("STERNA_NUMA") or "split", NUMA)
    team = _resolved(threads, cores)
    if numa == "off" or team < 2 or not _has_nodes():
        return team
    return on_nodes(team, _topology(_allowed_cpus()), numa == "replicas")


def on_nodes(team: Threads, topology: Mapping[str, Any], replicas: bool = False) -> Threads:
    """The threads, each of them on one of the memory nodes that have CPUs of theirs.

    topology: as `_native.topology` has it, of this machine or of one made up. Nodes have threads in
    proportion to the cores that they have of the team's, and none where that is less than half a
    one. A team of a single node passes unchanged.
    """
    cpus = set(team.cpus or topology["cpus"])
    per_node = [[cpu for cpu in node["cpus"] if cpu in cpus] for node in topology["nodes"]]
    if team.pinned:
        shares = [len(of_node) for of_node in per_node]
    else:
        firsts = [next((c for c in core["cpus"] if c in cpus), None) for core in topology["cores"]]
        weights = [len(set(firsts) & set(of_node)) for of_node in per_node]
        ends = [sum(weights[: i + 1]) for i in range(len(weights))]
        bounds = [0, *(round(team * end / ends[-1]) for end in ends)]
        shares = [end - begin for begin, end in itertools.pairwise(bounds)]
    nodes = [
        NodeThreads(share, tuple(of_node))
        for share, of_node in zip(shares, per_node, strict=True)
        if share
    ]
    if len(nodes) < 2:
        return team
    of_nodes = [cpu for node in nodes for cpu in node.cpus]
    return Threads(team, of_nodes, team.pinned, nodes, replicas)


def _has_nodes() -> bool:
    """Whether the machine has several memory nodes, which few have: a look at one file."""
    return len(_nodes_online()) > 1


@lru_cache(maxsize=1)
def _nodes_online() -> str:
    """The kernel's list of memory nodes, "0" of one alone; empty where it does not tell."""
    try:
        return _NODES.read_text().strip()
    except OSError:
        return ""


def _resolved(threads: int | None, cores: str | None) -> Threads:
    """`resolve_threads`, of whatever memory nodes."""
    count, source = _count(threads)
    name = "cores" if cores is not None else "STERNA_CORES"
    value = cores if cores is not None else os.environ.get("STERNA_CORES") or None
    if value is None and count is not None:
        return Threads(count)
    team = _team(name, value, _topology(_allowed_cpus()))
    if count is None:
        return Threads(team.default, team.cpus, team.pinned)
    if value is not None and count > team.most:
        raise RequestError(
            f"{source}: must be at most {team.most}, the CPUs of {name} {shown(value)}, "
            f"but got {count}; lower it or widen {name}"
        )
    return Threads(count, team.cpus[:count] if team.pinned else team.cpus, team.pinned)


def _allowed_cpus() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@lru_cache(maxsize=16)
def _topology(allowed: frozenset[int]) -> Mapping[str, Any]:
    """The topology of the CPUs that this thread may use, read once: it takes a file or more a CPU,
    longer than a layer.
    """
    return _native.topology()


def _count(threads: int | None) -> tuple[int | None, str]:
    """Number of threads that was asked for, None if none was, and where."""
    source, value = "threads", threads
    if threads is None:
        text = os.environ.get("STERNA_THREADS", "")
        if not text:
            return None, source
        source = "STERNA_THREADS"
        try:
            value = int(text)
        except ValueError:
            raise RequestError(f"{source}: must be a whole number, but got {shown(text)}") from None
    return checked_whole(source, value, 1, MAX_THREADS), source


def _team(source: str, value: str | None, topology: Mapping[str, Any]) -> _Team:
    allowed: list[int] = topology["cpus"]
    if value is None or (isinstance(value, str) and value == "all"):
        return _Team(_within_quota(len(topology["cores"]), topology), len(allowed))
    if isinstance(value, str) and value == "performance":
        cores = [core["cpus"] for core in topology["cores"] if core["performance"]]
        cpus = tuple(sorted(cpu for core in cores for cpu in core))
        if not cpus:
            raise RequestError(
                f"{source}: performance needs a performance core, but this process may use "
                f"efficiency cores only ({cpu_list(allowed)}); choose all"
            )
        # Where all cores are alike there is nothing to keep the threads from.
        return _Team(
            _within_quota(len(cores), topology), len(cpus), cpus if len(cpus) < len(allowed) else ()
        )
    cpus = _parse_cpus(source, value)
    if not set(cpus) <= set(allowed):
        raise RequestError(
            f"{source}: must name CPUs that this process may use, {cpu_list(allowed)}, "
            f"but got {shown(value)}; see taskset and the container's cpuset"
        )
    if len(cpus) > MAX_THREADS:
        raise RequestError(
            f"{source}: must name at most {MAX_THREADS} CPUs, but got {shown(value)}"
        )
    return _Team(len(cpus), len(cpus), cpus, pinned=True)


def _within_quota(n_cores: int, topology: Mapping[str, Any]) -> int:
    # SMT siblings share the load ports and the memory queue, which is what the kernels saturate:
    # hence a thread for each core. A quota of 1.5 CPUs keeps a second thread busy half of the time.
    quota: float = topology["cpu_quota"]
    return max(1, min(n_cores, MAX_THREADS, math.ceil(quota) if quota > 0 else n_cores))


def _parse_cpus(source: str, value: object) -> tuple[int, ...]:
    """The CPUs of a list such as "0-3,8", ascending. Strict, where the kernel's are read leniently:
    a slip must not silently run elsewhere.
    """
    number = "[0-9]{1,4}"  # the kernel has at most 8,192 CPUs
    if isinstance(value, str) and re.fullmatch(
        rf"({number}(-{number})?)(,{number}(-{number})?)*", value
    ):
        spans = [[int(end) for end in part.split("-")] for part in value.split(",")]
        cpus = {cpu for s in spans for cpu in range(s[0], s[-1] + 1)}
        if all(s[0] <= s[-1] for s in spans) and len(cpus) == sum(s[-1] - s[0] + 1 for s in spans):
            return tuple(sorted(cpus))
    raise RequestError(
        f"{source}: must be performance, all or a list of CPUs, each once, such as "
        f'"0-3,8", but got {shown(value)}'
    )


def cpu_list(cpus: Iterable[int]) -> str:
    """CPUs in the kernel's short form: [0, 1, 2, 8] is "0-2,8"."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
