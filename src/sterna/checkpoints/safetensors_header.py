"""The header of a safetensors file: parsed, checked against the file's size, and built.

    8 bytes    N, the header's length, unsigned little-endian
    N bytes    JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {}}
    the rest   the tensors, little-endian, without gaps or overlaps; offsets count from here

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from sterna.errors import ModelFormatError, RequestError
from sterna.files.jsonfile import json_kind, parse_json
from sterna.files.reading import Span, read_span

LENGTH_BYTES = 8
ALIGNMENT = 64  # bytes: a line of the tile layout
# Limits far above any published checkpoint
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 1_000_000
MAX_DIMS = 8  # a vision tower's convolution has five
MAX_DIM = 1 << 31

METADATA = "__metadata__"

# numpy's type for each dtype; a dtype that numpy lacks is read as its bits.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("|u1"),
    "U8": np.dtype("|u1"),
    "I8": np.dtype("|i1"),
    "F8_E4M3": np.dtype("|u1"),
    "F8_E5M2": np.dtype("|u1"),
    "F8_E8M0": np.dtype("|u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}
NAME_OF_DTYPE: dict[np.dtype[Any], str] = {
    np.dtype(bool): "BOOL",
    **{dtype: name for name, dtype in DTYPES.items() if not name.startswith(("B", "F8"))},
}


class TensorInfo(NamedTuple):
    """Where a tensor lies: `offset` is in bytes from the start of `file`, `nbytes` its size."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def read_header(path: Path, descriptor: int, file_nbytes: int, start: int = 0) -> bytearray:
    """Read the JSON bytes of an open file's header; ModelFormatError for an impossible length.

    start: where the safetensors file begins in the open one; file_nbytes: its own bytes.
    """
    if file_nbytes < LENGTH_BYTES:
        rule = f"at least {LENGTH_BYTES} bytes"
        remedy = "the file is truncated: copy or download it again"
        raise ModelFormatError(path, "size", rule, file_nbytes, remedy=remedy)
    prefix = bytearray(LENGTH_BYTES)
    read_span(path, descriptor, memoryview(prefix), Span(start, 0, LENGTH_BYTES))
    length = int.from_bytes(prefix, "little")
    limit = min(MAX_HEADER_BYTES, file_nbytes - LENGTH_BYTES)
    if not 2 <= length <= limit:
        raise ModelFormatError(
            path,
            "header length",
            f"at least 2 bytes, at most {MAX_HEADER_BYTES} and within the file",
            f"{length} in a file of {file_nbytes} bytes",
            offset=0,
            remedy="the file is truncated or is no safetensors file",
        )
    header = bytearray(length)
    read_span(path, descriptor, memoryview(header), Span(start + LENGTH_BYTES, 0, length))
    return header


def parse_header(
    header: bytearray, path: Path, data_offset: int, data_nbytes: int
) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """Parse and check tensors in file order, and the metadata; ModelFormatError if not sound."""
    if not header.startswith(b"{"):  # the format's own rule: no space before the object
        raise ModelFormatError(path, "header", "'{'", repr(header[:1]), offset=LENGTH_BYTES)
    entries = parse_json(header, path, LENGTH_BYTES)
    metadata = _check_metadata(entries.pop(METADATA, {}), path)
    if len(entries) > MAX_TENSORS:
        raise ModelFormatError(path, "tensors", f"at most {MAX_TENSORS}", len(entries))
    infos = [_check_entry(path, name, entry, data_nbytes) for name, entry in entries.items()]
    infos.sort(key=lambda info: info.offset)
    end = 0
    for info in infos:
        if info.offset != end:
            raise _entry_error(
                path,
                info.name,
                "data_offsets",
                f"begin at {end}, where the tensor before ends",
                f"{info.offset}: {'a gap' if info.offset > end else 'an overlap'}",
            )
        end += info.nbytes
    if end != data_nbytes:
        raise ModelFormatError(
            path, "data", f"{end} bytes, as the tensors take", data_nbytes, offset=data_offset + end
        )
    return {i.name: i._replace(offset=i.offset + data_offset) for i in infos}, metadata


