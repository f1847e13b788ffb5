"""Typed access to the fields of a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.files.jsonfile import json_kind

__all__ = ["MAX_SIZE", "Fields"]

MAX_SIZE = (
    1 << 24
)  # of any width, count of layers or vocabulary: far above any model, far below overflow
MAX_LAYERS = 1 << 16  # layers are listed before a tensor's shape can contradict their number


class Fields:
    """Typed access to a JSON object; errors name the file and the field.

    names: the file's names of fields, if they differ.
    """

    def __init__(
        self, config: dict[str, Any], file: Path, names: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.config = config
        self.file = file
        self.names = names

    def having(self, config: dict[str, Any]) -> Fields:
        """Another object of the same file."""
        return Fields(config, self.file, self.names)

    def name(self, field: str) -> str:
        """Return the file's name of a field."""
        return self.names.get(field, field)

    def fail(self, field: str, expected: str, got: object) -> None:
        """Raise ModelFormatError for a field."""
        field = self.name(field)
        plain = isinstance(got, (int, float)) and not isinstance(got, bool)
        value = got if plain else f"{json_kind(got)}, {shown(got)}" if got is not None else "none"
        raise ModelFormatError(file=self.file, field=field, expected=expected, got=value)

    def count(
        self, field: str, default: int | None = None, most: int = MAX_SIZE, least: int = 1
    ) -> int:
        """Return a whole number in least..most."""
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(field, f"a whole number in {least}..{most}", value)
        assert isinstance(value, int)
        return value

    def number(self, field: str, default: float | None = None) -> float:
        """Return a positive number."""
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(field, "a positive number", value)
        assert isinstance(value, (int, float))
        if not 0 < value < 1e30:  # NaN fails too
            self.fail(field, "a positive number", value)
        return float(value)

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.count("num_hidden_layers", most=MAX_LAYERS)

    def factor(self, field: str, default: float | None = None) -> float:
        """Return a number that scales something, well within the range of float32."""
        value = self.number(field, default)
        if not 1e-6 <= value <= 1e6:
            self.fail(field, "a number in 0.000001..1000000", value)
        return value

    def cap(self, field: str) -> float:
        """Return the cap of a soft cap; 0 if the field is absent or null."""
        if self.config.get(field) is None:
            return 0.0
        value = self.number(field)
        if not 1e-3 <= value <= 1e6:
            self.fail(field, "a number in 0.001..1000000", value)
        return value

    def mapping(self, field: str) -> dict[str, Any]:
        """Return an object; empty if the field is absent."""
        value = self.config.get(field) or {}
        if not isinstance(value, dict):
            self.fail(field, "an object", value)
        return value

    def flag(self, field: str) -> bool:
        """True or false; false where the field is absent."""
        value = self.config.get(field)
        if not isinstance(value, bool | None):
            self.fail(field, "true or false", value)
        return bool(value)

    def numbers(self, field: str, count: int) -> list[float]:
        """So many positive numbers; ones where the field is absent."""
        values = self.config.get(field)
        if values is None:
            return [1.0] * count
        expected = f"a list of {count} positive numbers"
        if not isinstance(values, list) or len(values) != count:
            self.fail(field, expected, values)
        return [Fields({field: v}, self.file).number(field) for v in values]

    def strings(self, field: str) -> frozenset[str]:
        """Return a list of strings; empty if the field is absent."""
        values = self.config.get(field, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            self.fail(field, "a list of strings", values)
        return frozenset(values)

    def items(self, field: str, count: int, known: tuple[object, ...]) -> list[Any] | None:
        """So many items, each a known one, else UnsupportedModelError; None if it is absent."""
        values = self.config.get(field)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != count:
            got = f"{len(values)} items" if isinstance(values, list) else values
            self.fail(field, f"a list of {count} items, one for each layer", got)
        for value in values:
            if isinstance(value, bool) or value not in known:
                raise UnsupportedModelError(
                    f"{self.file}: {self.name(field)} must be of {', '.join(map(str, known))}, but "
                    f"got {shown(value)}; Sterna does not run this kind of layer"
                )
        return values

    def supported(self, field: str, value: object, wanted: object) -> None:
        """Raise UnsupportedModelError unless the value is the one that Sterna runs."""
        if value != wanted:
            raise UnsupportedModelError(
                f"{self.file}: {self.name(field)} must be {shown(wanted)} for this "
                f"architecture, but got {shown(value)}; Sterna does not run this variant"
            )
