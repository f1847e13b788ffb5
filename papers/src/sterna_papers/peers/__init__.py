"""Sterna and other runtimes in one run: same shapes, same machine, same minutes.

Every participant has a process of its own. For each case, the participants check their outputs once
and are then timed in turn, three times by default. A figure counts only if the output of the timed
run itself was right.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sterna.bench.machine import Known, Pace, Progress
from sterna.bench.report import significant
from sterna.errors import RequestError, shown
from sterna_papers.peers.blocks import TERNARY, TYPE_OF
from sterna_papers.peers.case import WITH_EXPERTS, Case, Options, Work, matrices
from sterna_papers.peers.case import end_to_end as cases_of_models
from sterna_papers.peers.process import Lost, Process

__all__ = ["PEERS", "Entry", "Result", "results", "run"]

Row = dict[str, Any]
#: Before each measurement, so that the last one's threads have stopped spinning.
SETTLE_S = 0.1
HERE = "sterna_papers.peers"


@dataclass(frozen=True)
class Entry:
    """One participant: its name in rows, the module that its process runs, and its variant."""

    peer: str
    module: str
    variant: str


#: What `--peers` can name. Ternary types stand for those of the formats that are asked for.
PEERS: dict[str, tuple[Entry, ...]] = {
    "llama.cpp": tuple(Entry("llama.cpp", f"{HERE}.llama_cpp", v) for v in ("TQ2_0", "TQ1_0")),
    "torch": tuple(Entry("torch", f"{HERE}.torch_linear", v) for v in ("int8", "bf16")),
    "numpy": (Entry("numpy", f"{HERE}.numpy_linear", "f32"),),
    "litespark": (Entry("litespark", f"{HERE}.litespark", "ternary"),),
    "bitnet.cpp": tuple(
        Entry("bitnet.cpp", f"{HERE}.{module}", variant)
        for module, variants in (
            ("bitnet_cpp", ("I2_S", "I2_S rows of 4")),
            ("bitnet_lookup", ("TL2", "TL1")),
        )
        for variant in variants
    ),
    "ik_llama.cpp": tuple(
        Entry("ik_llama.cpp", f"{HERE}.ik_llama", v) for v in ("IQ2_BN", "IQ2_BN -rtr 1")
    ),
}


@dataclass
class Result:
    """The results of one participant in one case so far; without a case, it did not start."""

    entry: Entry
    process: Process | None = None
    case: Case | None = None
    seconds: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    rss_bytes: int | None = None
    checked: bool = False
    how: str = ""
    weight_bytes: float | None = None
    work: Work | None = None
    skipped: str | None = None


def run(
    peers: Sequence[str],
    options: Options,
    *,
    formats: Sequence[str] = ("i2",),
    repeat: int = 3,
    limit_s: float = 900,
    table: Mapping[str, tuple[Entry, ...]] = PEERS,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> list[Row]:
    """Measure Sterna in each of `formats`, and the peers (docs/explanation/benchmarks.md).

    options: `variant` and `scratch` are set here. limit_s: the most seconds for one answer of a
    participant. The row of a peer that is missing, crashes, hangs or answers wrongly says so.
    Raises RequestError for arguments out of range.
    """
    rows: list[Row] = []
    known(lambda: rows)
    cases = results(
        peers,
        options,
        formats=formats,
        repeat=repeat,
        limit_s=limit_s,
        table=table,
        progress=progress,
    )
    with closing(cases):
        for found in cases:
            rows += _rows(found, options.threads)
    return rows


def results(
    peers: Sequence[str],
    options: Options,
    *,
    formats: Sequence[str],
    repeat: int,
    limit_s: float,
    table: Mapping[str, tuple[Entry, ...]],
    progress: Progress,
    around: Callable[[Case], None] = lambda _: None,
    patience_s: float = math.inf,
) -> Generator[list[Result], None, None]:
    """Yield the participants that do not start, then the results of each case, Sterna's first.

    around: called before and after each run of Sterna. patience_s: a peer whose runs of a case took
    longer together takes part in no further round of it. Else as `run`.
    """
    entries = _entries(peers, options, formats, repeat, table)
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="sterna-peers-"))
        running: list[tuple[Entry, Process]] = []
        lost = []
        for entry in entries:
            progress(f"starting {entry.peer} {entry.variant}")
            given = replace(options, variant=entry.variant, scratch=scratch)
            try:
                process = Process(entry.module, given, limit_s)
            except Lost as e:
                lost.append(Result(entry, skipped=str(e)))
                continue
            stack.callback(process.close)
            running.append((entry, process))
        yield lost
        cases = _union(process.cases for _, process in running)
        asked = {case: [(e, p) for e, p in running if case in p.cases] for case in cases}
        # Each is checked once and timed `repeat` times.
        pace = Pace(sum(map(len, asked.values())) * (1 + repeat))
        step = partial(_step, progress, pace)
        for case, among in asked.items():
            yield _measure(case, among, repeat, step, around, patience_s)


def _step(progress: Progress, pace: Pace, text: str) -> None:
    progress(pace.step(text))


def _entries(
    peers: Sequence[str],
    options: Options,
    formats: Sequence[str],
    repeat: int,
    table: Mapping[str, tuple[Entry, ...]],
) -> list[Entry]:
    """List the participants, Sterna first; RequestError for arguments out of range."""
    if unknown := [name for name in peers if name not in table]:
        raise RequestError(f"peers: must be of {', '.join(table)}, but got {shown(unknown[0])}")
    if (
        repeat < 1
        or options.threads < 1
        or any(n < 1 for n in (*options.pp, *options.tg, *options.n))
    ):
        raise RequestError("bench peers: pp, tg, n, threads and repeat must be at least 1")
    if not options.depth or min(options.depth) < 0:
        raise RequestError("bench peers: depth must not be negative")
    # An unknown shape raises here, which would otherwise skip all participants.
    if not matrices(options) and not cases_of_models(options):
        raise RequestError(
            "bench peers: needs n, or pp or tg of a shape without recurrent layers and with no "
            f"experts but those of {', '.join(sorted(WITH_EXPERTS))}, but got "
            f"{shown(options.shape)}; give n, for the products of its matrices"
        )
    entries = [Entry("sterna", f"{HERE}.sterna_self", name) for name in formats]
    return entries + [entry for name in peers for entry in _of_formats(table[name], formats)]


def _of_formats(entries: Sequence[Entry], formats: Sequence[str]) -> list[Entry]:
    """Choose a peer's entries: the formats' ggml types, or ternary ones for other formats."""
    chosen: dict[Entry, None] = {}
    for entry in entries:
        type, *flags = entry.variant.split()
        if type not in TERNARY:
            chosen[entry] = None
            continue
        for format in formats:
            variant = " ".join([TYPE_OF.get(format, type), *flags])
            chosen[replace(entry, variant=variant)] = None
    return list(chosen)


def _union(lists: Iterable[Sequence[Case]]) -> list[Case]:
    """List all cases once, those of whole models first, in the order of their first mention."""
    cases = list(dict.fromkeys(case for cases in lists for case in cases))
    return sorted(cases, key=lambda case: case.M is not None)


def _measure(
    case: Case,
    among: Sequence[tuple[Entry, Process]],
    repeat: int,
    progress: Progress,
    around: Callable[[Case], None],
    patience_s: float,
) -> list[Result]:
    """Check all participants, then time them in turn, `repeat` times."""
    results = [Result(entry, process, case) for entry, process in among]
    name = " ".join(filter(None, (case.what, case.shape, f"n={case.n}" if case.M else None)))
    for r, (_, process) in zip(results, among, strict=True):
        progress(f"{name}: checking {r.entry.peer} {r.entry.variant}")
        try:
            r.checked, r.how, r.weight_bytes, r.work = process.check(case)
        except Lost as e:
            r.skipped = str(e)
    for i in range(repeat):
        for r, (_, process) in zip(results, among, strict=True):
            own = r.entry.peer == "sterna"
            if r.skipped is not None or not (own or sum(r.seconds) <= patience_s):
                continue
            progress(f"{name}, run {i + 1} of {repeat}: {r.entry.peer} {r.entry.variant}")
            time.sleep(SETTLE_S)
            if own:
                around(case)
            try:
                timing = process.time(case)
            except Lost as e:
                r.skipped = str(e)
                continue
            if own:
                time.sleep(SETTLE_S)
                around(case)
            r.seconds.append(timing.seconds)
            r.joules += [] if timing.joules is None else [timing.joules]
            r.rss_bytes = process.rss_bytes()
            if not timing.ok and r.checked:
                r.checked, r.how = False, f"run {i + 1} gave another output than the check"
    return results


def _rows(results: Sequence[Result], threads: int) -> list[Row]:
    """Make the rows of one case, with ratios to the first of Sterna's formats that counts."""
    rows = [_row(r, threads) for r in results]
    of_sterna = [row for row in rows if row["peer"] == "sterna" and row["checked"]]
    if of_sterna and of_sterna[0]["time_us"]:
        for row in rows:
            if row["time_us"] and row["checked"]:
                row["ratio_to_sterna"] = significant(of_sterna[0]["time_us"] / row["time_us"])
    return rows


