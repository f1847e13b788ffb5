"""Checks whether a model on disk has its recorded hashes or, without any, is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sterna import formats
from sterna.checkpoints.directory import CONFIG, Checkpoint, check_bundle
from sterna.checkpoints.mistral_layout import PARAMS
from sterna.checkpoints.packed_config import check_config
from sterna.checkpoints.packed_directory import open_packed
from sterna.checkpoints.resolve import resolve
from sterna.checkpoints.safetensors import recorded_hash
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.checkpoints.tensor_file import TensorFile, check_hash
from sterna.convert.plan import check_assets, plan
from sterna.errors import ModelFormatError, NonFiniteError, RequestError, UnsupportedModelError
from sterna.gguf.file import GgufModel
from sterna.gguf.hashes import BARE_HASHES, HASHES, heading, metadata_hash
from sterna.gguf.paths import is_gguf
from sterna.weights.storages.base import FLOATS

__all__ = ["DAMAGED", "SOUND", "UNCHECKED", "VERIFIED", "Check", "verify"]

VERIFIED = "verified"  # its SHA-256 is the recorded one
SOUND = "sound"  # no hash is recorded; nothing is wrong with it
DAMAGED = "damaged"
UNCHECKED = "unchecked"  # of the model as a whole: not one that Sterna runs


@dataclass(frozen=True)
class Check:
    """The result for one tensor, or, if `tensor` is empty, for the model as a whole.

    The whole is verified if its settings are hashed, too; `problem` describes the damage.
    """

    file: Path
    tensor: str
    status: str
    nbytes: int = 0
    problem: str | None = None


@dataclass
class _Stored:
    """A model's weight files, and the hashes recorded with them."""

    files: list[TensorFile]
    hashes: dict[str, str]
    packed: bool = False
    bare: bool = True  # hashes cover only a tensor's bytes
    check_settings: Callable[[], bool] = field(default=lambda: False)  # whether they are hashed


def verify(model: str | Path, progress: Callable[[int, int], None] | None = None) -> list[Check]:
    """Read every tensor of a model and check it against the SHA-256 recorded with it.

    Models written by Sterna have hashes of all tensors and of their settings. A published model has
    none; its weights are checked to be finite. The last check reads the model as a start does: all
    tensors of the architecture, with fitting shapes, the tokenizer and the chat template. progress:
    called with the bytes done and in all; all are read twice. Raises RequestError for a path that
    cannot be read.
    """
    path = resolve(model, offline=True)
    if path.is_dir() and not any((path / name).is_file() for name in (CONFIG, PARAMS)):
        raise RequestError(
            f"{path}: must be a model's folder, but has no {CONFIG}; pass the folder that holds it"
        )
    try:
        stored = _open(path)
    except ModelFormatError as error:
        return [Check(path, "", DAMAGED, problem=str(error))]
    total = sum(info.nbytes for file in stored.files for info in file.tensors.values())
    done = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, 2 * total)

    checks = [
        _check(file, info, stored, advance)
        for file in stored.files
        for info in file.tensors.values()
    ]
    if not any(check.status == DAMAGED for check in checks):
        hashed = all(check.status == VERIFIED for check in checks)
        checks.append(_check_whole(path, stored, hashed, lambda part: advance(int(part * total))))
    return checks


def _open(path: Path) -> _Stored:
    if is_gguf(path):
        return _open_gguf(GgufModel(path))
    check_bundle(path)
    checkpoint = Checkpoint.open(path)
    files = checkpoint.files
    recorded = {n: recorded_hash(file, n) for file in files for n in file.tensors}
    hashes = {name: hash for name, hash in recorded.items() if hash is not None}
    if not checkpoint.is_packed:
        return _Stored([*files], hashes)

    def check() -> bool:
        return check_config(path, checkpoint.config, files[0])

    return _Stored([*files], hashes, packed=True, check_settings=check)


def _open_gguf(model: GgufModel) -> _Stored:
    m, hashes = model.metadata, dict[str, str]()
    key = next((key for key in (HASHES, BARE_HASHES) if key in m), None)
    if key is not None:
        recorded = m.texts(key)
        if len(recorded) != len(model.tensors):
            raise m.error(key, f"{len(model.tensors)}, one for each tensor", len(recorded))
        hashes = dict(zip(model.tensors, recorded, strict=True))

    def check() -> bool:
        expected, got = metadata_hash(m)
        if expected not in (None, got):
            remedy = "they were changed after they were written: make or download the model again"
            raise m.error("metadata", f"values of SHA-256 {expected}", got, remedy)
        return expected is not None

    return _Stored([*model.files.values()], hashes, bare=key != HASHES, check_settings=check)


def _check(
    file: TensorFile, info: TensorInfo, stored: _Stored, advance: Callable[[int], None]
) -> Check:
    expected = stored.hashes.get(info.name)
    head = b"" if stored.bare else heading(info.name, info.dtype, info.shape)
    non_finite = False

    def look(chunk: memoryview) -> None:
        nonlocal non_finite
        f = formats.float_format(FLOATS[info.dtype])
        non_finite |= not f.is_finite(np.frombuffer(chunk, f.bits_type), 1)

    try:
        check_hash(file, info, expected, advance, look if info.dtype in FLOATS else None, head)
    except ModelFormatError as error:
        return Check(file.path, info.name, DAMAGED, info.nbytes, str(error))
    if non_finite:
        return Check(file.path, info.name, DAMAGED, info.nbytes, "NaN or infinity in it")
    return Check(file.path, info.name, VERIFIED if expected else SOUND, info.nbytes)


def _check_whole(
    path: Path, stored: _Stored, hashed: bool, advance: Callable[[float], None]
) -> Check:
    """Check that all tensors exist and fit the settings.

    Weights are read again even if all hashes are right, since these do not cover config.json.
    advance: called with the share of the weights that was read since its last call.
    """
    try:
        complete = stored.check_settings() and hashed
        if stored.packed and not hashed:
            for module in (modules := open_packed(path).modules):
                modules[module]
        model, planned = plan(path)
        check_assets(model)
        for item in planned.items.values():
            for _ in planned.read(item):
                pass
            advance(item.M * item.K / planned.n_weights)
        planned.check_all_read(model)
    except UnsupportedModelError as error:  # Sterna does not know what should be there
        return Check(path, "", UNCHECKED, problem=str(error))
    except (ModelFormatError, NonFiniteError) as error:
        return Check(path, "", DAMAGED, problem=str(error))
    return Check(path, "", VERIFIED if complete else SOUND)
