"""`sterna info org/name`: the files of a repository on the Hub, and which is the best that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sterna.cli.model_info import tokens_per_s
from sterna.cli.terminal import print_json, print_pairs
from sterna.errors import RequestError

if TYPE_CHECKING:
    from sterna.checkpoints.hub import Candidate, HubName, Offer

__all__ = ["missing_name", "tell_files"]

COLUMNS = {
    "model": "model",
    "type": "type",
    "bits": "bits",
    "size": "size",
    "memory": "memory",
    "tokens_per_s": "tokens/s",
    "note": "",
}


def missing_name(model: str, files: bool) -> HubName | None:
    """Return the name of a repository on the Hub of which nothing is here, or whose `files` are
    asked for; None for other models, and for a single file of a repository."""
    from pathlib import Path

    from sterna.checkpoints.hub_names import HubName, looks_like_name
    from sterna.checkpoints.short_names import hub_name, short_name

    if short_name(model) is not None:
        return HubName(hub_name(model).repo) if files else None
    if not looks_like_name(model) or Path(model).exists():
        if files:
            raise RequestError(f"files: {model} must be a name on the Hub, org/name")
        return None
    from sterna.checkpoints import hub

    name = HubName.parse(model)
    if files:
        return HubName(name.repo, name.revision)
    return None if name.file is not None or hub.find(name) is not None else name


def tell_files(name: HubName, context: int | None, bandwidth: float, as_json: bool) -> None:
    """Print what a repository has, and what to expect of each file here.

    Arguments as of `tell_model`. Raises RequestError, ModelFormatError or HubError.
    """
    from sterna.checkpoints import hub
    from sterna.cli.report import table

    offer = hub.offered(name, context)
    here = {d.gguf or hub.SAFETENSORS for d in hub.downloads(name.repo)}
    rows = [
        _row(name, c, offer, c.path in here, bandwidth)
        for c in sorted(offer.candidates, key=lambda c: (-c.nbytes, c.path))
    ]
    if as_json:
        print_json(rows)
        return
    table([_shown(row) for row in rows], COLUMNS)
    click.echo()
    print_pairs([*_lines(offer, bandwidth), ("best", _best(name, offer))])


def _lines(offer: Offer, bandwidth: float) -> list[tuple[str, str]]:
    """Say what the numbers of the table count."""
    from sterna.checkpoints.hub import human

    free = "" if offer.free is None else f"; some {human(offer.free)} free"
    return [
        ("memory", f"weights, {offer.tokens:,} tokens of context and a margin{free}"),
        (
            "tokens/s",
            f"at most, an estimate: memory gives {bandwidth:.1f} GB/s"
            if bandwidth
            else "unknown: the bandwidth of memory has not been measured",
        ),
    ]


def _best(name: HubName, offer: Offer) -> str:
    if offer.best is not None:
        return f"{_name(name, offer.best)}, {offer.why}"
    if any(offer.free is None or c.memory <= offer.free for c in offer.candidates):
        return "unknown, as the names do not say which files are one model"
    return "none, as no file fits into the free memory"


def _name(name: HubName, candidate: Candidate) -> str:
    from sterna.checkpoints.hub import SAFETENSORS, HubName

    path = candidate.path
    return str(HubName(name.repo, name.revision, None if path == SAFETENSORS else path))


def _row(
    name: HubName, c: Candidate, offer: Offer, is_here: bool, bandwidth: float
) -> dict[str, Any]:
    return {
        "model": _name(name, c),
        "type": c.kind or c.path.rpartition(".")[2],
        "bits": c.bits,
        "size_bytes": c.nbytes,
        "memory_bytes": c.memory,
        "memory_context": offer.tokens,
        "free_bytes": offer.free,
        "fits": offer.free is None or c.memory <= offer.free,
        "tokens_per_s": tokens_per_s(c.read, bandwidth),
        "bandwidth_gb_s": round(bandwidth, 2) or None,
        "here": is_here,
        "best": offer.best is not None and c.path == offer.best.path,
    }


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    from sterna.checkpoints.hub import human

    notes = [
        note
        for note, holds in (
            ("best", row["best"]),
            ("here", row["here"]),
            ("too large", not row["fits"]),
        )
        if holds
    ]
    return {
        **row,
        "size": human(row["size_bytes"]),
        "memory": human(row["memory_bytes"]),
        "note": ", ".join(notes),
    }
