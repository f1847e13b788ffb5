"""The interpreter of a bundle that needs none on the machine where it runs."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path
from typing import NamedTuple

from sterna.errors import RequestError, reason

__all__ = ["Interpreter", "read_interpreter"]

#: What a program does not import, or needs other libraries of the system: tests, IDLE, Tk, headers.
_UNUSED = re.compile(
    r"(^|/)(test|tests|__pycache__|idlelib|turtledemo|tkinter|lib2to3|ensurepip|site-packages"
    r"|pydoc_data|config-[^/]*)/|\.(a|pyc)$|/(turtle\.py|_tkinter[^/]*|_test[^/]*|xxlimited[^/]*)$"
)
_WANTED = re.compile(r"bin/python3$|lib/(python3\.\d+/.*|libpython3\.\d+(\.so\.[\d.]+|\.dylib))$")


class Interpreter(NamedTuple):
    """A .tar.gz with bin/python3 and its library, and the version, such as 3.12."""

    data: bytes
    version: str


def read_interpreter(path: Path) -> Interpreter:
    """Pack an interpreter that runs from any folder, as python-build-standalone makes them.

    path: a folder with bin and lib, or a .tar.gz of one. Equal input gives equal bytes.
    RequestError.
    """
    try:
        files = _of_folder(path) if path.is_dir() else _of_archive(path)
    except (OSError, tarfile.TarError, EOFError) as error:
        raise RequestError(
            f"python: must be a folder or .tar.gz of an interpreter, but {path} is none: "
            f"{reason(error)}"
        ) from error
    versions = {m[1] for name in files if (m := re.match(r"lib/python(3\.\d+)/os\.py$", name))}
    if "bin/python3" not in files or len(versions) != 1:
        raise RequestError(
            f"python: must have bin/python3 and the library of one version, but {path} does not"
        )
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name.startswith("bin/") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return Interpreter(packed.getvalue(), versions.pop())


def _is_wanted(name: str) -> bool:
    return bool(_WANTED.match(name)) and not _UNUSED.search(name)


def _of_folder(folder: Path) -> dict[str, bytes]:
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name: p.read_bytes() for name, p in paths.items() if _is_wanted(name) and p.is_file()}


def _of_archive(path: Path) -> dict[str, bytes]:
    files = {}
    with tarfile.open(path) as archive:
        for entry in archive.getmembers():
            _, separator, rest = f"/{entry.name}".partition("/bin/python3")
            name = f"bin/python3{rest}" if separator else re.sub(r"^/?.*?(?=lib/)", "", entry.name)
            data = archive.extractfile(entry) if _is_wanted(name) and not entry.isdir() else None
            if data is not None:
                files[name] = data.read()
    return files
