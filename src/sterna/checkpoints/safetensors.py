"""Safetensors files: a bounds-checked reader and a writer whose tensors are aligned.

The reader checks the whole header against the file's size before it allocates anything for a
tensor.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sterna.checkpoints.buffers import buffer
from sterna.checkpoints.safetensors_header import (
    ALIGNMENT,
    DTYPES,
    LENGTH_BYTES,
    MAX_DIM,
    MAX_DIMS,
    METADATA,
    NAME_OF_DTYPE,
    TensorInfo,
    build_header,
    parse_header,
    read_header,
)
from sterna.checkpoints.tensor_file import TensorFile
from sterna.errors import RequestError
from sterna.files.reading import Span, open_regular
from sterna.files.writing import replacing

__all__ = [
    "SafetensorsFile",
    "SafetensorsWriter",
    "TensorInfo",
    "header_room",
    "recorded_hash",
    "write_safetensors",
]

Array = NDArray[Any]

HASH_PREFIX = "sha256."  # metadata key of a tensor's hash, then its name


class SafetensorsFile(TensorFile):
    """The validated header of one safetensors file, and reads of its tensors.

    `tensors`: name -> TensorInfo, in file order; `metadata`: str -> str; `start`, `nbytes`: the
    whole, in `path`; `data_offset`, `data_nbytes`: the data region. No descriptor stays open
    between reads; a file that has changed since its header was checked is refused.

    Raises ModelFormatError if the file breaks any rule of the format, RequestError if it cannot
    be read. Format: https://github.com/huggingface/safetensors#format
    """

    def __init__(
        self, path: str | os.PathLike[str], start: int = 0, nbytes: int | None = None
    ) -> None:
        """Read and check the header; no tensor is read or allocated.

        start, nbytes: where a safetensors file lies within another; default: all of `path`.
        """
        self.path: Path = Path(path)
        with open_regular(self.path) as (descriptor, state):
            self._state = state
            self.start: int = start
            self.nbytes: int = state.nbytes if nbytes is None else nbytes
            header = read_header(self.path, descriptor, self.nbytes, start)
        self.data_offset: int = start + LENGTH_BYTES + len(header)
        self.data_nbytes: int = start + self.nbytes - self.data_offset
        self.tensors: dict[str, TensorInfo]
        self.metadata: dict[str, str]
        self.tensors, self.metadata = parse_header(
            header, self.path, self.data_offset, self.data_nbytes
        )

    def read(self, info: TensorInfo | str, out: Array | None = None) -> Array:
        """Read one tensor into fresh memory, or into `out`: C-contiguous, same shape and dtype.

        BF16 comes back as uint16, float8 and BOOL as uint8. Raises RequestError if `out` does not
        fit or the memory is not there, ModelFormatError if the file has changed.
        """
        name = info if isinstance(info, str) else info.name
        info = self.info(name)
        if out is None:
            raw = buffer(info.nbytes, info.file, info.name, self.scratch)
            out = raw.view(DTYPES[info.dtype]).reshape(info.shape)
        else:
            _check_out(info, out)
        # A view of the bytes: memoryview.cast refuses 0-d arrays in some layouts, reshape does not.
        flat = out.reshape(-1).view(np.uint8)
        self.read_into(flat.data, [Span(info.offset, 0, info.nbytes)])
        return out


def _check_out(info: TensorInfo, out: Array) -> None:
    dtype = DTYPES[info.dtype]
    fits = out.shape == info.shape and out.dtype == dtype
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise RequestError(
            f"out: must be writable, C-contiguous, {dtype.name} {list(info.shape)} to hold "
            f"{info.name}, but got {out.dtype.name} {list(out.shape)}; pass a fresh array"
        )


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array | tuple[str, Array]],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file, whole or not at all, with a SHA-256 of every tensor.

    Values are arrays, or (dtype, array) where numpy has no dtype of that name: ("BF16", uint16).
    The data begin at a multiple of 64 bytes; tensors whose size is a multiple of 64 come first,
    then the others by falling item size, so all are aligned. Equal input gives equal bytes.
    Raises RequestError (a name, shape or dtype that the format lacks; a full or read-only disk).
    """
    path = Path(path)
    typed = {name: _typed(name, value) for name, value in tensors.items()}
    order = _final_order({name: array for name, (_, array) in typed.items()})
    entries = [(name, typed[name][0], typed[name][1].shape) for name in order]
    hashes = {HASH_PREFIX + name: "0" * 64 for name in order}
    room = len(build_header(path, entries, {**(metadata or {}), **hashes}))
    nbytes = room + sum(array.nbytes for _, array in typed.values())
    with replacing(path, nbytes) as file:
        writer = SafetensorsWriter(path, file, room, metadata)
        for name, value in typed.items():
            writer.add(name, value)
        writer.finish()


