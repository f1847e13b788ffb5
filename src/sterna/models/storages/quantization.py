"""What `quantization_config` says of BitNet's layers: which they are, and what their scale means.

quant_method            "bitnet"
linear_class            "bitlinear" (default): weight_scale divides; "autobitlinear": multiplies
quantization_mode       "offline" (default), or "online": weights are masters without a scale
use_rms_norm            true: an RMSNorm before each layer, of `name`.rms_norm.weight
rms_norm_eps            of these; 1e-6 by default
modules_to_not_convert  names, of a module and all in it, or the ends of such names: plain floats
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sterna.errors import ModelFormatError, UnsupportedModelError

FIELD = "quantization_config"


@dataclass(frozen=True)
class Quantization:
    """The fields, checked; `declared`: whether config.json has them at all."""

    declared: bool
    divides: bool
    online: bool
    excluded: tuple[str, ...]
    norm_eps: float = 0.0  # 0: no norms

    def converts(self, name: str) -> bool:
        """Whether a layer of this name is one of BitNet's, if its model's are."""
        return not any(
            name == e or name.startswith(f"{e}.") or name.endswith(e) for e in self.excluded
        )


def quantization(config: dict[str, Any], file: Path) -> Quantization:
    """Reads config.json; `file` is named in errors.

    Raises UnsupportedModelError for another method of quantisation, ModelFormatError.
    """
    found = config.get(FIELD)
    if found is None:
        return Quantization(False, True, False, ())
    method = found.get("quant_method") if isinstance(found, dict) else found
    if method != "bitnet":
        raise UnsupportedModelError(
            f"{file}: {FIELD}.quant_method must be bitnet or absent, but got {method!r}; "
            "Sterna does not read this quantisation"
        )
    return Quantization(
        True,
        _one_of(found, "linear_class", ("bitlinear", "autobitlinear"), file) == "bitlinear",
        _one_of(found, "quantization_mode", ("offline", "online"), file) == "online",
        _names(found.get("modules_to_not_convert"), file),
        _norm_eps(found, file),
    )


def _norm_eps(found: dict[str, Any], file: Path) -> float:
    """eps of the norms before the layers, 0 without them."""
    use = found.get("use_rms_norm")
    if not isinstance(use, bool | None):
        raise ModelFormatError(
            file=file, field=f"{FIELD}.use_rms_norm", expected="true or false", got=use
        )
    eps = found.get("rms_norm_eps", 1e-6) if use else 0.0
    number = isinstance(eps, int | float) and not isinstance(eps, bool)
    if use and not (number and 0 < eps < 1):
        raise ModelFormatError(
            file=file, field=f"{FIELD}.rms_norm_eps", expected="a number between 0 and 1", got=eps
        )
    return float(eps)


def _one_of(found: dict[str, Any], key: str, values: tuple[str, str], file: Path) -> str:
    value = found.get(key)
    value = values[0] if value is None else value
    if value not in values:
        raise ModelFormatError(
            file=file, field=f"{FIELD}.{key}", expected=" or ".join(values), got=value
        )
    return str(value)


def _names(value: object, file: Path) -> tuple[str, ...]:
    field = f"{FIELD}.modules_to_not_convert"
    names = [] if value is None else value
    if not isinstance(names, list) or not all(isinstance(n, str) and n for n in names):
        raise ModelFormatError(file=file, field=field, expected="a list of names", got=value)
    for name in names:
        # transformers would take these as regular expressions, which a file must not give.
        if not re.fullmatch(r"[\w.-]+", name):
            raise UnsupportedModelError(
                f"{file}: {field} must have names of modules, but got {name!r}; "
                "list the modules by their names"
            )
    return tuple(names)
