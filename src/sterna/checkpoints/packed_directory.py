"""The packed directory: a model in Sterna's tile layout, which needs no conversion to run.

A folder in the Hugging Face layout. Each linear layer is `<name>.codes` (uint8 [tiles, bytes]) and
`<name>.scale` (f32, [] or [M]; for groups of k the kernels' lines, uint8 [tiles, bytes]); every
other tensor is f32. config.json describes them:

    "quantization_config": {"quant_method": "sterna", "layout_version": 3, "default_format": "i2",
        "modules": {name: {"format": "i2", "M": 2560, "K": 2560,
                           "scale": "tensor" | "row" | "group:32"}}}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sterna import _native, formats
from sterna.checkpoints.buffers import buffer
from sterna.checkpoints.directory import CONFIG, WEIGHTS, Checkpoint
from sterna.checkpoints.safetensors import Array, SafetensorsFile
from sterna.checkpoints.safetensors_header import ALIGNMENT, DTYPES, MAX_DIM, TensorInfo
from sterna.checkpoints.tensor_file import reading
from sterna.errors import ModelFormatError, NonFiniteError, RequestError
from sterna.files.jsonfile import json_kind
from sterna.files.reading import Span
from sterna.formats import Format, PackedWeight
from sterna.runtime import resolve_threads

LAYOUT_VERSION = 3  # raise it when old packed directories would be read wrongly
#: Earlier versions that are read, and the formats that they packed in another way: these are
#: refused.
EARLIER_VERSIONS = {2: frozenset({"stq1_0"})}
QUANT_METHOD = "sterna"
CODES, SCALE = ".codes", ".scale"
QUANTIZATION = "quantization_config"
CONFIG_HASH = "sterna.config.sha256"  # metadata key of the SHA-256 of what config.json says
_T = TypeVar("_T")
_SCALE_TYPES = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8"}
_REMEDY = "convert the model again with this version"


@dataclass(frozen=True)
class PackedModel:
    """A packed directory in memory: `modules` are the packed matrices, `tensors` the f32 rest.

    All arrays are views of one 64-byte-aligned buffer, which lives as long as any of them. After
    `open_packed`, they are read anew on each access. mapped: the file, if codes and scales of
    groups are views of it.
    """

    config: dict[str, Any]
    modules: Mapping[str, PackedWeight]
    tensors: Mapping[str, NDArray[np.float32]]
    mapped: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class ModuleSpec:
    """One entry of `modules` in config.json, checked: format, M, K, and where the scales are."""

    format: Format
    M: int
    K: int
    scale: str

    def json(self) -> dict[str, str | int]:
        """Return the entry as config.json has it."""
        return {"format": self.format.name, "M": self.M, "K": self.K, "scale": self.scale}

    def codes_shape(self) -> tuple[int, int]:
        """Return (tiles, bytes of a tile)."""
        return self.format.n_tiles(self.M), self.format.tile_bytes(self.K)

    def scale_shape(self) -> tuple[int, ...]:
        """Return () or (M,), or for groups (tiles, bytes of their lines)."""
        f = self.format
        return f.scales.held_shape(self.scale, f.layout, self.M, self.K)

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """float32, or uint8 of lines."""
        return np.dtype(self.format.scales.held_type)


def read_packed(
    source: str | os.PathLike[str] | Checkpoint,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    mmap: bool = False,
) -> PackedModel:
    """Read a packed directory into one buffer; check its structure, and that floats are finite.

    source: its path, or the opened folder. `convert.verification` checks hashes. progress: as in
    `tensor_file.reading`. mmap: map codes and scales of groups (`TensorFile.map`) if the system
    can; only the checked parts are read at once. Raises ModelFormatError, RequestError (no such
    folder, not enough memory), NonFiniteError (NaN or infinity in a scale or an f32 tensor).
    """
    config, specs, file = _opened(source)
    team = resolve_threads(threads)
    with reading([file], progress):
        mapped = file.map() if mmap else None
        arrays = _read_all(file, mapped)
        modules = {n: _module(file, n, spec, arrays.pop, team) for n, spec in specs.items()}
        if mapped is not None:
            _native.require_whole(mapped)
    tensors = {n: _finite(file, n, a) for n, a in arrays.items()}
    return PackedModel(config, modules, tensors, mapped)


def open_packed(
    source: str | os.PathLike[str] | Checkpoint, threads: int | None = None
) -> PackedModel:
    """Open a packed model. Each weight is read and checked on access, and not kept."""
    config, specs, file = _opened(source)
    team = resolve_threads(threads)
    plain = [n for n in file.tensors if n.removesuffix(CODES).removesuffix(SCALE) not in specs]
    return PackedModel(
        config,
        _OnDemand(list(specs), lambda n: _module(file, n, specs[n], file.read, team)),
        _OnDemand(plain, lambda n: _finite(file, n, file.read(n))),
    )


class _OnDemand(Mapping[str, _T]):
    """A mapping whose values are made each time they are asked for."""

    def __init__(self, names: list[str], read: Callable[[str], _T]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> _T:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _opened(
    source: str | os.PathLike[str] | Checkpoint,
) -> tuple[dict[str, Any], dict[str, ModuleSpec], SafetensorsFile]:
    """Return config.json, its modules, and the file with their tensors; check all shapes."""
    folder = source if isinstance(source, Checkpoint) else Checkpoint.open(source)
    specs = _read_specs(folder.config, folder.path / CONFIG)
    file, *others = folder.files
    if others:
        raise ModelFormatError(
            folder.path, expected=f"all weights in {WEIGHTS}", got=f"{file.path.name} and more"
        )
    _check_tensors(file, specs)
    return folder.config, specs, file


def _module(
    file: SafetensorsFile, name: str, spec: ModuleSpec, take: Callable[[str], Array], threads: int
) -> PackedWeight:
    weight = PackedWeight(
        format=spec.format,
        M=spec.M,
        K=spec.K,
        codes=take(name + CODES),
        scale=_checked_scale(file, spec, name + SCALE, take(name + SCALE), threads),
    )
    if not weight.format.codes_valid(weight.codes, threads):
        raise ModelFormatError(
            file.path,
            name + CODES,
            f"codes of {weight.format}",
            "a code that it does not have",
            remedy=_REMEDY,
        )
    return weight


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the contents of config.json, for any white space and order."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_config(path: Path, config: Mapping[str, Any], file: SafetensorsFile) -> bool:
    """Whether a hash of config.json is recorded; ModelFormatError if it differs."""
    expected = file.metadata.get(CONFIG_HASH)
    if expected not in (None, got := config_hash(config)):
        raise ModelFormatError(
            path / CONFIG,
            expected=f"values of SHA-256 {expected}",
            got=got,
            remedy="it was changed after it was written: make or download the model again",
        )
    return expected is not None


def _read_specs(config: dict[str, Any], path: Path) -> dict[str, ModuleSpec]:
    quantization = config.get(QUANTIZATION)
    if not isinstance(quantization, dict) or quantization.get("quant_method") != QUANT_METHOD:
        raise ModelFormatError(
            path,
            f"{QUANTIZATION}.quant_method",
            repr(QUANT_METHOD),
            "another or none",
            remedy="this folder is not packed: convert it first",
        )
    version = quantization.get("layout_version")
    if type(version) is not int or version not in (LAYOUT_VERSION, *EARLIER_VERSIONS):
        raise ModelFormatError(
            path,
            f"{QUANTIZATION}.layout_version",
            LAYOUT_VERSION,
            version if type(version) is int else json_kind(version),
            remedy=_REMEDY,
        )
    _check_format(path, f"{QUANTIZATION}.default_format", quantization.get("default_format"))
    modules = quantization.get("modules")
    if not isinstance(modules, dict):
        raise ModelFormatError(
            path, f"{QUANTIZATION}.modules", "an object", json_kind(modules), remedy=_REMEDY
        )
    specs = {name: _read_spec(path, name, entry) for name, entry in modules.items()}
    for name, spec in specs.items():
        if spec.format.name in EARLIER_VERSIONS.get(version, ()):
            raise ModelFormatError(
                path,
                f"{QUANTIZATION}.layout_version",
                f"{LAYOUT_VERSION} for {name}, whose format is {spec.format.name}",
                version,
                remedy=_REMEDY,
            )
    return specs


def _read_spec(path: Path, name: str, entry: object) -> ModuleSpec:
    values = entry if isinstance(entry, dict) else {}
    where = f"{QUANTIZATION}.modules.{name}"
    format = _check_format(path, f"{where}.format", values.get("format"))
    for key in ("M", "K"):
        value = values.get(key)
        if type(value) is not int or not 1 <= value <= MAX_DIM:
            raise ModelFormatError(
                path,
                f"{where}.{key}",
                f"an integer from 1 to {MAX_DIM}",
                value if type(value) is int else json_kind(value),
                remedy=_REMEDY,
            )
    scale = values.get("scale")
    if scale not in format.scales.kinds:
        raise ModelFormatError(
            path,
            f"{where}.scale",
            " or ".join(map(repr, format.scales.kinds)),
            repr(scale) if isinstance(scale, str) else json_kind(scale),
            remedy=_REMEDY,
        )
    M, K = values["M"], values["K"]
    try:
        format.check_shape(M, K, name)
    except RequestError as error:  # K so large that int32 sums would overflow
        raise ModelFormatError(
            path, where, f"a shape that {format} can hold", f"{M}x{K}", remedy=str(error)
        ) from None
    return ModuleSpec(format, M, K, str(scale))


def _check_format(path: Path, field: str, name: object) -> Format:
    if not isinstance(name, str) or not formats.known(name):
        raise ModelFormatError(
            path,
            field,
            f"one of {' '.join(formats.names())}",
            repr(name) if isinstance(name, str) else json_kind(name),
            remedy=_REMEDY,
        )
    return formats.get(name)


def _check_tensors(file: SafetensorsFile, specs: Mapping[str, ModuleSpec]) -> None:
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, spec in specs.items():
        expected[name + CODES] = ("U8", spec.codes_shape())
        expected[name + SCALE] = (_SCALE_TYPES[spec.scale_dtype], spec.scale_shape())
    for name, (dtype, shape) in expected.items():
        info = file.info(name)
        if (info.dtype, info.shape) != (dtype, shape):
            raise ModelFormatError(
                file.path,
                name,
                f"{dtype} shape {list(shape)}",
                f"{info.dtype} shape {list(info.shape)}",
                offset=info.offset,
                remedy=_REMEDY,
            )
    for name, info in file.tensors.items():
        if name not in expected and info.dtype != "F32":
            raise ModelFormatError(
                file.path,
                name,
                "F32, for a tensor that is no packed module",
                info.dtype,
                offset=info.offset,
                remedy=_REMEDY,
            )


def _read_all(file: SafetensorsFile, mapped: NDArray[np.uint8] | None) -> dict[str, Array]:
    """Read all tensors, as views of one buffer read in a few large pieces, and of `mapped`.

    Bytes are mapped unless another program has rewritten the file to places that kernels cannot
    read from. Floats, which are few, are read, since they are looked at from Python as well.
    """
    there = {
        name: info
        for name, info in file.tensors.items()
        if mapped is not None and info.dtype == "U8" and info.offset % ALIGNMENT == 0
    }
    spans, starts, nbytes = _place([i for n, i in file.tensors.items() if n not in there])
    whole = buffer(nbytes, file.path, "the weights")
    file.read_into(whole.data, spans)
    file.passed(sum(info.nbytes for info in there.values()))
    arrays = {}
    for name, info in file.tensors.items():
        if mapped is not None and name in there:
            raw = mapped[info.offset : info.offset + info.nbytes]
        else:
            raw = whole[starts[name] : starts[name] + info.nbytes]
        arrays[name] = raw.view(DTYPES[info.dtype]).reshape(info.shape)
    return arrays


def _place(infos: list[TensorInfo]) -> tuple[list[Span], dict[str, int], int]:
    """Where each tensor goes in the buffer: (reads, start of each tensor, bytes in all).

    A file of our writer is aligned already and is one read; one rewritten by another program is
    read tensor by tensor, to the alignment that the kernels need.
    """
    spans: list[Span] = []
    starts: dict[str, int] = {}
    end = 0
    for info in infos:
        alignment = ALIGNMENT if info.dtype == "U8" else DTYPES[info.dtype].itemsize
        start = -(-end // alignment) * alignment
        if spans and start == end and info.offset == spans[-1].offset + spans[-1].nbytes:
            spans[-1] = spans[-1]._replace(nbytes=spans[-1].nbytes + info.nbytes)
        else:
            spans.append(Span(info.offset, start, info.nbytes))
        starts[info.name] = start
        end = start + info.nbytes
    return spans, starts, end


def _checked_scale(
    file: SafetensorsFile, spec: ModuleSpec, name: str, array: Array, threads: int
) -> Array:
    scales = spec.format.scales
    if not scales.group:
        return _finite(file, name, array)
    if not scales.valid(array, spec.format.layout, threads):
        raise NonFiniteError(
            f"{file.path}: {name}: must be finite and in range, but a group's scale is not; "
            "the file is damaged: convert the model again"
        )
    return array


def _finite(file: SafetensorsFile, name: str, array: Array) -> Array:
    finite = np.isfinite(array)
    if not finite.all():
        raise NonFiniteError(
            f"{file.path}: {name}: must be finite, but got {array.reshape(-1)[finite.argmin()]} "
            f"at index {finite.argmin()}; the file is damaged: convert the model again"
        )
    return array
