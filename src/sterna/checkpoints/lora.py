"""An adapter's folder as PEFT saves one: `adapter_config.json` and `adapter_model.safetensors`.

A layer y = W x becomes y + scale B (A x), scale = lora_alpha / r, or over the root of r with
`use_rslora` (arXiv 2106.09685, 2312.03732). Settings that would compute anything else are refused
by name.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.checkpoints.safetensors import SafetensorsFile
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    UnsupportedModelError,
    shown,
)
from sterna.files.jsonfile import MAX_CONFIG_BYTES, load_json_object
from sterna.files.known_fields import KnownFields

__all__ = ["Lora", "LoraLayer", "open_lora_folder"]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # of all tensors: PEFT's wrapper
MAX_RANK, MAX_ALPHA = 4096, 1e6  # native kMaxRank
FLOATS = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
#: Those without effect are about an adapter's training, or its tensors repeat them.
FIELDS = KnownFields().plus(
    read="alpha_pattern bias init_lora_weights lora_alpha r rank_pattern use_rslora",
    without_effect="""
    auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules
    inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config
    megatron_core peft_type peft_version qalora_group_size revision runtime_config target_modules
    task_type
    """,
)
#: Initialisations that change the base's weights, too; with all others B begins as zeros.
CHANGING_THE_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga", "mica")
#: The kinds of other tensors, by parts of their names.
OTHER_TENSORS = {
    "lora_magnitude_vector": "DoRA's magnitudes",
    "lora_embedding_": "an adapter of an embedding",
    "lora_B.bias": "a bias of B",
    "token_adapter": "trained tokens",
    "modules_to_save": "a module that was trained whole",
}


class LoraLayer(NamedTuple):
    """An adapter's term for a layer: scale B (A x); down: A float32 [r, K]; up: B [M, r]."""

    down: npt.NDArray[np.float32]
    up: npt.NDArray[np.float32]
    scale: float


@dataclass(frozen=True, eq=False)
class Lora:
    """An adapter, read and checked.

    path: its folder or file. file: that of its tensors. base: the base model that it names, or "".
    layers: by their names in the base. tensors: the file's names of A and B of each layer.
    """

    path: Path
    file: Path
    base: str
    layers: dict[str, LoraLayer] = field(repr=False)
    tensors: dict[str, tuple[str, str]] = field(repr=False)

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(len(layer.down) for layer in self.layers.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of its matrices and scales."""
        sha256 = hashlib.sha256()
        for name, (down, up, scale) in sorted(self.layers.items()):
            sha256.update(f"{name} {down.shape} {up.shape} {scale.hex()}\n".encode())
            sha256.update(down.astype("<f4").tobytes())
            sha256.update(up.astype("<f4").tobytes())
        return sha256.hexdigest()


def open_lora_folder(path: str | os.PathLike[str]) -> Lora:
    """Read a folder.

    Raises RequestError if there is none, ModelFormatError for a file that breaks a rule,
    UnsupportedModelError for more than low-rank matrices, NonFiniteError.
    """
    folder = _folder(path)
    config = load_json_object(folder / CONFIG, MAX_CONFIG_BYTES)
    settings = _Settings(folder / CONFIG, config)
    file = SafetensorsFile(folder / WEIGHTS)
    layers = _layers(file, settings)
    base = config.get("base_model_name_or_path")
    tensors = {
        layer: (f"{PREFIX}{layer}.lora_A.weight", f"{PREFIX}{layer}.lora_B.weight")
        for layer in layers
    }
    return Lora(folder, file.path, base if isinstance(base, str) else "", layers, tensors)


def _folder(path: str | os.PathLike[str]) -> Path:
    """Return the path of a folder that has both files."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise RequestError(f"adapter: must be the path of a folder, but got {shown(path)}")
    folder = Path(os.path.expanduser(os.fspath(path)))
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):
        raise RequestError(
            f"adapter: must be a folder that PEFT has saved, but {folder} is not; "
            "check the spelling"
        ) from None
    for needed in (CONFIG, WEIGHTS):
        if needed not in names:
            pickled = needed == WEIGHTS and "adapter_model.bin" in names
            raise ModelFormatError(
                folder,
                expected=f"an adapter's folder with {needed}",
                got="adapter_model.bin, which is pickled" if pickled else "none in it",
                remedy="save it with safe_serialization=True" if pickled else None,
            )
    return folder


