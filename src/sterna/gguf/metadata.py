"""Typed access to a GGUF file's metadata; errors name the file, the key and its place."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import ModelFormatError, UnsupportedModelError, brief
from sterna.gguf.header import Value

__all__ = ["Metadata", "require_neutral"]


class Metadata:
    """The values of a header's keys.

    Methods raise ModelFormatError for a value of another kind or out of range, and for a missing
    key without a default.
    """

    def __init__(self, path: Path, values: Mapping[str, Value], places: Mapping[str, int]) -> None:
        self.path = path
        self._values, self._places = values, places

    def __contains__(self, key: str) -> bool:
        """Whether the file has the key."""
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        """Yield the keys, in the file's order."""
        return iter(self._values)

    def sha256(self, but: tuple[str, ...]) -> str:
        """Return the SHA-256 of keys and values in any order; but: prefixes of keys to skip."""
        digest = hashlib.sha256()
        for key in sorted(key for key in self._values if not key.startswith(but)):
            value: Any = self._values[key]
            if isinstance(value, np.ndarray):
                value = [value.dtype.str, value.tobytes().hex()]
            digest.update(json.dumps([key, value]).encode() + b"\n")
        return digest.hexdigest()

    def error(
        self, key: str, expected: object, got: object, remedy: str | None = None
    ) -> ModelFormatError:
        """Make an error that names a key."""
        return ModelFormatError(
            self.path, key, expected, got, offset=self._places.get(key), remedy=remedy
        )

    def _value(self, key: str, expected: str, kinds: tuple[type, ...]) -> Any:
        value = self._values.get(key)
        if type(value) not in kinds:
            raise self.error(key, expected, "nothing" if value is None else kind_of(value))
        return value

    def integer(self, key: str, default: int | None = None, most: int = 2**63) -> int:
        """Return a whole number from 0 to `most`."""
        if default is not None and key not in self:
            return default
        value = self._value(key, "a whole number", (int,))
        if not 0 <= value <= most:
            raise self.error(key, f"a whole number from 0 to {most}", value)
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number."""
        if default is not None and key not in self:
            return default
        value = self._value(key, "a number", (int, float))
        if not math.isfinite(value):
            raise self.error(key, "a finite number", value)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        if default is not None and key not in self:
            return default
        return bool(self._value(key, "a boolean", (bool,)))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        if default is not None and key not in self:
            return default
        return str(self._value(key, "a string", (str,)))

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value: list[str] = self._value(key, "an array of strings", (list,))
        return value

    def is_array(self, key: str) -> bool:
        """Whether the key's value is an array of numbers."""
        return isinstance(self._values.get(key), np.ndarray)

    def array(self, key: str) -> npt.NDArray[Any]:
        """Return an array of any number of numbers."""
        value: npt.NDArray[Any] = self._value(key, "an array of numbers", (np.ndarray,))
        return value

    def numbers(self, key: str, size: int) -> npt.NDArray[Any]:
        """Return an array of `size` numbers."""
        value = self.array(key)
        if value.shape != (size,):
            raise self.error(key, f"{size} numbers", value.size)
        return value

    def each(self, key: str, size: int) -> list[int]:
        """Return `size` non-negative whole numbers, stored one by one or as one for all."""
        if not self.is_array(key):
            return [self.integer(key)] * size
        array = self.numbers(key, size)
        if array.dtype.kind not in "iu" or array.min(initial=0) < 0:
            raise self.error(key, f"{size} whole numbers", "others")
        return [int(value) for value in array]

    def flags(self, key: str, size: int) -> list[bool]:
        """Return `size` booleans."""
        array = self.numbers(key, size)
        if array.dtype.kind not in "bu" or array.max(initial=0) > 1:
            raise self.error(key, f"{size} times true or false", "other numbers")
        return [bool(value) for value in array]

    def windowed(self, key: str, size: int, period: int) -> list[bool]:
        """Return `size` booleans, stored one by one; else true except for every n-th.

        n is stored, or `period` if nothing is.
        """
        if self.is_array(key):
            return self.flags(key, size)
        period = self.integer(key, period)
        if period < 1:
            raise self.error(key, "at least 1", period)
        return [(i + 1) % period != 0 for i in range(size)]

    def same(self, key: str, size: int, default: int | None = None) -> int:
        """Return a whole number, stored once or `size` times."""
        value = self._values.get(key)
        if not isinstance(value, np.ndarray):
            return self.integer(key, default)
        array = self.numbers(key, size)
        if array.dtype.kind not in "iu" or not size or (array != array[0]).any() or array[0] < 0:
            raise self.error(key, "one whole number for all layers", "several, or none")
        return int(array[0])


def kind_of(value: Value) -> str:
    """Name a value's kind, for messages."""
    kinds = {list: "an array of strings", str: "a string", bool: "a boolean"}
    if isinstance(value, np.ndarray):
        return "an array of numbers"
    return kinds.get(type(value), "a number")


def require_neutral(m: Metadata, key: str, neutral: tuple[object, ...]) -> None:
    """Raise UnsupportedModelError for a key with a value that changes the arithmetic."""
    if key not in m:
        return
    value = m.boolean(key) if isinstance((*neutral, 0)[0], bool) else m.number(key)
    if value not in neutral:
        raise UnsupportedModelError(
            f"{m.path}: {key} must be absent or {' or '.join(map(str, neutral)) or 'default'}, "
            f"but got {brief(value)}; Sterna does not run this variant"
        )
