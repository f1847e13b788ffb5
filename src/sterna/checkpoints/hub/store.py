"""Downloaded models on disk: the Hugging Face cache's own layout, and Sterna's record of each.

Other tools share the files. Under HF_HUB_CACHE, for each repository:

    models--org--name/blobs/DIGEST                 the files, named by their SHA-256 or git SHA-1
    models--org--name/snapshots/COMMIT/PATH        links to them
    models--org--name/refs/REVISION                the commit of a branch or tag
    models--org--name/sterna/KEY.json              what Sterna fetched, whole and checked

A record is written last and by renaming, so that half a download is never taken for a model. Its
modification time is the model's last use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sterna.checkpoints.hub.choose import RemoteFile
from sterna.checkpoints.hub_names import HubName, is_plain_path
from sterna.errors import SternaError
from sterna.files.jsonfile import load_json_object
from sterna.files.writing import replacing, unwritable

RECORD_VERSION = 1
PARTIAL = ".sterna.incomplete"  # the suffix of a blob that is still being fetched
LOCK_QUIET_S = 0.5  # a wait longer than that is worth a line
_MAX_RECORD_BYTES = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True)
class Download:
    """A model that was fetched whole and checked.

    `revision`: as asked for; `commit`: its commit at that time; `gguf`: the chosen file, None for
    safetensors; `default`: whether the repository's name without a file means it; `asked`: the
    words that have chosen the file so far, in lower case; `files`: path, bytes and digest of each;
    `pulled`: seconds since 1970.
    """

    repo: str
    revision: str
    commit: str
    gguf: str | None
    default: bool
    asked: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    pulled: float

    @property
    def name(self) -> str:
        """The name that opens it."""
        return str(HubName(self.repo, self.revision, None if self.default else self.gguf))

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def path(self) -> Path:
        """The path to open: the snapshot's folder, or the GGUF file in it."""
        folder = Repository(self.repo).snapshot(self.commit)
        return folder / self.gguf if self.gguf else folder

    @property
    def record(self) -> Path:
        """The file of this record."""
        identity = json.dumps([self.revision, self.gguf]).encode()
        name = hashlib.sha256(identity).hexdigest()[:20]
        return Repository(self.repo).records / f"{name}.json"

    @property
    def last_used(self) -> float:
        """Seconds since 1970; 0 if the record is gone."""
        try:
            return self.record.stat().st_mtime
        except OSError:
            return 0.0

    def is_whole(self) -> bool:
        """Whether every file exists with its size; contents were checked after the download."""
        folder = Repository(self.repo).snapshot(self.commit)
        try:
            return all((folder / file.path).stat().st_size == file.size for file in self.files)
        except OSError:
            return False

    def use(self) -> Path:
        """Note the use, if the disk allows, and return `path`."""
        with contextlib.suppress(OSError):
            os.utime(self.record)
        return self.path

    def save(self) -> None:
        """Write the record; a former record of another commit stays, under its commit."""
        former = _read(self.record)
        if former is not None and former.commit != self.commit and former.is_whole():
            replace(former, revision=former.commit)._write()
        asked = {*self.asked, *(former.asked if former is not None else ())}
        replace(self, asked=tuple(sorted(asked)))._write()

    def _write(self) -> None:
        self.record.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"version": RECORD_VERSION, **asdict(self)}, indent=1).encode()
        with replacing(self.record, len(data)) as out:
            out.write(data)


def cache_root() -> Path:
    """Return the Hugging Face cache: HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub."""
    from huggingface_hub import constants

    return Path(os.path.abspath(Path(constants.HF_HUB_CACHE).expanduser()))


