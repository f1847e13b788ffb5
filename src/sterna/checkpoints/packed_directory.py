"""The packed directory: a model in Sterna's tile layout, which needs no conversion to run.

A folder in the Hugging Face layout. Each linear layer is `<name>.codes` (uint8 [tiles, bytes]) and
`<name>.scale` (f32, [] or [M]; for groups of k the kernels' lines, uint8 [tiles, bytes]); every
other tensor is f32. config.json describes them (`packed_config`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sterna import _native
from sterna.checkpoints.buffers import buffer
from sterna.checkpoints.directory import CONFIG, WEIGHTS, Checkpoint
from sterna.checkpoints.packed_config import REMEDY, ModuleSpec, read_specs
from sterna.checkpoints.safetensors import Array, SafetensorsFile
from sterna.checkpoints.safetensors_header import ALIGNMENT, DTYPES, TensorInfo
from sterna.checkpoints.tensor_file import reading
from sterna.errors import ModelFormatError, NonFiniteError, RequestError
from sterna.files.reading import Span
from sterna.formats import PackedWeight
from sterna.formats.codec import pack_codes
from sterna.runtime import resolve_threads

CODES, SCALE = ".codes", ".scale"
_T = TypeVar("_T")
#: Names of modules that have a matrix of all experts of a layer, and of those of layers.
_EXPERTS = re.compile(r"\.experts\.|\.block_sparse_moe\.(?:in|out)put_linear$")
_LAYERS = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.\d+\.")
_SCALE_TYPES = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8"}


@dataclass(frozen=True)
class PackedModel:
    """A packed directory in memory: `modules` are the packed matrices, `tensors` the f32 rest.

    All arrays are views of one 64-byte-aligned buffer, which lives as long as any of them. After
    `open_packed`, they are read anew on each access. mapped: the file, if codes and scales of
    groups are views of it. on_disk: modules that have not been read.
    """

    config: dict[str, Any]
    modules: Mapping[str, PackedWeight]
    tensors: Mapping[str, NDArray[np.float32]]
    mapped: NDArray[np.uint8] | None = None
    on_disk: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PackedBytes:
    """Bytes of a model's weights: of those that must be in memory, and of those that can stay on
    disk, which are all experts, or without experts the matrices of all layers."""

    in_memory: int
    on_disk: int
    of_experts: bool

    @property
    def all(self) -> int:
        """The bytes of all weights."""
        return self.in_memory + self.on_disk


def _can_stay_on_disk(specs: Mapping[str, ModuleSpec]) -> tuple[frozenset[str], bool]:
    """Name the modules, and say whether they are those of experts."""
    stored = [name for name, spec in specs.items() if spec.stored is None]
    experts = frozenset(name for name in stored if _EXPERTS.search(name))
    return experts or frozenset(name for name in stored if _LAYERS.search(name)), bool(experts)


def packed_bytes(folder: Checkpoint) -> PackedBytes:
    """Count bytes from the header alone; raises as `read_packed`."""
    _, specs, file = _opened(folder)
    modules, of_experts = _can_stay_on_disk(specs)
    names = {name + part for name in modules for part in (CODES, SCALE)}
    sizes = {name: info.nbytes for name, info in file.tensors.items()}
    on_disk = sum(sizes[name] for name in names if file.info(name).dtype == "U8")
    return PackedBytes(sum(sizes.values()) - on_disk, on_disk, of_experts)


def packed_matrices(folder: Checkpoint) -> list[tuple[str, int, int]]:
    """List the format, the weights and the bytes of each matrix, from the header alone."""
    _, specs, file = _opened(folder)
    return [
        (spec.format.name, spec.M * spec.K, sum(file.info(name + p).nbytes for p in (CODES, SCALE)))
        for name, spec in specs.items()
    ]


def read_packed(
    source: str | os.PathLike[str] | Checkpoint,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    mmap: bool = False,
    weights_on_disk: bool = False,
) -> PackedModel:
    """Read a packed directory into one buffer; check its structure, and that floats are finite.

    source: its path, or the opened folder. `convert.verification` checks hashes. progress: as in
    `tensor_file.reading`. mmap: map codes and scales of groups (`TensorFile.map`) if the system
    can; only the checked parts are read at once. weights_on_disk: what can stay there is mapped and
    not even checked, everything else is read. Raises ModelFormatError, RequestError (no such
    folder, not enough memory), NonFiniteError (NaN or infinity in a scale or an f32 tensor).
    """
    config, specs, file = _opened(source)
    team = resolve_threads(threads)
    with reading([file], progress):
        mapped = file.map() if mmap or weights_on_disk else None
        if mapped is None and weights_on_disk:
            raise RequestError(f"{file.path}: weights on disk need a file that can be mapped")
        on_disk = _can_stay_on_disk(specs)[0] if weights_on_disk else frozenset[str]()
        views = [name + part for name in on_disk for part in (CODES, SCALE)]
        arrays = _read_all(file, mapped, views if weights_on_disk else file.tensors)
        on_disk = frozenset(n for n in on_disk if _is_view(arrays[n + CODES], mapped))
        modules = {
            n: _module(file, n, spec, arrays.pop, team, n not in on_disk)
            for n, spec in specs.items()
        }
        if mapped is not None:
            _native.require_whole(mapped)
    tensors = {n: _finite(file, n, a) for n, a in arrays.items()}
    return PackedModel(config, modules, tensors, mapped, on_disk)


def _is_view(array: Array, mapped: NDArray[np.uint8] | None) -> bool:
    return mapped is not None and np.may_share_memory(array, mapped)


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
    specs = read_specs(folder.config, folder.path / CONFIG)
    file, *others = folder.files
    if others:
        raise ModelFormatError(
            folder.path, expected=f"all weights in {WEIGHTS}", got=f"{file.path.name} and more"
        )
    _check_tensors(file, specs)
    return folder.config, specs, file


def _module(
    file: SafetensorsFile,
    name: str,
    spec: ModuleSpec,
    take: Callable[[str], Array],
    threads: int,
    checked: bool = True,
) -> PackedWeight:
    codes, f = take(name + CODES), spec.format
    if not checked:
        return PackedWeight(f, spec.M, spec.K, codes, take(name + SCALE))
    scale = _checked_scale(file, spec, name + SCALE, take(name + SCALE), threads)
    if spec.stored is not None:
        levels = spec.stored.levels(codes, spec.M, spec.K)
        valid = f.codebook is not None and f.codebook.has_all(np.unique(levels).tolist())
        codes = pack_codes(f, levels, threads) if valid else codes
    else:
        valid = f.codes_valid(codes, threads)
    if not valid:
        rule, got = f"codes of {f}", "a code that it does not have"
        raise ModelFormatError(file.path, name + CODES, rule, got, remedy=REMEDY)
    return PackedWeight(f, spec.M, spec.K, codes, scale)


def _check_tensors(file: SafetensorsFile, specs: Mapping[str, ModuleSpec]) -> None:
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, spec in specs.items():
        expected[name + CODES] = ("U8", spec.codes_shape())
        expected[name + SCALE] = (_SCALE_TYPES[spec.scale_dtype], spec.scale_shape())
    for name, info in file.tensors.items():
        expected.setdefault(name, ("F32", info.shape))
    for name, (dtype, shape) in expected.items():
        info = file.info(name)
        if (info.dtype, info.shape) != (dtype, shape):
            rule, got = f"{dtype} shape {list(shape)}", f"{info.dtype} shape {list(info.shape)}"
            raise ModelFormatError(file.path, name, rule, got, offset=info.offset, remedy=REMEDY)


def _read_all(
    file: SafetensorsFile, mapped: NDArray[np.uint8] | None, views: Collection[str]
) -> dict[str, Array]:
    """Read all tensors, as views of one buffer read in a few large pieces, and `views` of `mapped`.

    Bytes are mapped unless another program has rewritten the file to places that kernels cannot
    read from. Floats, which are few, are read, since they are looked at from Python as well.
    """
    there = {
        name: info
        for name, info in file.tensors.items()
        if mapped is not None and info.dtype == "U8" and info.offset % ALIGNMENT == 0
    }
    there = {name: there[name] for name in views if name in there}
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
