"""`sterna info`: the machine, and the settings that Sterna derives from it."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sterna.cli.decorators import flag, option
from sterna.cli.hub_files import missing_name, tell_files
from sterna.cli.model_info import speed_of_memory, tell_model
from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option, threads_options
from sterna.cli.terminal import print_json, print_pairs, status
from sterna.files.system import SYSFS

if TYPE_CHECKING:
    from sterna.calibration.readings import Readings
    from sterna.runtime import Threads

MAX_CONTEXT = 1 << 31
LARGE = 1 << 40  # bytes of weights that no cache holds
_CPUS = SYSFS / "devices/system/cpu"


@grouped_command(short_help="Show this machine: CPU, kernels, threads, memory, cache; or a model.")
@click.argument("model", required=False)
@threads_options
@option("--bandwidth/--no-bandwidth", "Measure the memory; takes a moment.", default=True)
@option("--context", "Of MODEL: tokens that its memory is reckoned for. Default: 8192.", type=int)
@flag("--files", "Of a name on the Hub: list its files, even if one of them is here.")
@flag("--check", "Run each kernel unit of this CPU, and say whether its results are right.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str | None,
    threads: int | None,
    cores: str | None,
    bandwidth: bool,
    context: int | None,
    files: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Show the CPU, the chosen kernels and threads, the memory's speed and the cache.

    With MODEL, show the settings in that model's files: architecture, tokenizer, chat template, end
    tokens, and sampling defaults; and the memory and speed to expect here. Of a name on the Hub
    that is not here, show the files, and which is the best that fits into this machine's free
    memory; nothing is downloaded. With --check, check the kernels instead; the exit code is 1 if
    results of one are wrong.
    """
    if check:
        if model is not None:
            raise click.UsageError("--check: checks this machine, so it takes no MODEL")
        if not _check_units(as_json):
            ctx.exit(1)
        return
    if model is not None:
        from sterna.checks import checked_whole
        from sterna.runtime import resolve_threads

        team = resolve_threads(threads, cores)
        if context is not None:
            checked_whole("context", context, 1, MAX_CONTEXT)
        if (name := missing_name(model, files)) is not None:
            tell_files(name, context, speed_of_memory(team, bandwidth), as_json)
        else:
            tell_model(model, context, speed_of_memory(team, bandwidth), as_json)
        return
    row = _machine(threads, cores, bandwidth)
    if as_json:
        print_json([row])
    else:
        print_pairs(_lines(row))


def _machine(threads: int | None, cores: str | None, bandwidth: bool) -> dict[str, Any]:
    """Return what Sterna knows of this machine, and what it derives from it."""
    from sterna import __version__, _native
    from sterna.calibration import few_tokens, many_tokens, matrix_tokens
    from sterna.calibration.bandwidth import measure_bandwidth
    from sterna.calibration.prefetch import prepare
    from sterna.calibration.readings import current
    from sterna.checkpoints.buffers import huge_page_share
    from sterna.checkpoints.cache import cache_dir, entries
    from sterna.runtime import available_bytes, cpu_list, memory_bytes, resolve_isa, resolve_threads

    isa, team = resolve_isa(), resolve_threads(threads, cores)
    cpu, folder, available = _native.cpu_info(), cache_dir(), available_bytes()
    speed = None
    with status(f"reading memory with {team} threads"):
        source = prepare(team, isa, LARGE if bandwidth else 0)
        if bandwidth:
            speed = round(measure_bandwidth(team), 2)
    return {
        "sterna": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu["model"],
        "vendor": cpu["vendor"],
        "features": list(cpu["features"]),
        "isas": _native.isas(),
        "isa": isa,
        "amx": _native.tile_state(),
        "threads": int(team),
        "thread_cpus": cpu_list(team.cpus) or None,  # None: the system places them
        "pinned": team.pinned,
        **_topology(_native.topology()),
        **_nodes(team, _native.topology()["nodes"]),
        "memory_gb": round(memory_bytes() / 1e9, 2),
        "memory_available_gb": round(available / 1e9, 2),
        "bandwidth_gb_s": speed,
        "huge_pages": huge_page_share(),
        "reading": {**_reading(current(team)), "source": source},
        "direct_tokens": few_tokens.known(team, isa),
        "joint_tokens": many_tokens.known(team, isa),
        "tile_tokens": matrix_tokens.known(team, isa) if _native.has_tiles(isa) else None,
        "cache_dir": None if folder is None else str(folder),
        "cache_bytes": sum(size for _, size in entries()),
    }


