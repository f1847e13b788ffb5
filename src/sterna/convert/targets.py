"""Checks the arguments of a conversion before it starts."""

from __future__ import annotations

import os
from pathlib import Path

from sterna import formats
from sterna.checkpoints.directory import CONFIG
from sterna.errors import RequestError, shown
from sterna.files.writing import require_name

__all__ = ["check_places", "with_scales"]


def check_places(
    src: str | Path, dst: str | os.PathLike[str], force: bool, file: bool = False
) -> None:
    """Raise RequestError if `dst` exists and may not be replaced, or holds the source.

    file: whether a file is written, or else a folder; `force` replaces only folders of models.
    """
    target = Path(dst)
    require_name(target)
    source, place = os.path.realpath(src), os.path.realpath(target)
    if source == place or source.startswith(place + os.sep):
        raise RequestError(f"{dst}: must be another place than {src}, which is read; choose one")
    if not target.exists():
        return
    kind = "file" if file else "folder"
    if target.is_dir() == file:
        raise RequestError(f"{dst}: must be a {kind}, but got something else; choose another place")
    if not file and not any(target.iterdir()):
        return
    if not force:
        raise RequestError(f"{dst}: must not exist, but it does; --force replaces it")
    if not file and not (target / CONFIG).is_file():
        raise RequestError(
            f"{dst}: must be a model's folder to be replaced, but has no {CONFIG}; "
            "remove it yourself"
        )


def with_scales(format: str, scales: str | None) -> str:
    """Add `scales` to a format's name: "tensor", "row" or "group:N"; RequestError for others."""
    if scales is None:
        return format
    kind, _, size = scales.partition(":")
    if kind in ("tensor", "row") and not size:
        return formats.get(f"{format}:{kind}").name
    if kind == "group" and size:
        return formats.get(f"{format}:g{size}").name
    raise RequestError(
        f"scales: must be tensor, row or group:N such as group:128, not {shown(scales)}"
    )
