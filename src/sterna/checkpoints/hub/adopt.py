"""Models that other tools have put into the Hugging Face cache, used without asking the Hub."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from sterna.checkpoints.directory import CONFIG, INDEX, weight_map
from sterna.checkpoints.hub.choose import RemoteFile, choose
from sterna.checkpoints.hub.room import room_of_folder
from sterna.checkpoints.hub.store import Download, Repository, checked_commit, checked_digest
from sterna.checkpoints.hub.transfer import check
from sterna.checkpoints.hub_names import HubName
from sterna.errors import RequestError


def adopt(name: HubName, context: int | None = None) -> Download | None:
    """Find the model of `name` in the cache; None unless it has all files.

    context: as of `sterna.checkpoints.hub.pull`. Each file is checked by its hash, which is its
    name in the cache, and the model is recorded. Raises RequestError if the name fits several GGUF
    files that are not one model, ModelFormatError if the files are damaged or no model that Sterna
    reads.
    """
    folder = _snapshot(name)
    files = _files(folder) if folder is not None else {}
    if folder is None or not any(p == CONFIG or p.lower().endswith(".gguf") for p in files):
        return None
    sizes = {path: file.size for path, file in files.items()}
    choice = choose(name, sizes, room_of_folder(folder, frozenset(files), context))
    paths = list(choice.files)
    if choice.index:
        paths += sorted(set(weight_map(folder / INDEX).values()))
    if not all(path in files for path in paths):
        return None
    for path in paths:
        check(folder / path, files[path])
    download = Download(
        repo=name.repo,
        revision=name.revision,
        commit=folder.name,
        gguf=choice.gguf,
        default=choice.default,
        asked=(name.file.lower(),) if name.file else (),
        files=tuple(files[path] for path in paths),
        pulled=time.time(),
    )
    with contextlib.suppress(RequestError, OSError):  # a read-only cache
        download.save()
    return download


def _snapshot(name: HubName) -> Path | None:
    """Find the folder of the revision's last known commit."""
    repository = Repository(name.repo)
    with contextlib.suppress(OSError, ValueError):
        folder = repository.snapshot(name.revision)
        if not folder.is_dir():
            ref = repository.folder / "refs" / name.revision
            folder = repository.snapshot(checked_commit(ref.read_text().strip()))
        if folder.is_dir():
            return folder
    with contextlib.suppress(OSError):
        folders = [f for f in (repository.folder / "snapshots").iterdir() if name.is_commit(f.name)]
        return folders[0] if len(folders) == 1 else None
    return None


def _files(folder: Path) -> dict[str, RemoteFile]:
    """List the files of a snapshot by path, if they are links to blobs named by their hash."""
    files = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError, ValueError):
            digest = checked_digest(Path(os.readlink(path)).name)
            relative = path.relative_to(folder).as_posix()
            files[relative] = RemoteFile(relative, path.stat().st_size, digest)
    return files
