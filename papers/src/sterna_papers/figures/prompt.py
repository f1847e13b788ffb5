"""The tables of the llamafile paper: prompt and eval tokens per second of each weight format.

With every format, llama.cpp runs in turn with Sterna, on the same shape and type. It runs through
llama-cpp-python in a process of its own (`sterna_papers.peers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sterna import formats
from sterna.bench.linear import formats_named
from sterna.bench.machine import Known, Pace, Progress, Rows, available_bytes
from sterna.bench.random_models import HEADROOM_BYTES, model_bytes
from sterna.bench.report import significant
from sterna.bench.shapes import shape_named
from sterna.errors import RequestError
from sterna.runtime import resolve_isa, resolve_threads
from sterna_papers import peers
from sterna_papers.peers import Entry, dummy_gguf, llama_cpp
from sterna_papers.peers.blocks import TYPE_OF
from sterna_papers.peers.case import Options
from sterna_papers.peers.llama_cpp import PLAIN

__all__ = ["FIELDS", "FORMATS", "MODELS", "head_of", "run"]

MODELS = ("tinyllama-1.1b", "mistral-7b")
#: Formats of the paper.
FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1")
PEER = "llama.cpp"
MODULE = llama_cpp.__name__
_SPEEDS = ("tok_s", "tok_s_min", "tok_s_max")
#: Every row has them all; docs/measurements/papers.md defines them.
FIELDS = (
    "model", "format", "head", "threads", "isa", "pp", "tg",
    *(f"prompt_{name}" for name in _SPEEDS), *(f"eval_{name}" for name in _SPEEDS), "eval_gb_s",
    "peer", "peer_version", "peer_format", "peer_head",
    *(f"peer_prompt_{name}" for name in _SPEEDS), *(f"peer_eval_{name}" for name in _SPEEDS),
    "prompt_ratio", "eval_ratio", "repeat", "checked", "skipped", "peer_checked", "peer_skipped",
)  # fmt: skip


def head_of(format: str) -> str:
    """Choose Sterna's head: the layers' floats, or int8, since the peer's has at most 8 bits."""
    return "int8" if formats.get(format).integer else format


