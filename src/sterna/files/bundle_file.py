"""A bundle: one file that has a model, the program that runs it, and a start for the shell.

    header     64 KiB: a shell script, whose second line is a comment with the JSON of `Bundle`
    weights    model.safetensors of a packed directory, mapped from here
    python     optional: a .tar.gz with an interpreter, which the script unpacks
    archive    a zip file: __main__.py, a copy of this module, files.json, and what is unpacked

files.json lists the parts: {part: {path: entry of the archive}}. A part is the model's small files,
or the program for one platform and Python. It is unpacked once, into a folder of the cache that its
SHA-256 names. Offsets in the archive count from its own start, so that it stays a zip file without
the 64-bit fields that zipimport lacks before Python 3.13, however large the weights are.

This module imports only the standard library, and no slow part of it before it is needed: its
copy runs at each start of a bundle, before anything else of Sterna can be imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "HEADER_BYTES",
    "MODEL",
    "Bundle",
    "BundleError",
    "cache_dir",
    "digest_of",
    "read_bundle",
    "require_parts",
    "start",
    "this_target",
    "unpacked",
]

VERSION = 1
HEADER_BYTES = 1 << 16  # weights may be mapped alone from here on any system: 64 KiB on Windows
MARK = b"#!/bin/sh\n# A bundle of Sterna: "
MODEL = "model"  # the part of the model's small files; the others are named by `this_target`
FILES = "files.json"
MAX_PART_BYTES = 2 << 30


AGAIN = "copy or download it again"


class BundleError(Exception):
    """A bundle that is damaged, or has nothing for this system."""

    def __init__(self, path: object, expected: str, got: str, remedy: str) -> None:
        """Arguments as of `ModelFormatError`."""
        super().__init__(f"{path}: expected {expected}, but got {got}; {remedy}")
        self.path: Path = Path(str(path))
        self.expected: str = expected
        self.got: str = got
        self.remedy: str = remedy


class Bundle(NamedTuple):
    """The header of a bundle. Places are (offset, bytes) in the file at `path`.

    parts: SHA-256 of each part (`digest_of`); command: what runs without a command of the user's,
    `chat` or `generate`; args: baked in, as a shell splits them.
    """

    path: Path
    nbytes: int
    weights: tuple[int, int]
    parts: dict[str, str]
    command: str
    args: list[str]

    def line(self) -> bytes:
        """Return the first two lines of the header."""
        told = {"version": VERSION, **self._asdict()}
        del told["path"]
        return MARK + json.dumps(told).encode("ascii") + b"\n"


def read_bundle(path: str | os.PathLike[str]) -> Bundle | None:
    """Read a bundle's header; None for a file of another kind, BundleError for a truncated one."""
    try:
        with open(path, "rb") as file:
            if file.read(len(MARK)) != MARK:
                return None
            line = file.readline(HEADER_BYTES)
            nbytes = os.fstat(file.fileno()).st_size
    except OSError:
        return None
    try:
        told = json.loads(line)
        version = told["version"]
        bundle = Bundle(Path(path), *(told[name] for name in Bundle._fields[1:]))
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(path, "the header of a bundle", "a damaged one", AGAIN) from error
    if version != VERSION:
        remedy = "use the version of Sterna that wrote it"
        raise BundleError(path, f"a bundle of version {VERSION}", repr(version), remedy)
    if bundle.nbytes != nbytes:
        raise BundleError(path, f"{bundle.nbytes} bytes", f"{nbytes}", AGAIN)
    return bundle