class Repository:
    """Where a repository's files lie in the cache."""

    def __init__(self, repo: str) -> None:
        """`repo`: org/name, checked."""
        org, _, name = repo.partition("/")
        self.folder: Path = cache_root() / f"models--{org}--{name}"
        self.records: Path = self.folder / "sterna"

    def snapshot(self, commit: str) -> Path:
        """Return the folder of a commit's files."""
        return self.folder / "snapshots" / commit

    def blob(self, digest: str) -> Path:
        """Return the path of the contents with this digest."""
        return self.folder / "blobs" / digest

    def partial(self, digest: str) -> Path:
        """Return the path of the contents with this digest while they are being fetched."""
        return self.folder / "blobs" / f"{digest}{PARTIAL}"

    @contextlib.contextmanager
    def lock(self, announce: Callable[[str], None] = lambda text: None) -> Iterator[None]:
        """Let one process (and thread) at a time fetch or remove files of this repository.

        announce: called with a notice if this one must wait for another.
        """
        from huggingface_hub.utils import WeakFileLock

        path = self.folder.parent / ".locks" / self.folder.name / "sterna.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path.parent, error) from error
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(WeakFileLock(path, timeout=LOCK_QUIET_S))
            except TimeoutError:
                announce("waiting for another process that downloads or removes this model")
                stack.enter_context(WeakFileLock(path))
            yield

    def link(self, commit: str, file: RemoteFile) -> None:
        """Put a blob at its place in the snapshot: a link, or a copy where links cannot be."""
        target, blob = self.snapshot(commit) / file.path, self.blob(file.digest)
        if not blob.exists() or (target.exists() and target.samefile(blob)):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
        try:
            os.symlink(os.path.relpath(blob, target.parent), temporary)
        except OSError:  # Windows without the right to
            try:
                os.link(blob, temporary)
            except OSError:
                shutil.copyfile(blob, temporary)
        temporary.replace(target)

    def set_ref(self, revision: str, commit: str) -> None:
        """Note the commit of a branch or tag, for other tools."""
        if revision == commit:
            return
        ref = self.folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        with replacing(ref, len(commit)) as out:
            out.write(commit.encode())


def downloads(repo: str | None = None) -> list[Download]:
    """List the models that Sterna fetched and that are still whole, of one repository or all."""
    try:
        folders = [Repository(repo).folder] if repo else sorted(cache_root().glob("models--*"))
        paths = [path for folder in folders for path in (folder / "sterna").glob("*.json")]
    except OSError:
        return []
    whole = [record for record in map(_read, paths) if record is not None and record.is_whole()]
    return sorted(whole, key=lambda d: (d.repo, d.name, d.commit))


def find(name: HubName) -> Download | None:
    """Find the download that a name means, None if there is none; never asks the Hub."""
    candidates = downloads(name.repo)
    exact = [d for d in candidates if d.revision == name.revision]
    for d in exact or [d for d in candidates if name.is_commit(d.commit)]:
        if d.default if name.file is None else _is_file(d, name.file):
            return d
    return None


def _is_file(download: Download, file: str) -> bool:
    # Other words than those that chose it need the repository's list, to be unambiguous.
    path = (download.gguf or "").lower()
    return file.lower() in (path, path.rpartition("/")[2], *download.asked)


def _read(path: Path) -> Download | None:
    """Read a record; None if it is absent, damaged or of another version."""
    try:
        value = load_json_object(path, _MAX_RECORD_BYTES)
        record = Download(
            repo=HubName.parse(value["repo"]).repo,
            revision=HubName.parse(f"{value['repo']}@{value['revision']}").revision,
            commit=checked_commit(value["commit"]),
            gguf=_checked_path(value["gguf"]) if value["gguf"] is not None else None,
            default=bool(value["default"]),
            asked=tuple(map(str, value["asked"])),
            files=tuple(
                RemoteFile(
                    _checked_path(f["path"]), checked_size(f["size"]), checked_digest(f["digest"])
                )
                for f in value["files"]
            ),
            pulled=float(value["pulled"]),
        )
    except (SternaError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    # A record names its own folder: one that was copied elsewhere, or edited, is none
    return record if value.get("version") == RECORD_VERSION and record.record == path else None


def _checked_path(value: Any) -> str:
    if not isinstance(value, str) or not is_plain_path(value):
        raise ValueError("path")
    return value


def checked_commit(value: Any) -> str:
    """Return a commit's 40 digits; ValueError for anything else."""
    if not isinstance(value, str) or not _COMMIT.fullmatch(value):
        raise ValueError("commit")
    return value


def checked_digest(value: Any) -> str:
    """Return a SHA-256's 64 digits or a SHA-1's 40; ValueError for anything else."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("digest")
    return value


def checked_size(value: Any) -> int:
    """Return a file's size in bytes; ValueError unless it is a whole number from 0 to 2^50."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1 << 50:
        raise ValueError("size")
    return value
