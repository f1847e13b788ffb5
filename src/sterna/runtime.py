"""Kernel unit, threads and their CPUs: from arguments, the environment, or the machine."""

from __future__ import annotations

import itertools
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

from sterna import _native
from sterna.checks import checked_name, checked_whole
from sterna.errors import RequestError, UnsupportedCPUError, shown
from sterna.files.system import SYSFS, allowed_cpus

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
#: Where weights lie on a machine of several NUMA nodes: each node has the part that its threads
#: read, or all weights, or they stay where they were read to.
NUMA = ("split", "replicas", "off")
_NODES = SYSFS / "devices/system/node/online"
#: If the system does not say: common sizes of a core's cache and of a machine's.
_DEFAULT_CACHES = {2: 1 << 20, 3: 64 << 20}


def is_inside(owner: object, method: CodeType) -> bool:
    """Whether this thread is inside another call of the owner's method than the caller's.

    A signal handler runs between any two instructions of a thread. The stack is asked, not a flag,
    which an interrupt could leave set.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is method and frame.f_locals.get("self") is owner:
            return True
        frame = frame.f_back
    return False


def resolve_isa(isa: str | None = None) -> str:
    """Return the kernel unit to use: `isa`, else `STERNA_ISA`, else the best one that runs here.

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


def available_bytes(root: str = "") -> int:
    """Return bytes of memory that this process may still take, by the system and its limits.

    root: before the paths of Linux's files, for tests with a made-up file tree.
    """
    return _native.memory_state(root)[1]


def memory_bytes() -> int:
    """Return bytes of the machine's memory."""
    return _native.memory_state()[0]


def resident_bytes() -> int:
    """Return resident bytes of this process."""
    return _native.memory_state()[2]


def cache_bytes(root: str = "") -> dict[int, int]:
    """Return bytes of CPU 0's data caches by level; usual sizes if the system does not say.

    root: as that of `available_bytes`.
    """
    return _native.data_caches(root) or dict(_DEFAULT_CACHES)


class NodeThreads(NamedTuple):
    """Threads of one NUMA node, and the logical CPUs that they may use; none in a rehearsal."""

    threads: int
    cpus: tuple[int, ...] = ()


class Threads(int):
    """A number of threads, and where they run; the native core reads its attributes.

    cpus: logical CPUs that the threads may use; empty: any. pinned: thread i runs on cpus[i] only,
    else each on any of them. nodes: the NUMA nodes of the threads, in their order, if there are
    several; each thread runs on CPUs of its node. replicas: whether each node has all weights, not
    only the part that its threads read.
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
        """Make a team of `count` threads on `cpus`."""
        self = super().__new__(cls, count)
        self.cpus = tuple(cpus)
        self.pinned = pinned
        self.nodes = tuple(nodes)
        self.replicas = replicas
        return self


class _Team(NamedTuple):
    """Numbers of threads that a setting of `cores` allows: the default and the most."""

    default: int
    most: int
    cpus: tuple[int, ...] = ()
    pinned: bool = False


def resolve_threads(threads: int | None = None, cores: str | None = None) -> Threads:
    """Return how many threads to use, and on which CPUs.

    threads: default `STERNA_THREADS`, else one for each physical core of the set, within the
    cgroup's CPU quota. cores: the set, default `STERNA_CORES`, else "all":

    - "all": every core in the affinity mask; the system places the threads.
    - "performance": those that are no efficiency cores; the system places the threads on them.
    - a list such as "0-3,8": these logical CPUs, one thread pinned to each, whatever the quota; the
      first ones if there are fewer threads.

    If the CPUs belong to several NUMA nodes, each thread keeps to one of them, in proportion to the
    nodes' cores, unless `STERNA_NUMA` is "off" (`Threads.nodes`).

    A `Threads` is returned unchanged unless `cores` is given. Raises RequestError for a number
    outside 1..1024, more threads than the set has CPUs, CPUs that the process may not use, or an
    unknown word in `STERNA_NUMA`.
    """
    if isinstance(threads, Threads) and cores is None:
        return threads
    numa = checked_name("STERNA_NUMA", os.environ.get("STERNA_NUMA") or "split", NUMA)
    team = _resolved(threads, cores)
    if numa == "off" or team < 2 or not _has_nodes():
        return team
    return on_nodes(team, _topology(allowed_cpus()), numa == "replicas")


def on_nodes(team: Threads, topology: Mapping[str, Any], replicas: bool = False) -> Threads:
    """Return the team with each thread on one of the NUMA nodes of its CPUs.

    topology: as `_native.topology` returns it. Nodes get threads in proportion to their cores in
    the team's set, rounded. A team of a single node is returned unchanged.
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
    """Whether the machine has several NUMA nodes; reads one file."""
    return len(_nodes_online()) > 1


@lru_cache(maxsize=1)
def _nodes_online() -> str:
    """Return the kernel's list of NUMA nodes: "0" for a single one, empty if it does not say."""
    try:
        return _NODES.read_text().strip()
    except OSError:
        return ""


def _resolved(threads: int | None, cores: str | None) -> Threads:
    """Resolve as `resolve_threads`, without regard to NUMA nodes."""
    count, source = _count(threads)
    name = "cores" if cores is not None else "STERNA_CORES"
    value = cores if cores is not None else os.environ.get("STERNA_CORES") or None
    if value is None and count is not None:
        return Threads(count)
    team = _team(name, value, _topology(allowed_cpus()))
    if count is None:
        return Threads(team.default, team.cpus, team.pinned)
    if value is not None and count > team.most:
        raise RequestError(
            f"{source}: must be at most {team.most}, the CPUs of {name} {shown(value)}, "
            f"but got {count}; lower it or widen {name}"
        )
    return Threads(count, team.cpus[:count] if team.pinned else team.cpus, team.pinned)


@lru_cache(maxsize=16)
def _topology(allowed: frozenset[int]) -> Mapping[str, Any]:
    """Return the topology of the allowed CPUs, read once: files of each CPU take longer than a
    layer."""
    return _native.topology()


def _count(threads: int | None) -> tuple[int | None, str]:
    """Return the number of threads asked for, or None, and the name of its source."""
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
        # If all cores are alike, there are none to avoid.
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
    # SMT siblings share the load ports and the memory queue, which the kernels saturate,
    # so each core gets a thread. A quota of 1.5 CPUs keeps a second thread busy half of the time.
    quota: float = topology["cpu_quota"]
    return max(1, min(n_cores, MAX_THREADS, math.ceil(quota) if quota > 0 else n_cores))


def _parse_cpus(source: str, value: object) -> tuple[int, ...]:
    """Return the CPUs of a list such as "0-3,8", ascending.

    Stricter than the kernel's reading, so that a typo does not silently run elsewhere.
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
    """Return CPUs in the kernel's short form: [0, 1, 2, 8] is "0-2,8"."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
