"""`sterna models`: the models on this machine."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sterna.cli.option_groups import grouped_command
from sterna.cli.options import json_option
from sterna.cli.terminal import print_json
from sterna.errors import SternaError

MAX_WORD_CHARS = 100
MAX_PATH_CHARS = 4096

MODELS = {
    "model": "model",
    "source": "source",
    "commit": "commit",
    "architecture": "architecture",
    "format": "format",
    "size": "size",
    "last_used": "last used",
}
PACKED = {
    "packed_from": "packed copies of",
    "format": "format",
    "size": "size",
    "last_used": "last used",
    "path": "path",
}


@grouped_command(short_help="List the models on this machine.")
@json_option
def command(as_json: bool) -> None:
    """List the built-in models, the downloads, and the packed copies in the cache."""
    from sterna.cli.report import table

    rows = _rows()
    if as_json:
        print_json(rows)
        return
    table([_shown(row) for row in rows if row["source"] != "cache"], MODELS)
    packed = [_shown(row) for row in rows if row["source"] == "cache"]
    if packed:
        click.echo()
        table(packed, PACKED)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    from sterna.checkpoints.hub import human
    from sterna.formats.level_tables import without_table

    size = "missing" if row["size_bytes"] is None else human(row["size_bytes"])
    unknown = {key: "?" for key in ("architecture", "format", "packed_from") if row[key] is None}
    used = (row["last_used"] or "")[:10]
    return {
        **row,
        "format": without_table(row["format"] or ""),
        **unknown,
        "size": size,
        "commit": row["commit"][:12] if row["commit"] else "",
        "last_used": used,
    }


def _rows() -> list[dict[str, Any]]:
    from sterna.checkpoints.cache import entries, entries_of, source_of
    from sterna.checkpoints.hub import downloads
    from sterna.checkpoints.resolve import BUILT_IN

    rows = [_row(name, "built-in", path) for name, path in BUILT_IN.items()]
    sources = dict(BUILT_IN)
    for d in downloads():
        sources[d.name] = d.path
        used = _time(d.last_used)
        about = {"revision": d.revision, "commit": d.commit, "size_bytes": d.nbytes}
        rows.append({**_row(d.name, "hub", d.path), **about, "last_used": used})
    packed = {entry: name for name, path in sources.items() for entry, _ in entries_of(path)}
    for path, _ in entries():
        source = packed.get(path) or _word(source_of(path), MAX_PATH_CHARS)
        about = {"packed_from": source, "last_used": _time(_modified(path))}
        rows.append({**_row(str(path), "cache", path), **about})
    return rows


def _row(model: str, source: str, path: Path) -> dict[str, Any]:
    from sterna.files.jsonfile import load_settings

    # A listing must not fail at a damaged entry: unreadable values are unknown.
    config: dict[str, Any] = {}
    size = None
    try:
        if path.is_dir():
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            config = load_settings(path / "config.json")
    except (OSError, SternaError):
        pass
    names = config.get("architectures") or [None]
    quantization = config.get("quantization_config")
    packed = quantization if isinstance(quantization, dict) else {}
    stored = packed.get("default_format") or config.get("torch_dtype") or config.get("dtype")
    return {
        "model": model,
        "source": source,
        "revision": None,
        "commit": None,
        "architecture": _word(names[0]) if isinstance(names, list) else None,
        "format": "gguf" if path.suffix.lower() == ".gguf" else _word(stored),
        "size_bytes": size,
        "last_used": None,
        "packed_from": None,
        "path": str(path),
    }


def _word(value: object, most: int = MAX_WORD_CHARS) -> str | None:
    # From a file of someone else's: it must not drive the terminal
    usable = isinstance(value, str) and value.isprintable() and len(value) <= most
    return str(value) if usable else None


def _modified(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _time(seconds: float) -> str | None:
    """ISO 8601 in UTC; None for 0, which means unknown."""
    if not seconds:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