def _check_metadata(metadata: object, path: Path) -> dict[str, str]:
    if not isinstance(metadata, dict):
        raise ModelFormatError(path, METADATA, "an object", json_kind(metadata))
    for key, value in metadata.items():
        if not isinstance(value, str):
            raise ModelFormatError(path, f"{METADATA}.{key}", "a string", json_kind(value))
    return metadata


def _check_entry(path: Path, name: str, entry: object, data_nbytes: int) -> TensorInfo:
    """Check one tensor's entry; its offset still counts from the start of the data region."""
    if not isinstance(entry, dict):
        raise _entry_error(path, name, None, "an object", json_kind(entry))
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        got = dtype if isinstance(dtype, str) else json_kind(dtype)
        raise _entry_error(path, name, "dtype", f"one of {' '.join(DTYPES)}", got)
    if not _is_int_list(shape, 1, MAX_DIM) or len(shape) > MAX_DIMS:
        rule = f"at most {MAX_DIMS} integers from 1 to {MAX_DIM}"
        raise _entry_error(path, name, "shape", rule, shape)
    if not _is_int_list(offsets, 0, data_nbytes) or len(offsets) != 2 or offsets[0] > offsets[1]:
        rule = f"[begin, end] with begin <= end <= {data_nbytes}, the bytes of data in the file"
        raise _entry_error(path, name, "data_offsets", rule, offsets)
    begin, end = offsets
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize  # exact: Python's integers do not overflow
    if nbytes != end - begin:
        rule = f"{nbytes} bytes for {dtype} {shape}"
        raise _entry_error(path, name, "data_offsets", rule, end - begin)
    return TensorInfo(name, dtype, tuple(shape), path, begin, nbytes)


def _is_int_list(value: object, low: int, high: int) -> TypeGuard[list[int]]:
    # type() and not isinstance(): JSON's true is an int to Python
    return isinstance(value, list) and all(type(v) is int and low <= v <= high for v in value)


def _entry_error(
    path: Path, name: str, key: str | None, expected: str, got: object
) -> ModelFormatError:
    field = name if key is None else f"{name}.{key}"
    return ModelFormatError(
        path,
        field,
        expected,
        "nothing" if got is None else got,
        offset=LENGTH_BYTES,
        remedy="the header is damaged: copy or download the file again",
    )


def build_header(
    path: Path,
    entries: Sequence[tuple[str, str, tuple[int, ...]]],
    metadata: Mapping[str, str],
    room: int = 0,
) -> bytes:
    """Length and JSON for tensors (name, dtype, shape) in file order, without gaps.

    Padded with spaces so that the data begin at a multiple of 64 bytes, and at `room` or later.
    Raises RequestError.
    """
    document: dict[str, object] = {METADATA: dict(metadata)}
    begin = 0
    for name, dtype, shape in entries:
        end = begin + math.prod(shape) * DTYPES[dtype].itemsize
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    try:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(
            f"{path}: tensor names and metadata must be Unicode text, but got a lone surrogate; "
            "rename the tensor"
        ) from None
    data_offset = -(-max(LENGTH_BYTES + len(text), room) // ALIGNMENT) * ALIGNMENT
    header_bytes = data_offset - LENGTH_BYTES
    if header_bytes > MAX_HEADER_BYTES or len(entries) > MAX_TENSORS:
        raise RequestError(
            f"{path}: must have at most {MAX_TENSORS} tensors and {MAX_HEADER_BYTES} header bytes, "
            f"but got {len(entries)} and {header_bytes}; write several files"
        )
    return header_bytes.to_bytes(LENGTH_BYTES, "little") + text.ljust(header_bytes)
