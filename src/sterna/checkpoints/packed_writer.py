"""Writes the packed directory (sterna.checkpoints.packed_directory), one weight after the other."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.directory import CONFIG, WEIGHTS
from sterna.checkpoints.packed_config import (
    CONFIG_HASH,
    LAYOUT_VERSION,
    QUANT_METHOD,
    QUANTIZATION,
    ModuleSpec,
    config_hash,
)
from sterna.checkpoints.packed_directory import CODES, SCALE
from sterna.checkpoints.packed_tokenizer import PACKED
from sterna.checkpoints.safetensors import SafetensorsWriter, header_room
from sterna.checkpoints.sentence_transformers import SIZES
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError, brief
from sterna.files.jsonfile import MAX_CONFIG_BYTES
from sterna.files.reading import require_size, unreadable
from sterna.files.writing import copy_file, replacing_directory, synced
from sterna.formats import Format, PackedWeight
from sterna.tokenizer import MAX_TOKENIZER_BYTES

__all__ = ["ASSET_FILES", "PackedWriter", "packing", "write_packed"]

MAX_LICENSE_BYTES = 1 << 20
#: Files that are copied with the weights (what generation needs, and the licence) -> their largest
#: size in bytes: a file too large to be read is too large to be copied.
ASSET_FILES = {
    "generation_config.json": MAX_CONFIG_BYTES,
    "tokenizer.json": MAX_TOKENIZER_BYTES,
    PACKED: MAX_TOKENIZER_BYTES,
    "tokenizer_config.json": MAX_CONFIG_BYTES,
    SIZES: MAX_CONFIG_BYTES,
    "special_tokens_map.json": MAX_CONFIG_BYTES,
    "added_tokens.json": MAX_CONFIG_BYTES,
    "tokenizer.model": MAX_TOKENIZER_BYTES,
    "vocab.json": MAX_TOKENIZER_BYTES,
    "merges.txt": MAX_TOKENIZER_BYTES,
    "chat_template.jinja": MAX_CONFIG_BYTES,
    "chat_template.json": MAX_CONFIG_BYTES,
    "preprocessor_config.json": MAX_CONFIG_BYTES,
    "processor_config.json": MAX_CONFIG_BYTES,
    "LICENSE": MAX_LICENSE_BYTES,
    "LICENSE.md": MAX_LICENSE_BYTES,
    "LICENSE.txt": MAX_LICENSE_BYTES,
    "NOTICE": MAX_LICENSE_BYTES,
}


class PackedWriter:
    """The writer that `packing` yields: takes packed matrices and f32 tensors, and keeps none."""

    def __init__(self, file: SafetensorsWriter) -> None:
        self._file = file
        self.specs: dict[str, ModuleSpec] = {}
        self.nbytes: int = 0  # of tensors so far

    def add(self, name: str, item: PackedWeight | NDArray[np.float32]) -> None:
        """Write a matrix or a tensor. RequestError: arrays that do not fit their format."""
        if isinstance(item, PackedWeight):
            self.specs[name] = _spec_of(name, item)
            self._file.add(name + CODES, item.codes)
            self._file.add(name + SCALE, item.scale)
            self.nbytes += item.codes.nbytes + item.scale.nbytes
            return
        if item.dtype != np.float32:
            raise RequestError(f"{name}: must be float32, but got {item.dtype}; convert it")
        self._file.add(name, item)
        self.nbytes += item.nbytes


@contextlib.contextmanager
def packing(
    dst: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    nbytes: int,
    n_tensors: int,
    name_bytes: int,
    source: str | os.PathLike[str] | None = None,
    default_format: str | None = None,
    force: bool = False,
) -> Iterator[PackedWriter]:
    """Create a packed directory, whole or not at all; `dst` must be absent or empty.

    `config`: the model's config.json, whose quantization_config is replaced; `nbytes`: about the
    bytes to write, to check the disk; `n_tensors`, `name_bytes`: most tensors, two for a matrix,
    and most bytes of their names (`header_room`); `source`: the folder whose tokenizer, chat
    template, generation config and licence are copied; `default_format`: the format asked for, else
    the commonest; `force`: replace a folder with files. Raises RequestError (a full disk).
    """
    dst = Path(dst)
    assets = _asset_files(source)  # first, so that a file that cannot be copied fails early
    room = header_room(n_tensors, name_bytes)
    with replacing_directory(dst, nbytes, force) as folder:
        with synced(folder / WEIGHTS) as file:
            # transformers requires "pt" in the metadata of any safetensors file
            tensors = SafetensorsWriter(dst / WEIGHTS, file, room, {"format": "pt"})
            writer = PackedWriter(tensors)
            yield writer
            quantization = _quantization(writer.specs, default_format)
            text = _config_text(dst, {**config, QUANTIZATION: quantization})
            tensors.finish({CONFIG_HASH: config_hash(json.loads(text))})
        with synced(folder / CONFIG) as file:
            file.write(text)
        for file_of, most in assets:
            copy_file(file_of, folder / file_of.name, most)
        # Whoever reads files that are wrong is told.
        with contextlib.suppress(ModelFormatError, UnsupportedModelError):
            FolderAssets.of(folder, json.loads(text)).pack_tokenizer()


def _asset_files(source: str | os.PathLike[str] | None) -> list[tuple[Path, int]]:
    """List the files to copy, and their allowed sizes; ModelFormatError for a larger file."""
    if source is None:
        return []
    try:
        present = set(os.listdir(source))
    except OSError as error:  # it has gone: half a model is none
        raise unreadable(Path(source), error) from None
    files = [(Path(source) / name, most) for name, most in ASSET_FILES.items() if name in present]
    for file, most in files:
        require_size(file, most)
    return files


def write_packed(
    dst: str | os.PathLike[str],
    config: Mapping[str, Any],
    modules: Mapping[str, PackedWeight],
    tensors: Mapping[str, NDArray[np.float32]],
    source: str | os.PathLike[str] | None = None,
    default_format: str | None = None,
) -> None:
    """Write a model that is in memory as a packed directory; arguments and errors as `packing`."""
    items: list[tuple[str, PackedWeight | NDArray[np.float32]]]
    items = [*modules.items(), *tensors.items()]
    nbytes = sum(item.nbytes for _, item in items)
    with packing(
        dst,
        config,
        nbytes=nbytes,
        n_tensors=2 * len(modules) + len(tensors),
        name_bytes=max((len(name.encode("utf-8", "replace")) for name, _ in items), default=0)
        + len(CODES),
        source=source,
        default_format=default_format,
    ) as writer:
        for name, item in items:
            writer.add(name, item)


def _quantization(specs: Mapping[str, ModuleSpec], default: str | None) -> dict[str, Any]:
    commonest = Counter(spec.format.name for spec in specs.values()).most_common(1)
    return {
        "quant_method": QUANT_METHOD,
        "layout_version": LAYOUT_VERSION,
        "default_format": default or (commonest[0][0] if commonest else "f32"),
        "modules": {name: spec.json() for name, spec in specs.items()},
    }


def _spec_of(name: str, weight: PackedWeight) -> ModuleSpec:
    if not isinstance(weight.format, Format):
        raise weight.refused()
    scale = weight.format.scales.kind_of(weight.scale)
    spec = ModuleSpec(weight.format, int(weight.M), int(weight.K), scale)
    expected = (np.dtype(np.uint8), spec.codes_shape(), spec.scale_dtype, spec.scale_shape())
    codes, scales = weight.codes, weight.scale
    got = (codes.dtype, codes.shape, scales.dtype, scales.shape)
    if got != expected:
        raise RequestError(
            f"{name}: codes and scale must be {_words(expected)} for {spec.format} with "
            f"M={spec.M}, K={spec.K}, but got {_words(got)}; pack it with ops.pack"
        )
    return spec


def _words(kinds: tuple[object, ...]) -> str:
    return " ".join(str(kind) for kind in kinds)


def _config_text(dst: Path, config: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"{dst}: the config must be JSON with finite numbers, "
            f"but got {brief(error)}; correct it"
        ) from None