def header_room(n_tensors: int, name_bytes: int) -> int:
    """Bound the bytes of a header by the number of tensors and the bytes of the longest name.

    An entry is twice the name, in JSON at most six bytes each, a SHA-256 and four numbers.
    """
    return 4096 + n_tensors * (2 * 6 * name_bytes + 64 + 256)


class SafetensorsWriter:
    """A safetensors file whose tensors arrive one by one and are not kept.

    Tensors whose size is a multiple of 64 are written as they come. The others, which are small in
    models, follow at the end. The header, known only then, goes into room left for it.
    """

    def __init__(
        self, path: Path, file: BinaryIO, room: int, metadata: Mapping[str, str] | None = None
    ) -> None:
        """`file`: empty, positioned at 0; `path`: named in errors; `room`: bytes of the header."""
        self._path, self._file, self._room = path, file, -(-room // ALIGNMENT) * ALIGNMENT
        self._metadata = dict(metadata or {})
        self._entries: list[tuple[str, str, tuple[int, ...]]] = []
        self._names: set[str] = set()
        self._late: dict[str, tuple[str, Array]] = {}
        file.seek(self._room)

    def add(self, name: str, value: Array | tuple[str, Array]) -> None:
        """Write a tensor, given as in `write_safetensors`. RequestError for a repeated name."""
        dtype, array = _typed(name, value)
        if name in self._names:
            raise RequestError(
                f"{self._path}: tensors must have names of their own, but {name} came twice"
            )
        self._names.add(name)
        if array.nbytes % ALIGNMENT:
            self._late[name] = dtype, array.copy()
        else:
            self._write(name, dtype, array)

    def finish(self, metadata: Mapping[str, str] | None = None) -> None:
        """Write the remaining tensors, and the header with further metadata."""
        self._metadata |= metadata or {}
        for name in _final_order({name: array for name, (_, array) in self._late.items()}):
            self._write(name, *self._late[name])
        header = build_header(self._path, self._entries, self._metadata, self._room)
        if len(header) != self._room:
            raise RequestError(
                f"{self._path}: the header must fit into {self._room} bytes, "
                f"but takes {len(header)}"
            )
        self._file.seek(0)
        self._file.write(header)

    def _write(self, name: str, dtype: str, array: Array) -> None:
        data = _bytes_of(array)
        self._metadata[HASH_PREFIX + name] = hashlib.sha256(data).hexdigest()
        self._file.write(data)
        self._entries.append((name, dtype, array.shape))


def _final_order(arrays: Mapping[str, Array]) -> list[str]:
    """Order names as SafetensorsWriter writes them: whole lines as they come, then by item size."""
    return sorted(
        arrays,
        key=lambda n: -arrays[n].dtype.itemsize if arrays[n].nbytes % ALIGNMENT else -ALIGNMENT,
    )


def _typed(name: str, value: Array | tuple[str, Array]) -> tuple[str, Array]:
    dtype, array = value if isinstance(value, tuple) else (None, value)
    array = np.asarray(array)
    if dtype is None:
        dtype = NAME_OF_DTYPE.get(
            array.dtype.newbyteorder("<"), "BOOL" if array.dtype == bool else ""
        )
    stored = DTYPES.get(dtype)
    if stored is None or array.dtype.itemsize != stored.itemsize:
        raise RequestError(
            f"{name}: must be of a dtype that safetensors has, but got {dtype or array.dtype}; "
            "convert it, or pass (dtype name, array of its bits)"
        )
    dims_fit = array.ndim <= MAX_DIMS and all(1 <= dim <= MAX_DIM for dim in array.shape)
    if not dims_fit or not name or name == METADATA:
        raise RequestError(
            f"{name or 'a tensor'}: must have a name of its own and at most {MAX_DIMS} dimensions "
            f"of 1 to {MAX_DIM}, but got shape {list(array.shape)}; reshape or rename it"
        )
    return dtype, array


def _bytes_of(array: Array) -> memoryview:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def recorded_hash(file: SafetensorsFile, name: str) -> str | None:
    """Return the SHA-256 of a tensor that the metadata has, if any."""
    return file.metadata.get(HASH_PREFIX + name)
