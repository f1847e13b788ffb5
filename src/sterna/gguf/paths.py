"""The files of a GGUF model by their names: its parts and its tower.

They are looked for at each start, also where a packed form is in the cache and no reader is needed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["find_mmproj", "is_gguf", "parts_of"]

MAX_PARTS = 10_000
#: Words of a tower's name that are not its model's.
_OF_A_TOWER = re.compile(r"mmproj|model|b?f(16|32)|q\d|[01k]")
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a GGUF file: by its suffix, or by the magic number in the file."""
    path = Path(path)
    if path.suffix.lower() == ".gguf":
        return not path.is_dir()
    try:
        with path.open("rb") if path.is_file() else open(os.devnull, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False


def parts_of(path: Path) -> list[Path]:
    """List the files of a split that `path` is one of, in order; else only `path`."""
    match = _PART.fullmatch(path.name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_PARTS:
        return [path]
    stem, count = match[1], int(match[3])
    return [path.with_name(f"{stem}-{i + 1:05}-of-{count:05}.gguf") for i in range(count)]


def find_mmproj(text: Path) -> Path | None:
    """Return the file of the tower next to a text's file: one with mmproj in its name.

    Folders hold files of many models: of several towers the one is taken whose name has the fewest
    words that the text's name lacks, then the most that it has, then the most bits: F32, BF16, F16,
    then others.
    """
    found = sorted(text.parent.glob("*mmproj*.gguf"))
    order, named = ("f32", "bf16", "f16"), _words(text)

    def rank(file: Path) -> tuple[int, int, int, str]:
        words = _words(file)
        bits = next((i for i, kind in enumerate(order) if kind in words), len(order))
        own = {word for word in words if not _OF_A_TOWER.fullmatch(word)}
        return len(own - named), -len(own & named), bits, file.name

    return min(found, key=rank, default=None)


def _words(file: Path) -> set[str]:
    return {word for word in re.split(r"[-_.]", file.stem.lower()) if word}