def this_target() -> str:
    """Return the name of this system and Python, such as linux-x86_64-cp311."""
    if sys.platform == "win32":
        machine = os.environ.get("PROCESSOR_ARCHITECTURE", "").lower()
    else:
        machine = os.uname().machine
    system = {"darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    return f"{system}-{'x86_64' if machine == 'amd64' else machine}-{python}"


def cache_dir() -> Path | None:
    """STERNA_CACHE, else XDG_CACHE_HOME/sterna, else ~/.cache/sterna; None if it is `off`."""
    chosen = os.environ.get("STERNA_CACHE", "")
    if chosen.lower() == "off":
        return None
    try:
        if chosen:
            return Path(os.path.abspath(Path(chosen).expanduser()))
        xdg = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG specification: a path that is not absolute is to be ignored
        return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "sterna"
    except RuntimeError:  # no home directory
        return None


def digest_of(files: dict[str, bytes]) -> str:
    """Return the SHA-256 of a part: of its files' paths and contents."""
    from hashlib import sha256

    lines = [f"{sha256(data).hexdigest()} {path}\n" for path, data in sorted(files.items())]
    return sha256("".join(lines).encode()).hexdigest()


def unpacked(bundle: Bundle, part: str) -> Path:
    """Return the folder of a part in the cache, which is unpacked and checked if it is not there.

    Without a cache, the folder is temporary and goes with the process. Raises BundleError.
    """
    name = f"bundle-{part}-{bundle.parts[part][:20]}"
    root = cache_dir()
    if root is not None and (root / name).is_dir():
        return root / name
    files = _read_part(bundle, part)
    try:
        if root is not None:
            root.mkdir(parents=True, exist_ok=True)
            return _stored(root, name, files)
    except OSError:  # a full or read-only disk
        pass
    return _temporary(files)


def require_parts(bundle: Bundle) -> None:
    """Read all parts; BundleError if one is not as the header says."""
    for part in bundle.parts:
        _read_part(bundle, part)


def _read_part(bundle: Bundle, part: str) -> dict[str, bytes]:
    import zipfile

    try:
        with zipfile.ZipFile(bundle.path) as archive:
            entries = json.loads(archive.read(FILES))[part]
            size = sum(archive.getinfo(entry).file_size for entry in entries.values())
            if size > MAX_PART_BYTES or not all(map(_is_plain, entries)):
                raise ValueError("impossible names or sizes of files")
            files = {path: archive.read(entry) for path, entry in entries.items()}
    except MemoryError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds, for damage and a missing module
        got = f"{type(error).__name__}: {error}"
        raise BundleError(bundle.path, f"the part {part}", got, AGAIN) from error
    got = digest_of(files)
    if got != bundle.parts[part]:
        expected = f"{part} with SHA-256 {bundle.parts[part]}"
        raise BundleError(bundle.path, expected, got, f"it is damaged: {AGAIN}")
    return files


def _is_plain(path: str) -> bool:
    """Whether a path stays within the folder that it is unpacked to, on every system."""
    return all(step not in ("", ".", "..") for step in path.split("/")) and not set(path) & {*"\\:"}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    made = set[Path]()
    for path, data in files.items():
        target = folder / path
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.add(target.parent)
        target.write_bytes(data)


def _stored(root: Path, name: str, files: dict[str, bytes]) -> Path:
    """Write a folder of the cache under another name, and rename it once it is whole."""
    import secrets
    import shutil

    folder, temporary = root / name, root / f".{name}.{secrets.token_hex(8)}.tmp"
    try:
        temporary.mkdir()
        _write(temporary, files)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process stored the same meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _temporary(files: dict[str, bytes]) -> Path:
    import atexit
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="sterna-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _write(folder, files)
    return folder


def start(argv: list[str]) -> None:
    """Run the bundle that this process was started with, which argv[0] names."""
    target = this_target()
    try:
        bundle = read_bundle(os.path.abspath(argv[0]))
        if bundle is None:
            raise BundleError(argv[0], "a bundle", "another file", AGAIN)
        if target not in bundle.parts:
            known = " or ".join(sorted(set(bundle.parts) - {MODEL}))
            raise BundleError(argv[0], known, target, "run it where it was made for")
        sys.path[0] = str(unpacked(bundle, target))
    except BundleError as error:
        print(f"sterna: {error}", file=sys.stderr)
        sys.exit(2)
    from importlib import import_module

    run: Any = import_module("sterna.cli.bundled").run
    run(bundle, argv)
