"""The header of a GGUF file: every count, length and place checked before it is used.

    u32 "GGUF", u32 version (2 or 3), u64 tensors, u64 metadata entries
    entries     string key, u32 type, value
    tensors     string name, u32 dims, u64 sizes (K first), u32 type, u64 offset
    padding     to a multiple of general.alignment (32), then the tensors, each padded likewise

A string is u64 bytes and UTF-8; an array is u32 element type, u64 count, elements. Little-endian.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.checkpoints.safetensors_header import MAX_DIM, MAX_HEADER_BYTES
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.files.reading import Span, read_span
from sterna.files.words import words

__all__ = ["Header", "RawTensor", "Value", "read_header"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
# Limits far above any published file. Limits of counts bound Python's memory for a header by twice
# the file and 256 MB: a string of two bytes takes ten in the file and sixty here, a tensor's entry
# 33 and six hundred.
MAX_ALIGNMENT = 1 << 16
MAX_TENSORS = 1 << 17
MAX_DIMS = 4  # ggml's own limit
MAX_KEYS = 1 << 16
MAX_STRINGS = 4_000_000  # elements of string arrays: 2M tokens, and merges
MAX_NAME_BYTES = 1 << 16  # the format's own limit for keys
_FIRST_READ = 1 << 20

Value = int | float | bool | str | list[str] | npt.NDArray[Any]

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = words("<u1 <i1 <u2 <i2 <u4 <i4 <f4 <u1 <u8 <i8 <f8")  # of types 0 to 7, and 10 to 12
_SCALARS: dict[int, np.dtype[Any]] = {
    type: np.dtype(number) for type, number in zip((*range(8), 10, 11, 12), _NUMBERS, strict=True)
}


class RawTensor(NamedTuple):
    """A tensor as the header states it. shape: rows first, K last; offset: from the data's start;
    at: where in the file its entry begins."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    at: int


class Header(NamedTuple):
    """The contents of a header; `places`: where each key's entry begins; `data_offset`: the
    tensors.

    Both in bytes from the file's start.
    """

    metadata: dict[str, Value]
    places: dict[str, int]
    tensors: list[RawTensor]
    alignment: int
    data_offset: int