class _Settings:
    """adapter_config.json, checked, and the scale and rank of each layer by it."""

    def __init__(self, file: Path, config: dict[str, Any]) -> None:
        self.file, self._config = file, config
        kind = config.get("peft_type")
        if kind != "LORA":
            self._refuse("peft_type", "LORA", kind)
        FIELDS.check(config, file, remedy="it adds low-rank matrices and nothing else")
        if config.get("bias", "none") != "none":
            self._refuse("bias", "none", config["bias"])
        start = config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(CHANGING_THE_BASE):
            rule = "one that leaves the base as it is; convert the adapter as PEFT says of it"
            self._refuse("init_lora_weights", rule, start)
        rs = config.get("use_rslora", False)
        if not isinstance(rs, bool):
            self._fail("use_rslora", "true or false", rs)
        self._rs = rs
        self._ranks = self._pattern("rank_pattern", whole=True)
        self._alphas = self._pattern("alpha_pattern", whole=False)
        self._rank = self._number("r", config.get("r"), whole=True)
        self._alpha = self._number("lora_alpha", config.get("lora_alpha"), whole=False)

    def rank(self, layer: str) -> int:
        """By the first pattern of rank_pattern that a layer's name ends with, else r."""
        return int(self._of(layer, self._ranks, self._rank))

    def scale(self, layer: str) -> float:
        """Return the factor of B (A x)."""
        rank, alpha = self.rank(layer), self._of(layer, self._alphas, self._alpha)
        return alpha / (math.sqrt(rank) if self._rs else rank)

    @staticmethod
    def _of(layer: str, pattern: dict[str, float], default: float) -> float:
        for name, value in pattern.items():
            plain = name.removeprefix("^")
            ends = layer == plain if name != plain else f".{layer}".endswith(f".{plain}")
            if ends:
                return value
        return default

    def _pattern(self, name: str, whole: bool) -> dict[str, float]:
        """Read numbers by the ends of layers' names, though PEFT takes any regular expression."""
        pattern = self._config.get(name)
        if not isinstance(pattern, dict | None):
            self._fail(name, "an object", pattern)
        for key in pattern or ():
            if not re.fullmatch(r"\^?[\w.-]+", key):
                self._refuse(name, "layers' names, not other regular expressions", key)
        return {key: self._number(f"{name}.{key}", v, whole) for key, v in (pattern or {}).items()}

    def _number(self, name: str, value: object, whole: bool) -> float:
        if isinstance(value, int if whole else int | float) and not isinstance(value, bool):
            number = float(value)
            if 1 <= number <= MAX_RANK or (not whole and abs(number) <= MAX_ALPHA):
                return number
        limits = f"a whole number in 1..{MAX_RANK}" if whole else f"a number within {MAX_ALPHA:g}"
        self._fail(name, limits, value)

    def _fail(self, name: str, expected: str, got: object) -> NoReturn:
        raise ModelFormatError(self.file, name, expected, shown(got))

    def _refuse(self, name: str, rule: str, got: object) -> NoReturn:
        raise UnsupportedModelError(f"{self.file}: {name}: must be {rule}, but got {shown(got)}")


def _layers(file: SafetensorsFile, settings: _Settings) -> dict[str, LoraLayer]:
    """Both matrices of each layer."""
    halves: dict[str, dict[str, str]] = {}
    for name in file.tensors:
        module, _, half = name.removeprefix(PREFIX).rpartition(".lora_")
        if not name.startswith(PREFIX) or not module or half not in ("A.weight", "B.weight"):
            what = next((w for part, w in OTHER_TENSORS.items() if part in name), "another tensor")
            raise UnsupportedModelError(
                f"{file.path}: {name}: must be {PREFIX}LAYER.lora_A.weight or lora_B.weight, but "
                f"is {what}"
            )
        halves.setdefault(module, {})[half[0]] = name
    if not halves:
        raise ModelFormatError(file.path, expected="matrices of layers", got="no tensor")
    layers = {}
    for module, names in halves.items():
        for half in "AB":
            if half not in names:
                other = next(iter(names.values()))
                rule, got = f"a tensor next to {other}", "none of this name"
                raise ModelFormatError(file.path, f"{PREFIX}{module}.lora_{half}.weight", rule, got)
        rank = settings.rank(module)
        down, up = (_matrix(file, names[half]) for half in "AB")
        for name, side in ((names["A"], len(down)), (names["B"], up.shape[1])):
            if side != rank:
                raise ModelFormatError(file.path, name, f"the rank {rank} of {CONFIG}", side)
        layers[module] = LoraLayer(down, up, settings.scale(module))
    return layers


def _matrix(file: SafetensorsFile, name: str) -> npt.NDArray[np.float32]:
    """Read a tensor of two dimensions as float32."""
    info = file.info(name)
    if info.dtype not in FLOATS or len(info.shape) != 2:
        raise ModelFormatError(
            file.path, name, f"a matrix of {', '.join(FLOATS)}", f"{info.dtype} {list(info.shape)}"
        )
    kind = formats.float_format(FLOATS[info.dtype])
    raw = np.ascontiguousarray(file.read(info))
    if not kind.is_finite(raw, 1):
        raise NonFiniteError(
            f"{file.path}: {name}: values must be finite, but got NaN or infinity; "
            "the file is damaged or its training diverged"
        )
    return kind.floats(raw.view(kind.word))
