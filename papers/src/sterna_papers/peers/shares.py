"""A table of shares: what Sterna reaches of the machine's limit, and of the best peer's speed.

Generation is limited by memory, a prompt by the unit's int8 dot products. A virtual machine changes
its speed within seconds, so the limit is measured right before and after each of Sterna's runs, and
the share is the median of the rounds' own shares.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from sterna import _native, formats
from sterna.bench.machine import Known, Progress, Yardsticks, peak_kind
from sterna.bench.report import significant
from sterna.errors import RequestError, shown
from sterna.runtime import Threads, resolve_isa, resolve_threads
from sterna_papers.peers import PEERS, Result, results
from sterna_papers.peers.case import Case, Options

__all__ = ["FORMATS", "NAMES", "REPEAT", "machine_class", "run"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Rows of the table: a shape in a format, and the depths at which it generates."""

    shape: str
    format: str
    depth: tuple[int, ...] = (0,)


GROUPS = (
    Group("bitnet-2b", "t5", (0, 4096)),
    Group("tinyllama-1.1b", "q4_0"),
    Group("tinyllama-1.1b", "q8_0"),
    Group("tinyllama-1.1b", "q4_k"),
)
FORMATS = tuple(group.format for group in GROUPS)
PP, TG, REPEAT = (512,), (32,), 5
#: TQ1_0 is slower than TQ2_0 in every measurement of docs/measurements, and takes as long as all
#: other participants together.
TABLE = {"ik_llama.cpp": PEERS["ik_llama.cpp"], "llama.cpp": PEERS["llama.cpp"][:1]}
NAMES = tuple(TABLE)
#: Measurements of the peak, of 20 ms each, of which the median counts.
PEAKS = 5
#: Seconds of runs of a case after which a peer sits out further rounds.
PATIENCE_S = 30


@dataclass
class _Limits:
    """The machine's limit, measured around each run of a case: GB/s of memory, or int8 GOPS."""

    isa: str
    threads: Threads
    kind: str
    of_case: dict[Case, list[float]] = field(default_factory=dict)
    yardsticks: Yardsticks = field(default_factory=Yardsticks)

    def measure(self, case: Case) -> None:
        if is_prompt(case):
            found = statistics.median(
                self.yardsticks.measure_peak(self.isa, self.threads, self.kind)
                for _ in range(PEAKS)
            )
        else:
            found = self.yardsticks.measure_bandwidth(self.threads)
        self.of_case.setdefault(case, []).append(found)

    def of_rounds(self, case: Case) -> list[float]:
        """Return the mean of what was measured before and after each run."""
        found = self.of_case.get(case, [])
        return [(a + b) / 2 for a, b in zip(found[::2], found[1::2], strict=False)]


def is_prompt(case: Case) -> bool:
    """Whether the case is a prompt, not generation."""
    return case.what.startswith("pp")


def machine_class(isa: str, threads: int) -> str:
    """Name what a table is for: the CPU, its kernel unit, and the threads."""
    cpu = _native.cpu_info()
    model = " ".join(str(cpu["model"]).split())
    if cpu["family"]:
        model += f" (family {cpu['family']}, model {cpu['model_id']})"
    return f"{model}, {isa}, {threads} thread{'' if threads == 1 else 's'}"


