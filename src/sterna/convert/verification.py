"""Whether a model on disk is what was written, or, where no hashes were recorded, sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sterna import _native, models
from sterna.chat import ChatTemplate
from sterna.checkpoints.directory import CONFIG, Checkpoint
from sterna.checkpoints.gguf import GgufModel, is_gguf
from sterna.checkpoints.header import TensorInfo
from sterna.checkpoints.packed import open_packed
from sterna.checkpoints.resolve import resolve
from sterna.checkpoints.safetensors import recorded_hash
from sterna.checkpoints.tensor_file import TensorFile, check_hash
from sterna.convert.gguf_file import HASHES
from sterna.convert.plan import plan
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    UnsupportedModelError,
)
from sterna.formats.base import EXPONENTS
from sterna.models.storages.base import FLOATS
from sterna.tokenizer import Tokenizer

__all__ = ["DAMAGED", "SOUND", "VERIFIED", "Check", "verify"]

VERIFIED = "verified"  # its SHA-256 is the recorded one
SOUND = "sound"  # no hash is recorded; nothing is wrong with it
DAMAGED = "damaged"


@dataclass(frozen=True)
class Check:
    """What was found of one tensor, or of the model as a whole; `problem` says what is wrong."""

    file: Path
    tensor: str
    status: str
    nbytes: int = 0
    problem: str | None = None


def verify(model: str | Path, progress: Callable[[int, int], None] | None = None) -> list[Check]:
    """Reads every tensor of a model and checks it against the SHA-256 recorded with it.

    What Sterna wrote has hashes of all tensors. A published model has none; it is checked for its
    structure, for finite weights, and for whether all that its architecture needs is there. Of
    both, config.json, the tokenizer and the chat template are read as a start reads them.
    progress: called with the bytes done and those there are. Raises RequestError for a path that
    cannot be read.
    """
    path = resolve(model, offline=True)
    if path.is_dir() and not (path / CONFIG).is_file():
        raise RequestError(
            f"{path}: must be a model's folder, but has no {CONFIG}; pass the folder that holds it"
        )
    try:
        files, packed = _files(path)
    except ModelFormatError as error:
        return [Check(path, "", DAMAGED, problem=str(error))]
    total = sum(info.nbytes for file, _ in files for info in file.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    checks = [
        _check(file, info, hashes.get(info.name), advance)
        for file, hashes in files
        for info in file.tensors.values()
    ]
    if not any(check.status == DAMAGED for check in checks):
        hashed = all(check.status == VERIFIED for check in checks)
        checks += _check_whole(path, packed, hashed)
    return checks


def _files(path: Path) -> tuple[list[tuple[TensorFile, dict[str, str]]], bool]:
    """The weight files, each with the hashes that it has; and whether they are a packed model's."""
    if is_gguf(path):
        found: list[tuple[TensorFile, dict[str, str]]] = []
        for part in GgufModel(path).files.values():
            hashes = part.metadata.texts(HASHES) if HASHES in part.metadata else []
            found.append((part, dict(zip(part.tensors, hashes, strict=False))))
        return found, False
    checkpoint = Checkpoint.open(path)
    return [
        (file, {n: h for n in file.tensors if (h := recorded_hash(file, n)) is not None})
        for file in checkpoint.files
    ], checkpoint.is_packed


def _check(
    file: TensorFile, info: TensorInfo, expected: str | None, advance: Callable[[int], None]
) -> Check:
    non_finite = False

    def look(chunk: memoryview) -> None:
        nonlocal non_finite
        words = np.frombuffer(chunk, np.uint32 if info.dtype == "F32" else np.uint16)
        non_finite |= _native.has_non_finite(words, EXPONENTS[FLOATS[info.dtype]], 1)

    try:
        check_hash(file, info, expected, advance, look if info.dtype in FLOATS else None)
    except ModelFormatError as error:
        return Check(file.path, info.name, DAMAGED, info.nbytes, str(error))
    if non_finite:
        return Check(file.path, info.name, DAMAGED, info.nbytes, "NaN or infinity in it")
    return Check(file.path, info.name, VERIFIED if expected else SOUND, info.nbytes)


def _check_companions(model: models.Model) -> None:
    """Reads what a model has besides its weights; of one file that is done when it is opened."""
    if model.companions is None and model.path is not None:
        Tokenizer(model.path).check(model.config.vocab_size)
        ChatTemplate.load(model.path)


def _check_whole(path: Path, packed: bool, hashed: bool) -> list[Check]:
    """What goes beyond single tensors: that they fit config.json, and are all there."""
    try:
        if packed:
            modules = open_packed(path).modules
            for name in () if hashed else modules:
                modules[name]
        model, planned = plan(path)
        _check_companions(model)
        for item in () if hashed else planned.items.values():
            for _ in planned.read(item):
                pass
        if not hashed:
            planned.check_all_read()
    except UnsupportedModelError:
        return []  # nothing that Sterna runs, so it does not know what should be there
    except (ModelFormatError, NonFiniteError) as error:
        return [Check(path, "", DAMAGED, problem=str(error))]
    return []