def run(
    models: Sequence[str] = MODELS,
    *,
    format_names: Sequence[str] = FORMATS,
    pp: int = 512,
    tg: int = 64,
    with_peer: bool = True,
    threads: int | None = None,
    isa: str | None = None,
    deterministic: bool | None = None,
    repeat: int = 3,
    limit_s: float = 900,
    table: Mapping[str, tuple[Entry, ...]] | None = None,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return rows with FIELDS, one per model and format: medians of `repeat` runs in turn.

    A format without a ggml type runs without the peer. Rows say what failed, and what did not fit
    into memory, alone or together with the peer. table: the peers of each format; the second runs
    if the first cannot. Raises RequestError for invalid arguments.
    """
    if pp < 1 or tg < 1:
        raise RequestError(f"figure prompt: pp and tg must be at least 1, but got {pp} and {tg}")
    names = formats_named(format_names)
    names = [name for name in FORMATS if name in names] + [n for n in names if n not in FORMATS]
    entries_of = table if table is not None else _entries()
    team, unit = resolve_threads(threads), resolve_isa(isa)
    for model in models:
        if max(pp, tg) > (limit := shape_named(model).context):
            raise RequestError(f"pp, tg: must be at most {limit} for {model}, but got {pp}, {tg}")
    rows: Rows = []
    known(lambda: rows)
    pace = Pace(len(dict.fromkeys(models)) * len(names))
    for model in dict.fromkeys(models):
        for name in names:
            progress(pace.step(f"{model} {name}"))
            options = Options(
                shape=model, variant=name, threads=int(team), pp=(pp,), tg=(tg,), n=(), scratch="",
                head=head_of(name), isa=unit, deterministic=deterministic,
            )  # fmt: skip
            mine = {"model": model, "format": name, "head": options.head, "threads": int(team)}
            row: dict[str, Any] = dict.fromkeys(FIELDS) | mine | {"isa": unit, "pp": pp, "tg": tg}
            entries = entries_of.get(name, ()) if with_peer else ()
            rows.append(row | _measured(options, entries, with_peer, repeat, limit_s, progress))
    return rows


def _entries() -> dict[str, tuple[Entry, ...]]:
    return {
        name: (Entry(PEER, MODULE, type), Entry(PEER, MODULE, type + PLAIN))
        for name, type in TYPE_OF.items()
    }


def _measured(
    options: Options,
    entries: tuple[Entry, ...],
    with_peer: bool,
    repeat: int,
    limit_s: float,
    progress: Progress,
) -> dict[str, Any]:
    """Measure one model in one format, and its peer."""
    name = options.variant
    positions = max(*options.pp, *options.tg)
    needed = model_bytes(options.shape, name, options.head, positions) + HEADROOM_BYTES
    free = available_bytes() * 9 // 10
    row: dict[str, Any] = {"peer": entries[0].peer if entries else None}
    if with_peer and not entries:
        row["peer_skipped"] = f"{PEER} has no dummy model with layers of {name}"
    if needed > free:
        why = f"needs {needed / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB may be taken"
        return row | {
            "skipped": why,
            "peer_skipped": "nothing to compare with" if entries else None,
        }
    if entries and name in TYPE_OF:
        try:
            both = needed + dummy_gguf.file_bytes(options.model, TYPE_OF[name]) + HEADROOM_BYTES
            why = f"both need {both / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB may be taken"
        except RequestError as e:  # ggml's blocks do not divide the shape
            both, why = free + 1, str(e)
        if both > free:
            row["peer_skipped"], entries = why, ()
    for entry in entries or (None,):
        measured = peers.run(
            ["peer"] if entry else [], options, formats=(name,), repeat=repeat, limit_s=limit_s,
            table={"peer": (entry,)} if entry else {},
            progress=lambda what: progress(f"{options.shape} {name}: {what}"),
        )  # fmt: skip
        row |= _side([r for r in measured if r["peer"] == "sterna"], options, "")
        if entry:
            row |= _side([r for r in measured if r["peer"] != "sterna"], options, "peer_")
        if not row.get("peer_skipped"):
            break
    for kind in ("prompt", "eval"):
        mine, theirs = row[f"{kind}_tok_s"], row.get(f"peer_{kind}_tok_s")
        row[f"{kind}_ratio"] = (
            significant(mine / theirs)
            if theirs and row["checked"] and row["peer_checked"]
            else None
        )
    return row


def _side(measured: Sequence[dict[str, Any]], options: Options, prefix: str) -> dict[str, Any]:
    """Collect one participant's speeds from its rows for a prompt and for single tokens."""
    out: dict[str, Any] = {
        f"{prefix}checked": all(r["checked"] for r in measured),
        f"{prefix}skipped": next((r["skipped"] for r in measured if r["skipped"]), None),
    }
    for kind, what in (("prompt", f"pp{options.pp[0]}"), ("eval", f"tg{options.tg[0]}")):
        r = next((r for r in measured if r["what"] == what and not r["skipped"]), None)
        out[f"{prefix}{kind}_tok_s"] = r and r["tok_s"]
        out[f"{prefix}{kind}_tok_s_min"] = r and significant(r["n"] / r["time_us_max"] * 1e6)
        out[f"{prefix}{kind}_tok_s_max"] = r and significant(r["n"] / r["time_us_min"] * 1e6)
        if prefix and r:
            out |= {"peer_version": r["version"], "peer_format": r["format"]}
            out["peer_head"] = r["head"]
        elif r:
            out["repeat"] = r["repeat"]
            if kind == "eval":
                out["eval_gb_s"] = r["gb_s"]
    return out
