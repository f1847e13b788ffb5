"""The fields of `quantization_config`: which layers it describes, and how they are stored.

quant_method            one of METHODS (`quantization_fields`, which checks all fields); MLX's files
                        (storages/mlx.py) have group_size, bits and no method
modules_to_not_convert  names of modules, or ends of such names; their layers are plain floats

For BitNet's layers:

linear_class            "bitlinear" (default): weight_scale divides; "autobitlinear": multiplies
quantization_mode       "offline" (default), or "online": weights are masters without a scale
use_rms_norm            true: an RMSNorm before each layer, with the weights `name`.rms_norm.weight
rms_norm_eps            eps of these norms; 1e-6 by default

For powers of two (storages/power_of_two.py, docs/explanation/power-of-two.md):

encoding                "E3P2", "E5P1" or "E8P1"
zero_free               true (default), or false: E3P2 with a zero
scale                   "tensor", "row" (default) or, for E3P2, "group:N", N a multiple of 32
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.formats.pot_encodings import ENCODINGS, Encoding
from sterna.weights.storages.quantization_fields import FIELD, METHODS, check_fields


@dataclass(frozen=True)
class PowerOfTwo:
    """How power-of-two weights are stored."""

    ENCODINGS: ClassVar[dict[str, str]] = {"E3P2": "pot4", "E5P1": "pot8", "E8P1": "pot16"}
    encoding: str
    zero_free: bool = True
    scale: str = "row"

    @property
    def words(self) -> Encoding:
        """The encoding's words."""
        return ENCODINGS[self.ENCODINGS[self.encoding]]

    @property
    def format(self) -> str:
        """The weight format that runs these weights, without its scales."""
        return self.ENCODINGS[self.encoding] + ("" if self.zero_free else "z")

    @property
    def max_exponent(self) -> int:
        """The largest e of a weight."""
        return self.words.max_exponent - (not self.zero_free)

    def config(self) -> dict[str, Any]:
        """Return the fields as config.json has them."""
        return {
            "quant_method": "power_of_two",
            "encoding": self.encoding,
            "zero_free": self.zero_free,
            "scale": self.scale,
        }

    @property
    def integer(self) -> bool:
        """Whether levels are integers, for activations in int8."""
        return self.encoding == "E3P2"

    @property
    def group(self) -> int:
        """Weights of a row that share a scale; 0: one scale for a row or for the tensor."""
        return int(self.scale.removeprefix("group:")) if self.scale.startswith("group:") else 0

    def problem(self) -> str:
        """Return the rule that this combination of fields breaks; empty if it breaks none."""
        if not self.zero_free and not self.integer:
            return "only E3P2 may have a zero; zero_free must be true"
        if self.scale in ("tensor", "row"):
            return ""
        if not re.fullmatch(r"group:[1-9][0-9]{0,5}", self.scale, re.ASCII) or self.group % 32:
            return "scale must be tensor, row or group:N, N a multiple of 32"
        return "" if self.integer else "only E3P2 may have scales in groups; use row"


@dataclass(frozen=True)
class Quantization:
    """The fields, checked. declared: whether config.json has BitNet's fields at all. rotated:
    whether inputs of down_proj are to be multiplied by a Hadamard matrix, as GPTQModel says.
    """

    declared: bool
    divides: bool
    online: bool
    excluded: tuple[str, ...]
    norm_eps: float = 0.0  # 0: no norms
    powers: PowerOfTwo | None = None
    rotated: bool = False

    def converts(self, name: str) -> bool:
        """Whether the method applies to a layer of this name, because no exclusion does."""
        return not any(
            name == e or name.startswith(f"{e}.") or name.endswith(e) for e in self.excluded
        )


def quantization(config: dict[str, Any], file: Path) -> Quantization:
    """Read config.json; `file` is named in errors.

    Raises ModelFormatError, and UnsupportedModelError for another method of quantisation.
    """
    settings = config.get(FIELD)
    if settings is None and isinstance(config.get("quantization"), dict):
        settings = config["quantization"]  # MLX's own name, the only one in older files
    if settings is None:
        return Quantization(False, True, False, ())
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if method is None and isinstance(settings, dict) and "group_size" in settings:  # MLX's
        check_fields(settings, file)
        return Quantization(False, True, False, ())
    if not isinstance(settings, dict) or not isinstance(method, str) or method not in METHODS:
        raise UnsupportedModelError(
            f"{file}: {FIELD}.quant_method must be one of {', '.join(METHODS)} or absent, but got "
            f"{shown(method)}; Sterna does not read this quantisation"
        )
    check_fields(settings, file)
    if method == "power_of_two":
        excluded = _names(settings.get("modules_to_not_convert"), file)
        return Quantization(False, True, False, excluded, powers=_powers(settings, file))
    if method != "bitnet":  # the tensors' names, dtypes and shapes describe the layers in full
        return Quantization(False, True, False, (), rotated=bool(settings.get("rotation")))
    return Quantization(
        True,
        _one_of(settings, "linear_class", ("bitlinear", "autobitlinear"), file) == "bitlinear",
        _one_of(settings, "quantization_mode", ("offline", "online"), file) == "online",
        _names(settings.get("modules_to_not_convert"), file),
        _norm_eps(settings, file),
    )


def _norm_eps(settings: dict[str, Any], file: Path) -> float:
    """Read the eps of the norms before the layers; 0 if there are none."""
    use = settings.get("use_rms_norm")
    if not isinstance(use, bool | None):
        raise ModelFormatError(file, f"{FIELD}.use_rms_norm", "true or false", use)
    eps = settings.get("rms_norm_eps", 1e-6) if use else 0.0
    number = isinstance(eps, int | float) and not isinstance(eps, bool)
    if use and not (number and 0 < eps < 1):
        raise ModelFormatError(file, f"{FIELD}.rms_norm_eps", "a number between 0 and 1", eps)
    return float(eps)


def _powers(settings: dict[str, Any], file: Path) -> PowerOfTwo:
    encoding = settings.get("encoding")
    if not isinstance(encoding, str) or encoding not in PowerOfTwo.ENCODINGS:
        names = " or ".join(PowerOfTwo.ENCODINGS)
        raise ModelFormatError(file, f"{FIELD}.encoding", names, encoding)
    zero_free, scale = settings.get("zero_free", True), settings.get("scale", "row")
    if not isinstance(zero_free, bool):
        raise ModelFormatError(file, f"{FIELD}.zero_free", "true or false", zero_free)
    if not isinstance(scale, str):
        raise ModelFormatError(file, f"{FIELD}.scale", "tensor, row or group:N", scale)
    powers = PowerOfTwo(encoding, zero_free, scale)
    if problem := powers.problem():
        raise ModelFormatError(file, FIELD, problem, f"{encoding} {scale}")
    return powers


def _one_of(settings: dict[str, Any], key: str, values: tuple[str, str], file: Path) -> str:
    value = settings.get(key)
    value = values[0] if value is None else value
    if value not in values:
        raise ModelFormatError(file, f"{FIELD}.{key}", " or ".join(values), value)
    return str(value)


def _names(value: object, file: Path) -> tuple[str, ...]:
    field = f"{FIELD}.modules_to_not_convert"
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
        raise ModelFormatError(file, field, "a list of names", value)
    for name in names:
        # transformers would take these as regular expressions, which a file must not give.
        if not re.fullmatch(r"[\w.-]+", name):
            raise UnsupportedModelError(
                f"{file}: {field} must have names of modules, but got {shown(name)}; "
                "list the modules by their names"
            )
    return tuple(names)
