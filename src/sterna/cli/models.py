"""`sterna models`: the models at hand without a download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sterna.cli.options import console, json_option, print_json


@click.command(short_help="List the models at hand.")
@json_option
def command(as_json: bool) -> None:
    """List the built-in models and the packed copies in the cache."""
    from sterna.checkpoints.cache import entries
    from sterna.llm import BUILT_IN

    rows = [_row(name, "built-in", path) for name, path in BUILT_IN.items()]
    rows += [_row(str(path), "cache", path) for path, _ in entries()]
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("model", "source", "architecture", "format", "size", box=None, pad_edge=False)
    for row in rows:
        size = "missing" if row["size_bytes"] is None else f"{row['size_bytes'] / 1e6:,.1f} MB"
        table.add_row(
            row["model"], row["source"], row["architecture"] or "?", row["format"] or "?", size
        )
    console().print(table, soft_wrap=True)


def _row(model: str, source: str, path: Path) -> dict[str, Any]:
    # A listing must not fail on one damaged entry: what cannot be read is unknown.
    config: dict[str, Any] = {}
    size = None
    try:
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        read = json.loads((path / "config.json").read_bytes())
        config = read if isinstance(read, dict) else {}
    except (OSError, ValueError, RecursionError):
        pass
    names = config.get("architectures")
    packed = config.get("quantization_config")
    return {
        "model": model,
        "source": source,
        "architecture": names[0] if isinstance(names, list) and names else None,
        "format": packed.get("default_format") if isinstance(packed, dict) else None,
        "size_bytes": size,
        "path": str(path),
    }