class _Cursor:
    """The beginning of the file, read on demand."""

    def __init__(self, path: Path, descriptor: int, file_nbytes: int) -> None:
        self.path, self.at = path, 0
        self._descriptor, self._file_nbytes = descriptor, file_nbytes
        self._data = bytearray()
        self._n_strings = 0

    def error(self, field: str, expected: object, got: object, at: int) -> ModelFormatError:
        remedy = "the file is damaged or truncated: copy or download it again"
        return ModelFormatError(self.path, field, expected, got, offset=at, remedy=remedy)

    def need(self, nbytes: int, field: str) -> int:
        """Make `nbytes` from here on readable; return how many bytes of the file now are."""
        end, have = self.at + nbytes, len(self._data)
        if end <= have:
            return have
        left = self._file_nbytes - self.at
        if nbytes > left:
            raise self.error(field, f"{nbytes} bytes", f"a file that ends after {left}", self.at)
        if end > MAX_HEADER_BYTES:
            raise self.error(field, f"a header below {MAX_HEADER_BYTES} bytes", end, self.at)
        target = min(max(2 * have, end, _FIRST_READ), self._file_nbytes)
        more = bytearray(target - have)
        read_span(self.path, self._descriptor, memoryview(more), Span(have, 0, len(more)))
        self._data += more
        return target

    def integer(self, nbytes: int, field: str) -> int:
        """Read an unsigned integer."""
        self.need(nbytes, field)
        value = int.from_bytes(self._data[self.at : self.at + nbytes], "little")
        self.at += nbytes
        return value

    def count(self, nbytes: int, most: int, least_nbytes: int, field: str) -> int:
        """Read a count of items; the file must have `least_nbytes` bytes for each."""
        at = self.at
        value = self.integer(nbytes, field)
        left = self._file_nbytes - self.at
        if value > most or value * least_nbytes > left:
            rule = f"at most {most}, and within the {left} bytes left of the file"
            raise self.error(field, rule, value, at)
        return value

    def numbers(self, dtype: np.dtype[Any], count: int, field: str) -> npt.NDArray[Any]:
        """Read `count` numbers, a copy."""
        nbytes = count * dtype.itemsize
        self.need(nbytes, field)
        raw = bytes(memoryview(self._data)[self.at : self.at + nbytes])
        self.at += nbytes
        return np.frombuffer(raw, dtype)

    def string(self, field: str, most: int = MAX_HEADER_BYTES) -> str:
        """Read a string of at most `most` bytes."""
        length = self.count(8, most, 1, field)
        self.need(length, field)
        at = self.at
        self.at += length
        return self._decoded(at, self.at, field)

    def strings(self, count: int, field: str) -> list[str]:
        """Read the elements of an array of strings."""
        self._n_strings += count
        if self._n_strings > MAX_STRINGS:
            raise self.error(field, f"at most {MAX_STRINGS} strings", self._n_strings, self.at)
        texts: list[str] = []
        length_at = struct.Struct("<Q").unpack_from
        have, end = self.need(0, field), self.at
        for _ in range(count):
            self.at = end
            if end + 8 > have:
                have = self.need(8, field)
            begin = end + 8
            end = begin + length_at(self._data, begin - 8)[0]
            if end > have:
                have = self.need(end - self.at, field)
            try:
                texts.append(self._data[begin:end].decode("utf-8"))
            except UnicodeDecodeError:
                self._decoded(begin, end, field)  # raises
        self.at = end
        return texts

    def _decoded(self, begin: int, end: int, field: str) -> str:
        try:
            return self._data[begin:end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(
                field, "a string in UTF-8", "invalid bytes", begin + error.start
            ) from None


def read_header(path: Path, descriptor: int, file_nbytes: int) -> Header:
    """Read the header of an open file; check all but the tensors' types and places.

    Raises ModelFormatError; UnsupportedModelError for big-endian files and version 1.
    """
    cursor = _Cursor(path, descriptor, file_nbytes)
    n_tensors, n_keys = _counts(cursor)
    metadata: dict[str, Value] = {}
    places: dict[str, int] = {}
    for _ in range(n_keys):
        at = cursor.at
        key = cursor.string("a metadata key", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.error(key, "each metadata key once", "the key again", at)
        places[key] = at
        metadata[key] = _value(cursor, key)
    alignment = _alignment(cursor, metadata, places)
    tensors = [_tensor(cursor) for _ in range(n_tensors)]
    data_offset = -(-cursor.at // alignment) * alignment
    if tensors and data_offset > file_nbytes:
        rule = f"tensors from byte {data_offset} on"
        raise cursor.error("data", rule, f"a file of {file_nbytes} bytes", cursor.at)
    return Header(metadata, places, tensors, alignment, data_offset)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Read the fixed part: the numbers of tensors and metadata entries."""
    magic = cursor.numbers(np.dtype("<u1"), 4, "magic").tobytes()
    if magic != MAGIC:
        raise cursor.error("magic", repr(MAGIC), repr(magic), 0)
    version = cursor.integer(4, "version")
    if version in VERSIONS:
        # A tensor's entry has 33 bytes at least, a key's 13
        n_tensors = cursor.count(8, MAX_TENSORS, 33, "number of tensors")
        return n_tensors, cursor.count(8, MAX_KEYS, 13, "number of metadata entries")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        raise UnsupportedModelError(
            f"{cursor.path}: must be little-endian, but is a big-endian GGUF file; "
            "convert it again without --bigendian"
        )
    if version == 1:
        raise UnsupportedModelError(
            f"{cursor.path}: must be GGUF version 2 or 3, but is version 1 of 2023; "
            "convert the model again"
        )
    raise cursor.error("version", "2 or 3", version, 4)


def _value(cursor: _Cursor, key: str) -> Value:
    at = cursor.at
    kind = cursor.integer(4, key)
    if kind == _STRING:
        return cursor.string(key)
    if kind in _SCALARS:
        (value,) = _numbers(cursor, kind, 1, key).tolist()
        return bool(value) if kind == _BOOL else value
    if kind != _ARRAY:
        raise cursor.error(key, "a value's type from 0 to 12", kind, at)
    element = cursor.integer(4, key)
    if element == _STRING:
        return cursor.strings(cursor.count(8, MAX_STRINGS, 8, key), key)
    if element in _SCALARS:
        count = cursor.count(8, MAX_HEADER_BYTES, _SCALARS[element].itemsize, key)
        return _numbers(cursor, element, count, key)
    raise cursor.error(key, "an array of numbers or strings", f"elements of type {element}", at + 4)


def _numbers(cursor: _Cursor, kind: int, count: int, key: str) -> npt.NDArray[Any]:
    at = cursor.at
    values = cursor.numbers(_SCALARS[kind], count, key)
    if kind == _BOOL and (values > 1).any():
        wrong = int(np.argmax(values > 1))
        raise cursor.error(key, "0 or 1 for a boolean", values[wrong], at + wrong)
    return values


def _alignment(cursor: _Cursor, metadata: dict[str, Value], places: dict[str, int]) -> int:
    value = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(value) is not int or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        rule = f"a power of two up to {MAX_ALIGNMENT}"
        raise cursor.error(ALIGNMENT_KEY, rule, value, places[ALIGNMENT_KEY])
    return value


def _tensor(cursor: _Cursor) -> RawTensor:
    at = cursor.at
    name = cursor.string("a tensor's name", MAX_NAME_BYTES)
    n_dims = cursor.integer(4, name)
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(f"{name}: dimensions", f"1 to {MAX_DIMS}", n_dims, cursor.at - 4)
    sizes = [cursor.integer(8, name) for _ in range(n_dims)]
    for i, size in enumerate(sizes):
        if not 1 <= size <= MAX_DIM:
            raise cursor.error(
                f"{name}: size {i}", f"1 to {MAX_DIM}", size, cursor.at - 8 * (n_dims - i)
            )
    type_id = cursor.integer(4, name)
    return RawTensor(name, tuple(reversed(sizes)), type_id, cursor.integer(8, name), at)