def _check_units(as_json: bool) -> bool:
    """Run every unit, say which are right, and return whether all are."""
    from sterna import _native
    from sterna.calibration.unit_check import check

    rows: list[dict[str, Any]] = []
    for isa in _native.isas():
        with status(f"running the kernels of {isa}"):
            begin = time.perf_counter()
            wrong = check(isa)
            seconds = time.perf_counter() - begin
        rows.append({"isa": isa, "right": not wrong, "wrong": wrong, "seconds": round(seconds, 2)})
    if as_json:
        print_json(rows)
    else:
        print_pairs(
            [
                (
                    row["isa"],
                    f"right ({row['seconds']:.2f} s)"
                    if row["right"]
                    else f"wrong, not used: {', '.join(row['wrong'])}",
                )
                for row in rows
            ]
        )
    return all(row["right"] for row in rows)


def _topology(native: Any) -> dict[str, Any]:
    """Return the machine's sockets, cores and logical CPUs, and those this process may use."""
    logical = os.cpu_count()
    packages, siblings = (
        {line for path in _CPUS.glob(f"cpu[0-9]*/topology/{name}") if (line := _line(path))}
        for name in ("physical_package_id", "thread_siblings_list")
    )
    cores = len(siblings) or None
    return {
        "sockets": len(packages) or None,
        "cores": cores,
        "logical_cpus": logical,
        "smt": logical > cores if logical and cores else None,
        "usable_cpus": len(native["cpus"]),
        "usable_cores": len(native["cores"]),
        "performance_cores": sum(core["performance"] for core in native["cores"]),
        "efficiency_cores": sum(not core["performance"] for core in native["cores"]),
        "numa_nodes": len(native["nodes"]),
        "cpu_quota": native["cpu_quota"] or None,  # CPUs' worth of time; None: no limit
    }


def _nodes(team: Threads, machine_nodes: list[Any]) -> dict[str, Any]:
    """Return the memory nodes of the threads, and whether weights lie on the threads' own nodes."""
    from sterna.runtime import cpu_list

    ids = {cpu: node["id"] for node in machine_nodes for cpu in node["cpus"]}
    nodes = [
        {"id": ids.get(cpus[0], i), "cpus": cpu_list(cpus), "threads": threads}
        for i, (threads, cpus) in enumerate(team.nodes)
    ]
    near = ("replicas" if team.replicas else "split") if nodes else None
    return {"weights_near": near, "nodes": nodes}  # None: they lie where they were read to


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # a CPU taken offline meanwhile
        return ""


def _count(n: int | None, noun: str) -> str:
    return f"{'?' if n is None else n} {noun}{'' if n == 1 else 's'}"


def _kinds(row: dict[str, Any]) -> str:
    fast, slow = row["performance_cores"], row["efficiency_cores"]
    return f"{fast} for performance and {slow} for efficiency" if slow else "all of one kind"


def _place(row: dict[str, Any]) -> str:
    if row["thread_cpus"] is None:
        return ""
    return f" {'pinned to' if row['pinned'] else 'on'} CPUs {row['thread_cpus']}"


def _near(row: dict[str, Any]) -> str:
    """Name the NUMA nodes from which threads read their weights, and why."""
    if row["nodes"]:
        where = ", ".join(
            f"node {node['id']}: CPUs {node['cpus']}, {_count(node['threads'], 'thread')}"
            for node in row["nodes"]
        )
        if row["weights_near"] == "replicas":
            return f"{where}; each has a copy of all weights"
        return (
            f"{where}; each has the weights that its threads read "
            "(STERNA_NUMA=replicas: a copy of all weights)"
        )
    if row["numa_nodes"] < 2:
        return "1 node"
    if os.environ.get("STERNA_NUMA") == "off":
        return f"{row['numa_nodes']} nodes; STERNA_NUMA=off: weights stay where they were read to"
    return f"{row['numa_nodes']} nodes; all threads run on one"


def _reading(readings: Readings) -> dict[str, Any]:
    few_bits, many_bits, next_page = readings
    return {"few_bits": str(few_bits), "many_bits": str(many_bits), "next_page": next_page}