def run(
    options: Options,
    *,
    peers: Sequence[str] = NAMES,
    formats: Sequence[str] | None = None,
    repeat: int = REPEAT,
    limit_s: float = 900,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> list[Row]:
    """Return a row for each test of the table (docs/explanation/benchmarks.md).

    options: shape, tests and depth are set here. formats: of FORMATS; None is all. Raises
    RequestError.
    """
    if unknown := [name for name in formats or () if name not in FORMATS]:
        raise RequestError(
            f"format: must be of {', '.join(FORMATS)} in the table, but got {shown(unknown[0])}"
        )
    rows: list[Row] = []
    known(lambda: rows)
    for group in GROUPS:
        if formats is None or group.format in formats:
            given = replace(options, shape=group.shape, pp=PP, tg=TG, depth=group.depth, n=())
            _measure(group, given, rows, peers, repeat, limit_s, progress)
    return rows


def _measure(
    group: Group,
    options: Options,
    rows: list[Row],
    peers: Sequence[str],
    repeat: int,
    limit_s: float,
    progress: Progress,
) -> None:
    """Measure a group's tests, and append their rows."""
    isa = resolve_isa(options.isa)
    kind, _ = peak_kind(formats.get(group.format), isa)
    limits = _Limits(isa, resolve_threads(options.threads), kind)
    cases = results(
        peers,
        options,
        formats=(group.format,),
        repeat=repeat,
        limit_s=limit_s,
        table=TABLE,
        progress=lambda text: progress(f"{group.shape} {group.format}: {text}"),
        around=limits.measure,
        patience_s=PATIENCE_S,
    )
    with closing(cases):
        lost = next(cases)
        for found in cases:
            case = found[0].case
            if case is not None and found[0].entry.peer == "sterna":
                rows.append(_row(group, options, isa, case, limits.of_rounds(case), found, lost))


def _row(
    group: Group,
    options: Options,
    isa: str,
    case: Case,
    limits: Sequence[float],
    found: Sequence[Result],
    lost: Sequence[Result],
) -> Row:
    """Make the row of a case from its participants, Sterna's first."""
    sterna, *others = found
    speeds = {name: _best(case, [r for r in others if r.entry.peer == name]) for name in NAMES}
    best = max((speed for speed in speeds.values() if speed), default=None)
    speed = _best(case, [sterna])
    return {
        "class": machine_class(isa, options.threads),
        "date": datetime.date.today().isoformat(),
        "model": group.shape,
        "format": group.format,
        "head": options.head,
        "test": case.what,
        "sterna": speed,
        **speeds,
        "times_best": significant(speed / best) if speed and best else None,
        **_share(case, sterna, limits),
        "repeat": len(sterna.seconds),
        "versions": _versions(found),
        "missing": _missing([*found, *lost]),
    }


def _best(case: Case, among: Sequence[Result]) -> float | None:
    """Return tokens/s of the fastest that gave right outputs; None if there is none."""
    counted = [r for r in among if r.checked and r.skipped is None and r.seconds]
    return (
        significant(max(case.n / statistics.median(r.seconds) for r in counted))
        if counted
        else None
    )


def _share(case: Case, sterna: Result, limits: Sequence[float]) -> Row:
    """Return the limit and the share of it: medians over the rounds, and their ranges."""
    row: Row = dict.fromkeys(
        ("unit", "limit", "limit_min", "limit_max", "share", "share_min", "share_max")
    )
    if sterna.work is None or not sterna.checked or len(sterna.seconds) != len(limits):
        return row
    work = sterna.work.operations if is_prompt(case) else sterna.work.bytes
    shares = [
        work * case.n / seconds / 1e9 / limit
        for seconds, limit in zip(sterna.seconds, limits, strict=True)
    ]
    row["unit"] = "GOPS" if is_prompt(case) else "GB/s"
    for name, values in (("limit", limits), ("share", shares)):
        row[name] = significant(statistics.median(values))
        row[f"{name}_min"], row[f"{name}_max"] = significant(min(values)), significant(max(values))
    return row


def _versions(found: Sequence[Result]) -> str:
    """Name the participants with their versions."""
    named = {r.entry.peer: r.process.version for r in found if r.process is not None}
    return "; ".join(f"{peer} {version}" for peer, version in named.items())


def _missing(of: Sequence[Result]) -> str | None:
    """Name the participants without a figure, and say why; None if there are none."""
    why = {r.entry.peer: r.skipped or r.how for r in of if r.skipped is not None or not r.checked}
    return "; ".join(f"{peer}: {reason}" for peer, reason in why.items()) or None
