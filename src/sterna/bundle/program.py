"""The program of a bundle: Sterna and the packages that it needs, installed here or from wheels."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sterna import __version__
from sterna.bundle.targets import Target
from sterna.errors import RequestError, brief

__all__ = ["program_of"]

#: Packages that a model in a bundle never needs: it is not fetched from the Hub.
LEFT_OUT = frozenset({"huggingface-hub"})
#: Files that nothing imports: tests, headers, types, the model `nano`, what only Sterna's own tests
#: import, and what an installer or a compiler needs.
_UNUSED = re.compile(
    r"(^|/)(tests?|f2py|include|_pyinstaller|__pycache__)/"
    r"|\.(pyi|pyx|pxd|h|hpp|c|cpp|a|lib|pyc)$"
    r"|^sterna/(data/nano/|_testing\.)"
    r"|\.dist-info/(RECORD|INSTALLER|REQUESTED|WHEEL|direct_url\.json|top_level\.txt|sboms/.*)$"
)
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")


class _Package(NamedTuple):
    """An installed package or a wheel: its requirements, and its files by their paths."""

    requires: list[str]
    files: Callable[[], Iterator[tuple[str, bytes]]]


def program_of(
    target: Target, extras: set[str], wheels: Path | None, folder: Path
) -> dict[str, bytes]:
    """Return the files that go on the path of Python on a target.

    For this system and Python, they are those that are installed. For others, `pip download` gets
    wheels from the package index and from `wheels`, a folder with Sterna's own, into `folder`.
    extras: the extras of Sterna that are needed. Raises RequestError.
    """
    find: Callable[[str], _Package | None] = _installed
    if not target.is_this:
        _download(target, extras, wheels, folder)
        find = _wheels(folder).get
    files: dict[str, bytes] = {}
    for package in _closure(find, extras, target):
        files |= {path: data for path, data in package.files() if not _UNUSED.search(path)}
    return files


def _closure(
    find: Callable[[str], _Package | None], extras: set[str], target: Target
) -> list[_Package]:
    """List Sterna and all packages that it needs on a target; RequestError if one is missing."""
    environment = target.marker_environment()
    done: dict[tuple[str, str], _Package] = {}
    todo = [("sterna", extra) for extra in ("", *sorted(extras))]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in done or name in LEFT_OUT:
            continue
        package = find(name)
        if package is None:
            raise RequestError(
                f"{target}: needs the package {name}, which is not there; install it, or all that "
                f"a bundle needs: pip install 'sterna[{','.join(sorted(extras))}]'"
            )
        done[name, extra] = package
        for line in package.requires:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate(environment | {"extra": extra}):
                todo += [(canonicalize_name(need.name), e) for e in ("", *need.extras)]
    return list({name: package for (name, _), package in done.items()}.values())


def _installed(name: str) -> _Package | None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None

    def files() -> Iterator[tuple[str, bytes]]:
        for path in distribution.files or ():
            text = path.as_posix()
            # Sterna itself may be an editable install, whose list of files is another.
            if not text.startswith(("..", "sterna/")) and not _UNUSED.search(text):
                yield text, Path(str(distribution.locate_file(path))).read_bytes()
        if name == "sterna":
            root = Path(__file__).parents[1]
            for file in root.rglob("*"):
                text = f"sterna/{file.relative_to(root).as_posix()}"
                if file.is_file() and not _UNUSED.search(text):
                    yield text, file.read_bytes()

    return _Package(distribution.requires or [], files)


def _wheels(folder: Path) -> dict[str, _Package]:
    return {
        canonicalize_name(path.name.partition("-")[0]): _wheel(path)
        for path in sorted(folder.glob("*.whl"))
    }


def _wheel(path: Path) -> _Package:
    def files() -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = _DATA.sub("", entry.filename)
                if not entry.is_dir() and ".data/" not in name and not _UNUSED.search(name):
                    yield name, archive.read(entry)

    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", n))
        head = email.message_from_bytes(archive.read(name))
    return _Package(head.get_all("Requires-Dist", []), files)


def _download(target: Target, extras: set[str], wheels: Path | None, folder: Path) -> None:
    wanted = [f"sterna[{','.join(sorted(extras))}]=={__version__}"]
    if target.platform.startswith("windows"):
        wanted.append("colorama")  # click's need there, of which pip asks this system's markers
    call = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
        "--implementation",
        "cp",
        "--python-version",
        target.python,
        *(f"--platform={tag}" for tag in target.wheel_platforms()),
        *([] if wheels is None else ["--find-links", str(wheels)]),
        *wanted,
    ]
    done = subprocess.run(call, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[-1] if lines else done.stderr.strip().rpartition("\n")[2]
        raise RequestError(
            f"{target}: needs wheels for this platform and Python, but got {brief(why)}; pass the "
            "folder of Sterna's own wheel as --wheels, or choose another"
        )
