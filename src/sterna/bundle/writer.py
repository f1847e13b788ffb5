"""Writes a bundle (sterna.files.bundle_file has its layout)."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from sterna import models
from sterna.bundle.interpreter import Interpreter, read_interpreter
from sterna.bundle.program import program_of
from sterna.bundle.targets import Target, targets_of
from sterna.checkpoints.directory import CONFIG, Checkpoint
from sterna.checkpoints.packed_writer import ASSET_FILES
from sterna.checkpoints.resolve import resolve
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.convert import convert
from sterna.errors import RequestError, shown
from sterna.files import bundle_file
from sterna.files.bundle_file import FILES, HEADER_BYTES, MODEL, Bundle, digest_of
from sterna.files.jsonfile import MAX_CONFIG_BYTES
from sterna.files.reading import CHUNK_BYTES, Span, open_regular, read_file, read_span
from sterna.files.writing import replacing
from sterna.gguf.paths import is_gguf
from sterna.loading import load_assets

__all__ = ["Bundled", "bundle"]

_LARGE = 1 << 16  # bytes from which LZMA's better compression is worth its start
_EPOCH = (1980, 1, 1, 0, 0, 0)  # zip's first day: equal input gives equal bytes
_OWN = Path(__file__).parent


class Bundled(NamedTuple):
    """What was written: bytes of the file and of its weights, and the targets that it runs on."""

    nbytes: int
    weights_nbytes: int
    targets: list[str]


def bundle(
    model: str | Path,
    dst: str | Path,
    *,
    format: str | None = None,
    head: str | None = None,
    args: str = "",
    platforms: Sequence[str] = (),
    python_versions: Sequence[str] = (),
    wheels: str | Path | None = None,
    python: str | Path | None = None,
    compress: bool = True,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Bundled:
    """Write one file that has `model` and the program that runs it.

    Args:
        model: As in `LLM`. It is converted first, unless it is packed already.
        dst: The file, which gets its name once it is whole.
        format, head: As in `convert`.
        args: Options that the bundle starts with, as a shell would split them.
        platforms, python_versions: What it runs on: names of `targets.PLATFORMS`, and versions such
            as 3.12. Default: this system and Python, whose installed packages it gets.
        wheels: A folder with Sterna's wheels for the others; their further packages come from
            pip's index.
        python: An interpreter to include, as a folder or .tar.gz, for the machine that has none.
        compress: Compress the program, which takes most of the time.
        force: Replace an existing file.
        progress: As in `convert`.

    Raises what `convert` does, and RequestError for arguments.
    """
    path = Path(dst)
    if path.exists() and not force:
        raise RequestError(f"{path}: must not exist, but it does; --force replaces it")
    command_args = _split(args)
    interpreter = None if python is None else read_interpreter(Path(python))
    if interpreter is not None:
        if python_versions or len(platforms) > 1:
            raise RequestError("python: is for one platform and its own version; leave others out")
        python_versions = [interpreter.version]
    targets = targets_of([*platforms], [*python_versions])
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".bundle-") as name:
        work = Path(name)
        packed = _packed(model, work / "model", format, head, progress)
        (weights,) = packed.files
        assets = load_assets(packed.path)
        parts = {MODEL: _small_files(packed.path)}
        extras = {"server"} | ({"images"} if "vision_config" in packed.config else set())
        for target in targets:
            folder = work / str(target)
            folder.mkdir()
            wheel_folder = None if wheels is None else Path(wheels)
            parts[str(target)] = program_of(target, extras, wheel_folder, folder)
            shutil.rmtree(folder)
        tail = [b"" if interpreter is None else interpreter.data, _archive(parts, compress)]
        made = Bundle(
            path=path,
            nbytes=HEADER_BYTES + weights.nbytes + sum(map(len, tail)),
            weights=(HEADER_BYTES, weights.nbytes),
            parts={name: digest_of(files) for name, files in parts.items()},
            command="generate" if assets.template() is None else "chat",
            args=command_args,
        )
        header = _header(made, targets, interpreter)
        with replacing(path, made.nbytes, 0o777) as file:
            file.write(header)
            _copy(weights, file)
            file.writelines(tail)
    return Bundled(made.nbytes, weights.nbytes, [*map(str, targets)])


def _split(args: str) -> list[str]:
    try:
        return shlex.split(args)
    except ValueError as error:  # a quote without its end
        raise RequestError(f"args: must be words of a shell, but got {shown(args)}") from error


def _packed(
    model: str | Path,
    folder: Path,
    format: str | None,
    head: str | None,
    progress: Callable[[int, int], None] | None,
) -> Checkpoint:
    """Open a model as a packed directory, converted to `folder` if it is none."""
    path = resolve(model, inspect=models.require_architecture)
    if format is None and head is None and not is_gguf(path):
        checkpoint = Checkpoint.open(path)
        if checkpoint.is_packed:
            return checkpoint
    convert(path, folder, format, head, progress=progress)
    return Checkpoint.open(folder)


def _small_files(folder: Path) -> dict[str, bytes]:
    """Read what a packed directory has besides weights."""
    sizes = {CONFIG: MAX_CONFIG_BYTES, **ASSET_FILES}
    return {n: bytes(read_file(folder / n, m)) for n, m in sizes.items() if (folder / n).is_file()}


def _header(made: Bundle, targets: list[Target], interpreter: Interpreter | None) -> bytes:
    """Write the script that starts the bundle, filled up to HEADER_BYTES."""
    versions = sorted({target.python for target in targets}, key=lambda v: int(v[2:]), reverse=True)
    values: dict[str, object] = {
        "BYTES": made.nbytes,
        "NAMES": " ".join([*(f"python{version}" for version in versions), "python3", "python"]),
        "VERSIONS": ", ".join(f"(3, {version[2:]})" for version in versions),
        "WORDS": " or ".join(versions),
    }
    if interpreter is not None:
        digest = hashlib.sha256(interpreter.data).hexdigest()
        values |= {
            "FROM": sum(made.weights) + 1,  # tail counts from 1
            "SIZE": len(interpreter.data),
            "SUM": digest,
            "DIGEST": digest[:20],
        }
    script = (_OWN / ("start.sh" if interpreter is None else "start_python.sh")).read_text("utf-8")
    for name, value in values.items():
        script = script.replace(f"@{name}@", str(value))
    header = made.line() + script.encode()
    if len(header) > HEADER_BYTES:
        raise RequestError(f"args: must fit into the {HEADER_BYTES} bytes of a bundle's header")
    return header.ljust(HEADER_BYTES, b"\n")


def _copy(weights: SafetensorsFile, file: BinaryIO) -> None:
    with open_regular(weights.path) as (descriptor, _):
        for at in range(0, weights.nbytes, CHUNK_BYTES):
            buffer = bytearray(min(CHUNK_BYTES, weights.nbytes - at))
            span = Span(weights.start + at, 0, len(buffer))
            read_span(weights.path, descriptor, memoryview(buffer), span)
            file.write(buffer)


def _archive(parts: dict[str, dict[str, bytes]], compress: bool) -> bytes:
    """Compress all parts; a file that several have is in the archive once."""
    packed = io.BytesIO()
    entries: dict[bytes, str] = {}  # SHA-256 of the contents -> name in the archive
    listed: dict[str, dict[str, str]] = {}
    with zipfile.ZipFile(packed, "w") as archive:

        def add(name: str, data: bytes, method: int) -> None:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, method, 9)

        # Not compressed: an interpreter without zlib must be able to read them.
        add("__main__.py", (_OWN / "start.py").read_bytes(), zipfile.ZIP_STORED)
        add("bundle_file.py", Path(bundle_file.__file__).read_bytes(), zipfile.ZIP_STORED)
        for part, files in parts.items():
            listed[part] = {}
            for path, data in sorted(files.items()):
                key = hashlib.sha256(data).digest()
                if key not in entries:
                    entries[key] = f"{part}/{path}"
                    method = zipfile.ZIP_LZMA if len(data) >= _LARGE else zipfile.ZIP_DEFLATED
                    add(entries[key], data, method if compress else zipfile.ZIP_STORED)
                listed[part][path] = entries[key]
        add(FILES, json.dumps(listed, sort_keys=True).encode(), zipfile.ZIP_DEFLATED)
    return packed.getvalue()