def _row(r: Result, threads: int) -> Row:
    """Make one row; it has the figures of an unchecked run, but says that they do not count."""
    row: Row = dict.fromkeys(
        ("peer", "version", "what", "format", "head", "shape", "n", "threads", "tok_s", "gops",
         "gb_s", "ratio_to_sterna", "time_us", "time_us_min", "time_us_max", "repeat", "rss_mb",
         "joules", "checked", "check", "skipped")
    )  # fmt: skip
    row |= {"peer": r.entry.peer, "format": r.entry.variant, "threads": threads, "checked": False}
    row["skipped"] = r.skipped
    case, p = r.case, r.process
    if case is None or p is None:
        return row
    row |= {"version": p.version, "format": p.format, "what": case.what, "shape": case.shape}
    row |= {"n": case.n, "check": r.how or None, "head": None if case.M else p.head}
    if r.skipped is not None:
        return row
    seconds = statistics.median(r.seconds)
    least, most = min(r.seconds), max(r.seconds)
    times = {"time_us": seconds, "time_us_min": least, "time_us_max": most}
    row |= {name: round(value * 1e6, 3) for name, value in times.items()}
    row |= {"repeat": len(r.seconds), "checked": r.checked}
    row["rss_mb"] = None if r.rss_bytes is None else round(r.rss_bytes / 1e6, 1)
    row["joules"] = significant(statistics.median(r.joules)) if r.joules else None
    passes = case.n if case.what.startswith("tg") else 1  # each reads all weights
    if case.M and case.K:
        row["gops"] = significant(2e-9 * case.M * case.K * case.n / seconds)
    else:
        row["tok_s"] = significant(case.n / seconds)
    if r.weight_bytes and (case.n == 1 or case.what.startswith("tg")):
        row["gb_s"] = significant(passes * r.weight_bytes / seconds / 1e9)
    return row
