"""What a long conversion has measured and rounded, kept for the next run if this one is killed.

    with unfinished(dst, {"text": digest}, reserve=1 << 30) as kept:
        if (found := kept.get("a")) is None:
            kept.put("a", found := {"moments": measure()})

The folder `NAME.unfinished` next to the target has a file of arrays for each name, which is whole
or not there, and `begun.json`, which says what they depend on. A run without an error removes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import __version__
from sterna.checkpoints.cache import cache_key
from sterna.errors import RequestError, warn
from sterna.files.reading import read_file
from sterna.files.system import lock, opened
from sterna.files.writing import replacing, replacing_directory, unwritable
from sterna.formats import Format, weighted
from sterna.formats.feedback import Feedback

__all__ = ["Kept", "begun_with", "unfinished"]

BEGUN, MOST_BEGUN = "begun.json", 1 << 16
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Kept:
    """Arrays by name in a folder. reserve: bytes of disk space that must stay free."""

    folder: Path
    reserve: int

    def get(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """Return what was put under a name; None for nothing, or for a damaged file."""
        try:
            with np.load(self._file(name), allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays, unless too little of the disk would be left; RequestError as `replacing`."""
        nbytes = sum(array.nbytes for array in arrays.values())
        if shutil.disk_usage(self.folder).free < self.reserve + nbytes:
            return
        with replacing(self._file(name), nbytes) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub takes no names

    def rounded(
        self,
        format: Format,
        w: npt.NDArray[np.float32],
        scale: str | None = None,
        squares: npt.NDArray[np.float32] | Feedback | None = None,
        threads: int = 1,
    ) -> weighted.Rounded:
        """Round as `weighted.rounded`, or return what was made of the same before."""
        of_inputs = squares.variances if isinstance(squares, Feedback) else squares
        place = scale if "row" in format.scales.kinds else None  # which other formats ignore
        digest = hashlib.sha256(f"{format} {w.shape} {place} ".encode())
        digest.update(np.ascontiguousarray(w).data)
        digest.update(b"" if of_inputs is None else np.ascontiguousarray(of_inputs).data)
        name = f"rounded-{digest.hexdigest()}"
        if (found := self.get(name)) is not None:
            return found["levels"], found["scales"]
        levels, scales = weighted.rounded(format, w, scale, squares, threads)
        self.put(name, {"levels": levels, "scales": scales})
        return levels, scales

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.npz"


def begun_with(path: Path, texts: Sequence[str], **others: Any) -> dict[str, Any]:
    """Return what moments and roundings depend on: the source, the text, Sterna and others."""
    digest = hashlib.sha256(json.dumps(list(texts)).encode())
    source = cache_key(path, None, None)
    return {"source": source, "text": digest.hexdigest(), "version": __version__, **others}


@contextlib.contextmanager
def unfinished(dst: Path, begun: Mapping[str, Any], reserve: int) -> Iterator[Kept]:
    """Provide what an earlier run for `dst` has kept, if it began with the same.

    begun: JSON, what results depend on. Of a run that began with something else, nothing is taken,
    and a RuntimeWarning says so. Raises RequestError if another process writes there now, for a
    folder that no run has made, and for one that cannot be written.
    """
    folder = dst.with_name(f"{dst.name}.unfinished")
    try:
        _begin(folder, begun)
    except OSError as error:
        raise unwritable(folder, error) from error
    with opened(folder) as descriptor:
        _lock(folder, descriptor)
        yield Kept(folder, reserve)
    shutil.rmtree(folder, ignore_errors=True)


def _begin(folder: Path, begun: Mapping[str, Any]) -> None:
    if folder.exists():
        before = _begun(folder)
        if before == begun:
            return
        others = [name for name in begun if before.get(name) != begun[name]]
        warn(
            f"{folder}: was begun with another {' and another '.join(others)}, so nothing of it is "
            "used, and all is measured anew",
            stacklevel=6,
        )
        with opened(folder) as descriptor:
            _lock(folder, descriptor)
        shutil.rmtree(folder)
    with replacing_directory(folder, 0) as fresh:
        (fresh / BEGUN).write_text(json.dumps(begun), encoding="utf-8")


def _begun(folder: Path) -> dict[str, Any]:
    """Return what a run began with; RequestError for a folder that none has made."""
    with contextlib.suppress(ValueError):
        if folder.is_dir() and (folder / BEGUN).is_file():
            found = json.loads(read_file(folder / BEGUN, MOST_BEGUN))
            if isinstance(found, dict):
                return found
    raise RequestError(
        f"{folder}: must be what an unfinished run has left, but has no {BEGUN}; remove it yourself"
    )


def _lock(folder: Path, descriptor: int | None) -> None:
    try:
        lock(descriptor, wait=False)
    except BlockingIOError:
        raise RequestError(
            f"{folder}: must belong to one run, but another one is under way; wait for its end, or "
            "choose another place"
        ) from None
    except OSError:  # a file system without locks
        return
