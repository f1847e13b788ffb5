"""What config.json says of a packed directory: its version, and the format of each module.

"quantization_config": {"quant_method": "sterna", "layout_version": 4, "default_format": "i2",
    "modules": {name: {"format": "i2", "M": 2560, "K": 2560,
                       "scale": "tensor" | "row" | "group:32"}}}
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sterna import formats
from sterna.checkpoints.directory import CONFIG
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.checkpoints.safetensors_header import MAX_DIM
from sterna.errors import ModelFormatError, RequestError
from sterna.files.jsonfile import json_kind
from sterna.formats import Format
from sterna.formats.level_tables import LAYOUTS
from sterna.formats.lookup_files import LookupFormat, lookup_format

LAYOUT_VERSION = 4  # raise it when old packed directories would be read wrongly
#: Earlier versions that are read, and the formats that they packed in another way: these are
#: refused.
EARLIER_VERSIONS = {
    2: frozenset({"stq1_0", "iq1_s", "iq1_m"}),
    3: frozenset({"iq1_s", "iq1_m"}),
}
QUANT_METHOD = "sterna"
QUANTIZATION = "quantization_config"
CONFIG_HASH = "sterna.config.sha256"  # metadata key of the SHA-256 of what config.json says
TABLES = frozenset(LAYOUTS.values())  # whose names bring their levels
REMEDY = "convert the model again with this version"


@dataclass(frozen=True)
class ModuleSpec:
    """One entry of `modules` in config.json, checked: format, M, K, and where the scales are.

    stored: the format of the file's codes, if they are read into another one.
    """

    format: Format
    M: int
    K: int
    scale: str
    stored: LookupFormat | None = None

    def json(self) -> dict[str, str | int]:
        """Return the entry as config.json has it."""
        return {"format": self.format.name, "M": self.M, "K": self.K, "scale": self.scale}

    def codes_shape(self) -> tuple[int, int]:
        """Return (tiles, bytes of a tile)."""
        if self.stored is not None:
            return self.stored.codes_shape(self.M, self.K)
        return self.format.n_tiles(self.M), self.format.tile_bytes(self.K)

    def scale_shape(self) -> tuple[int, ...]:
        """Return () or (M,), or for groups (tiles, bytes of their lines)."""
        f = self.format
        return f.scales.packed_shape(self.scale, f.layout, self.M, self.K)

    @property
    def scale_dtype(self) -> np.dtype[Any]:
        """float32, or uint8 of lines."""
        return np.dtype(self.format.scales.packed_dtype)


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the contents of config.json, for any white space and order."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_config(path: Path, config: Mapping[str, Any], file: SafetensorsFile) -> bool:
    """Whether a hash of config.json is recorded; ModelFormatError if it differs."""
    expected = file.metadata.get(CONFIG_HASH)
    if expected not in (None, got := config_hash(config)):
        rule = f"values of SHA-256 {expected}"
        remedy = "it was changed after it was written: make or download the model again"
        raise ModelFormatError(path / CONFIG, expected=rule, got=got, remedy=remedy)
    return expected is not None


def read_specs(config: dict[str, Any], path: Path) -> dict[str, ModuleSpec]:
    """Read the modules of config.json; ModelFormatError, with its path, for a wrong field."""
    quantization = config.get(QUANTIZATION)
    if not isinstance(quantization, dict) or quantization.get("quant_method") != QUANT_METHOD:
        remedy = "this folder is not packed: convert it first"
        raise _wrong(path, "quant_method", repr(QUANT_METHOD), "another or none", remedy)
    version = quantization.get("layout_version")
    if type(version) is not int or version not in (LAYOUT_VERSION, *EARLIER_VERSIONS):
        raise _wrong(path, "layout_version", LAYOUT_VERSION, _shown(version, int))
    _format(path, "default_format", quantization.get("default_format"))
    modules = quantization.get("modules")
    if not isinstance(modules, dict):
        raise _wrong(path, "modules", "an object", json_kind(modules))
    specs = {name: _read_spec(path, name, entry) for name, entry in modules.items()}
    _warn_of_lookup_formats(path, specs, modules)
    for name, spec in specs.items():
        if spec.format.name in EARLIER_VERSIONS.get(version, ()):
            rule = f"{LAYOUT_VERSION} for {name}, whose format is {spec.format.name}"
            raise _wrong(path, "layout_version", rule, version)
    return specs


def _read_spec(path: Path, name: str, entry: object) -> ModuleSpec:
    values = entry if isinstance(entry, dict) else {}
    where = f"modules.{name}"
    format = _format(path, f"{where}.format", values.get("format"))
    for key in ("M", "K"):
        value = values.get(key)
        if type(value) is not int or not 1 <= value <= MAX_DIM:
            rule = f"an integer from 1 to {MAX_DIM}"
            raise _wrong(path, f"{where}.{key}", rule, _shown(value, int))
    scale = values.get("scale")
    if scale not in format.scales.kinds:
        rule = " or ".join(map(repr, format.scales.kinds))
        raise _wrong(path, f"{where}.scale", rule, _shown(scale, str))
    M, K = values["M"], values["K"]
    try:
        format.check_shape(M, K, name)
    except RequestError as error:  # K so large that int32 sums would overflow
        rule = f"a shape that {format} can hold"
        raise _wrong(path, where, rule, f"{M}x{K}", str(error)) from None
    stored = None if formats.known(values["format"]) else lookup_format(values["format"])
    return ModuleSpec(format, M, K, str(scale), stored)


def _warn_of_lookup_formats(
    path: Path, specs: Mapping[str, ModuleSpec], entries: Mapping[str, Any]
) -> None:
    lookups = [(name, spec.format) for name, spec in specs.items() if spec.stored is not None]
    for stored, format in sorted({(entries[name]["format"], f.name) for name, f in lookups}):
        text = (
            f"{path}: weights in {stored} are read into {format}, without a change of any weight, "
            "at each start; sterna convert writes them so"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=5)


def _format(path: Path, field: str, name: object) -> Format:
    """Return the format of a name in a file, or that which its weights are read into."""
    if isinstance(name, str) and not formats.known(name) and (stored := lookup_format(name)):
        name = stored.becomes
    base = name.partition(":")[0] if isinstance(name, str) else ""
    if not isinstance(name, str) or not (formats.known(base) or base.partition("-")[0] in TABLES):
        raise _wrong(path, field, f"one of {' '.join(formats.names())}", _shown(name, str))
    try:
        return formats.get(name)
    except RequestError as error:  # scales or levels that the format cannot have
        raise _wrong(path, field, "a weight format", repr(name), str(error)) from None


def _wrong(
    path: Path, field: str, expected: object, got: object, remedy: str = REMEDY
) -> ModelFormatError:
    return ModelFormatError(path, f"{QUANTIZATION}.{field}", expected, got, remedy=remedy)


def _shown(value: object, kind: type) -> object:
    """Return a value for a message, or what else it is if it is of another type."""
    if type(value) is not kind:
        return json_kind(value)
    return repr(value) if kind is str else value
