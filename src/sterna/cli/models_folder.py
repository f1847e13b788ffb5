"""The models of a folder, as llama.cpp's `--models-dir` finds them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sterna.errors import RequestError
from sterna.files.reading import unreadable

__all__ = ["models_in"]

_PART = re.compile(r"-(\d{5})-of-\d{5}$")


def models_in(folder: Path) -> dict[str, str]:
    """Return the paths of a folder's models, by name in alphabetical order. RequestError.

    A model is a GGUF file, a split one by its first part, or a folder that holds one model with its
    parts and its tower, or a checkpoint. Its name is that of the file, without its suffix, or of
    the folder. Towers (mmproj) and hidden files are none.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    models: dict[str, str] = {}
    for path in entries:
        name = _name(path)
        if name is None:
            continue
        if name in models:
            raise RequestError(
                f"models-dir: must have different names, but {models[name]} and {path} are both "
                f"{name}; rename one"
            )
        models[name] = os.fspath(path)
    if not models:
        raise RequestError(
            f"models-dir: must hold .gguf files or folders of models, but {folder} has none"
        )
    return models


def _name(path: Path) -> str | None:
    """Return the name of a model; None if it is none."""
    if path.name.startswith("."):
        return None
    if path.is_dir():
        return path.name if (path / "config.json").is_file() or _ggufs(path) else None
    if path.suffix.lower() != ".gguf" or "mmproj" in path.name.lower():
        return None
    part = _PART.search(path.stem)
    if part is None:
        return path.stem
    return path.stem[: part.start()] if int(part[1]) == 1 else None


def _ggufs(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix.lower() == ".gguf"]