def _reading_line(few_bits: str, many_bits: str, next_page: bool, source: str) -> str:
    weights = _weights_line(few_bits)
    if many_bits != few_bits:
        weights += f"; 4 bits and more: {_weights_line(many_bits)}"
    return f"{weights}; KV cache: {'next page' if next_page else 'off'} ({source})"


def _weights_line(reading: str) -> str:
    from sterna.calibration.readings import Reading

    streams, turn_bytes, prefetch_bytes, into_l2 = Reading.parse(reading)
    turns = f" × {_bytes(turn_bytes)}" if streams > 1 else ""
    level = " into L2" if into_l2 else ""
    return f"{_count(streams, 'stream')}{turns}, {_bytes(prefetch_bytes)} ahead{level}"


def _bytes(count: int) -> str:
    """Format bytes, in KiB where they are whole ones."""
    return f"{count >> 10} KiB" if count and count % 1024 == 0 else f"{count} B"


def _pages(huge: float | None) -> str:
    if huge is None:
        return "unknown"
    return f"{huge:.0%}" + (
        "" if huge > 0.9 else "; decoding is slower without (/sys/kernel/mm/transparent_hugepage)"
    )


def _direct(most: dict[str, int]) -> str:
    """Return, for each measured format, the most tokens of a step without a decoded panel."""
    known = [
        f"{name} {f'up to {n} tokens' if n else 'default'}" for name, n in sorted(most.items())
    ]
    return ", ".join(known) or "default (measured when a large model is loaded)"


def _joint(fewest: dict[str, int]) -> str:
    """For each measured ternary format, the fewest tokens of a step that takes lookups, too."""
    known = [f"{name} {f'from {n} tokens' if n else 'off'}" for name, n in sorted(fewest.items())]
    return ", ".join(known) or "off (measured when a large ternary model is loaded)"


def _tiles(fewest: dict[str, int] | None) -> str:
    """For each measured format with scales in groups, the fewest tokens that tiles are for."""
    from sterna import _native

    if fewest is None:
        return "no matrix unit"
    known = [
        f"{name} from {n or _native.few_tokens + 1} tokens" for name, n in sorted(fewest.items())
    ]
    return ", ".join(known) or "default (measured when a large model is loaded)"


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    smt = {True: "several threads a core", False: "one thread a core", None: "SMT unknown"}
    quota = row["cpu_quota"]
    speed = row["bandwidth_gb_s"]
    cache = f"{row['cache_dir']} ({row['cache_bytes'] / 1e6:,.1f} MB)"
    return [
        ("Sterna", f"{row['sterna']}, Python {row['python']}, {row['platform']}"),
        ("CPU", re.sub(r"\s+", " ", row["cpu"]) or row["vendor"] or "unknown"),
        ("features", " ".join(row["features"])),
        ("AMX", row["amx"]),
        ("kernels", f"{' '.join(row['isas'])} (using {row['isa']})"),
        (
            "machine",
            f"{_count(row['sockets'], 'socket')}, {_count(row['cores'], 'core')}, "
            f"{_count(row['logical_cpus'], 'logical CPU')}, {smt[row['smt']]}",
        ),
        (
            "usable",
            f"{_count(row['usable_cores'], 'core')}, "
            f"{_count(row['usable_cpus'], 'logical CPU')}, "
            f"{_kinds(row)}, {_count(row['numa_nodes'], 'NUMA node')}, "
            + (f"cgroup quota of {quota:g} CPUs" if quota else "no cgroup quota"),
        ),
        ("threads", f"{row['threads']}{_place(row)}"),
        ("NUMA", _near(row)),
        ("memory", f"{row['memory_gb']:.1f} GB, {row['memory_available_gb']:.1f} GB available"),
        ("bandwidth", "not measured" if speed is None else f"{speed:.1f} GB/s"),
        ("huge pages", _pages(row["huge_pages"])),
        ("prefetch", _reading_line(**row["reading"])),
        ("direct kernels", _direct(row["direct_tokens"])),
        ("lookup path", _joint(row["joint_tokens"])),
        ("tiles", _tiles(row["tile_tokens"])),
        ("cache", "off" if row["cache_dir"] is None else cache),
    ]
