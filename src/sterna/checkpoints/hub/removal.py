"""Removal of downloads from the Hugging Face cache, which other tools use as well."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from sterna.checkpoints import cache
from sterna.checkpoints.hub.store import PARTIAL, Download, Repository, downloads
from sterna.files.writing import unwritable


def remove(download: Download) -> int:
    """Remove a download, copies packed from it, and a half-done transfer; return bytes freed.

    Files that another download or another commit needs stay. Raises RequestError if the disk
    refuses.
    """
    repository = Repository(download.repo)
    path = download.path
    packed = cache.entries_of(path)
    with repository.lock():
        try:
            others = [d for d in downloads(download.repo) if d.record != download.record]
            download.record.unlink(missing_ok=True)
            still_used = {
                file.path for d in others if d.commit == download.commit for file in d.files
            }
            folder = repository.snapshot(download.commit)
            freed = sum(
                _unlink(repository, folder / file.path, file.digest)
                for file in download.files
                if file.path not in still_used
            )
            freed += _prune(repository)
        except OSError as error:
            raise unwritable(repository.folder, error) from error
    if not path.exists():
        for entry, nbytes in packed:
            cache.discard(entry.name)
            freed += nbytes
    return freed


def partial_bytes(repo: str) -> int:
    """Count the bytes that an interrupted pull of a repository has left."""
    total = 0
    for path in (Repository(repo).folder / "blobs").glob(f"*{PARTIAL}"):
        with contextlib.suppress(FileNotFoundError):  # another process has finished its pull
            total += path.stat().st_size
    return total


def remove_partial(repo: str) -> int:
    """Remove the files of an interrupted pull of a repository; return bytes freed."""
    repository = Repository(repo)
    if not repository.folder.is_dir():
        return 0
    with repository.lock():
        return _prune(repository)


def _unlink(repository: Repository, path: Path, digest: str) -> int:
    """Remove a file of a snapshot, and its blob if that was the last link; bytes freed."""
    freed = _own_bytes(path)
    path.unlink(missing_ok=True)
    blob = repository.blob(digest)
    if _is_linked(repository, blob) or not os.path.lexists(blob) or blob.lstat().st_nlink > 1:
        return freed
    freed += _own_bytes(blob)
    blob.unlink()
    return freed


def _own_bytes(path: Path) -> int:
    """Count the bytes that removing this name frees: none for a link, or for a shared file."""
    if not path.is_file() or path.is_symlink():
        return 0
    status = path.stat()
    return status.st_size if status.st_nlink == 1 else 0


def _is_linked(repository: Repository, blob: Path) -> bool:
    return any(
        path.is_symlink() and os.path.normpath(path.parent / os.readlink(path)) == str(blob)
        for path in (repository.folder / "snapshots").rglob("*")
    )


def _prune(repository: Repository) -> int:
    """Remove partial blobs, empty folders, dead refs and empty repositories; return freed bytes."""
    freed = 0
    for partial in (repository.folder / "blobs").glob(f"*{PARTIAL}"):
        freed += partial.stat().st_size
        partial.unlink()
    snapshots = repository.folder / "snapshots"
    for folder in sorted(snapshots.rglob("*"), reverse=True):  # the deepest first
        if folder.is_dir() and not folder.is_symlink():
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()
    for ref in (repository.folder / "refs").rglob("*"):
        with contextlib.suppress(ValueError):  # not Sterna's, nor anyone's
            if ref.is_file() and not repository.snapshot(ref.read_text().strip()).is_dir():
                ref.unlink()
    # Blobs without a snapshot are another tool's, at work
    if not any(any(f.iterdir()) for f in (snapshots, repository.folder / "blobs") if f.is_dir()):
        shutil.rmtree(repository.folder, ignore_errors=True)
    return freed
