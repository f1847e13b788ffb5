"""The tables of the Litespark paper, for a ternary model.

They have memory, time to first token, throughput and energy per token. PyTorch with dense weights
and the paper's own library run in turn with Sterna.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sterna.bench.machine import Known, Progress, Rows
from sterna.bench.report import significant
from sterna.bench.shapes import shape_named
from sterna.errors import RequestError
from sterna.runtime import resolve_isa, resolve_threads
from sterna_papers import peers
from sterna_papers.energy import Rapl
from sterna_papers.peers import Entry
from sterna_papers.peers.case import Options

__all__ = ["FIELDS", "FORMATS", "MODEL", "PEERS", "run"]

MODEL = "bitnet-2b"
FORMATS = ("i8", "i2", "t5")
#: The first is what ratios are to.
PEERS: dict[str, tuple[Entry, ...]] = {
    "torch": (Entry("torch", "sterna_papers.peers.torch_model", "bf16"),),
    "litespark": (Entry("litespark", "sterna_papers.peers.litespark", "ternary"),),
}
#: Every row has them all; docs/measurements/papers.md defines them.
FIELDS = (
    "model", "peer", "version", "format", "head", "threads", "pp", "tg", "rss_mb",
    "ttft_ms", "ttft_ms_min", "ttft_ms_max", "tok_s", "tok_s_min", "tok_s_max",
    "prompt_joules", "joules_per_token", "energy",
    "memory_ratio", "ttft_ratio", "tok_s_ratio", "energy_ratio", "repeat", "checked", "skipped",
)  # fmt: skip


def run(
    model: str = MODEL,
    *,
    format_names: Sequence[str] = FORMATS,
    head: str = "int8",
    names: Sequence[str] = tuple(PEERS),
    pp: int = 128,
    tg: int = 128,
    threads: int | None = None,
    isa: str | None = None,
    repeat: int = 3,
    limit_s: float = 900,
    table: Mapping[str, tuple[Entry, ...]] = PEERS,
    rapl: Rapl | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return rows with FIELDS: Sterna in each format, then the peers; medians of `repeat` runs.

    Ratios are improvements over torch, above 1 if torch takes more. energy says which counters were
    read, or that there are none. The row of a peer that is missing or does not fit into memory says
    so. Raises RequestError for wrong arguments.
    """
    if pp < 1 or tg < 1:
        raise RequestError(f"figure litespark: pp and tg must be at least 1, but got {pp}, {tg}")
    if max(pp, tg) > (limit := shape_named(model).context):
        raise RequestError(f"pp, tg: must be at most {limit} for {model}, but got {pp}, {tg}")
    team = int(resolve_threads(threads))
    options = Options(
        shape=model, variant="", threads=team, pp=(pp,), tg=(tg,), n=(), scratch="", head=head,
        isa=resolve_isa(isa),
    )  # fmt: skip
    mine = {"model": model, "threads": team, "pp": pp, "tg": tg}
    mine["energy"] = (rapl or Rapl()).status
    measured = peers.run(
        names, options, formats=format_names, repeat=repeat, limit_s=limit_s, table=table,
        progress=progress,
        known=lambda rows: known(lambda: _compared(rows(), mine, format_names)),
    )  # fmt: skip
    return _compared(measured, mine, format_names)


def _compared(measured: Rows, mine: dict[str, Any], format_names: Sequence[str]) -> Rows:
    """Make a row for each participant, with its ratios to torch if torch was measured."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in measured:
        groups.setdefault((row["peer"], row["format"]), []).append(row)
    place = {("sterna", name): i for i, name in enumerate(format_names)}
    rows = [
        dict.fromkeys(FIELDS) | mine | _participant(groups[key])
        for key in sorted(groups, key=lambda key: place.get(key, len(place)))
    ]
    baseline = next((row for row in rows if row["peer"] == "torch" and row["checked"]), None)
    for row in rows:
        if baseline is not None and row["checked"]:
            row |= _ratios(row, baseline)
    return rows


def _participant(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make one row of a participant's two cases."""
    last = measured[-1]
    out: dict[str, Any] = {name: last[name] for name in ("peer", "version", "format", "head")}
    out["checked"] = all(row["checked"] for row in measured)
    out["skipped"] = next((row["skipped"] for row in measured if row["skipped"]), None)
    for row in measured:
        if row["skipped"]:
            continue
        out |= {"rss_mb": row["rss_mb"], "repeat": row["repeat"]}
        times = {end: row[f"time_us{end}"] for end in ("", "_min", "_max")}
        if row["what"].startswith("pp"):
            out |= {f"ttft_ms{end}": round(us / 1e3, 2) for end, us in times.items()}
            out["prompt_joules"] = row["joules"]
        else:
            out["tok_s"] = row["tok_s"]
            out["tok_s_min"] = significant(row["n"] / times["_max"] * 1e6)
            out["tok_s_max"] = significant(row["n"] / times["_min"] * 1e6)
            if row["joules"] is not None:
                out["joules_per_token"] = significant(row["joules"] / row["n"])
    return out


def _ratios(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float | None]:
    """Compute improvements over the baseline: less memory, time and energy, more tokens."""

    def over(name: str, above: Mapping[str, Any], below: Mapping[str, Any]) -> float | None:
        a, b = above[name], below[name]
        return significant(a / b) if a and b else None

    return {
        "memory_ratio": over("rss_mb", baseline, row),
        "ttft_ratio": over("ttft_ms", baseline, row),
        "tok_s_ratio": over("tok_s", row, baseline),
        "energy_ratio": over("joules_per_token", baseline, row),
    }
