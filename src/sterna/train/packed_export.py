"""A model with low-bit layers, trained or not, as a packed folder that Sterna runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import nn

from sterna import loading, ops
from sterna.checkpoints.directory import CONFIG, Checkpoint
from sterna.checkpoints.packed_writer import write_packed
from sterna.checkpoints.safetensors import Array, TensorInfo
from sterna.errors import ModelFormatError, RequestError, SternaError
from sterna.formats import PackedWeight
from sterna.models.config import LINEAR_NORM
from sterna.models.hadamard import FIELD as HADAMARD
from sterna.runtime import resolve_threads
from sterna.torch.checkpoint_export import (
    Exported,
    Stored,
    compared,
    config_of,
    save_beside,
    stored_tensor,
)
from sterna.torch.layer_packing import BITNET, kind_of, packed_layer
from sterna.torch.module import SternaLinear
from sterna.train.quant_linear import QuantLinear
from sterna.weights.checkpoint_weights import CheckpointWeights
from sterna.weights.storages import Floats, Levels, Linear

__all__ = ["export"]

_DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16"}
_KEPT = ("bias", "rms_norm.weight")  # tensors of a low-bit layer other than its weight


def export(
    model: nn.Module, out: str | Path, tokenizer: Any = None, head: str | None = None
) -> Exported:
    """Write a model of transformers with low-bit layers as a packed folder for `sterna.LLM`.

    Layers of `sterna.train`, SternaLinear (of formats with integer levels), BitLinear and
    AutoBitLinear keep their levels and scales; all else is kept in its dtype. tokenizer: one of
    transformers, saved in the same folder, or a folder, whose files are copied; LLM needs it. head:
    the weight format of the embedding and the head, default their own. `out` must be absent or
    empty; it is written completely or not at all. Logits are compared with the model's before
    writing.

    Raises RequestError or NonFiniteError, which name the layer, and UnsupportedModelError for an
    architecture that Sterna does not run.
    """
    config_of(model)
    layers = {name: m for name, m in model.named_modules() if _is_low_bit(m)}
    if not layers:
        raise RequestError(
            "model: must have a layer of sterna.train, a SternaLinear or one of BitNet's, but got "
            "none; sterna.train.prepare swaps layers"
        )
    levels = {name: _levels(name, layer) for name, layer in layers.items()}
    made = loading.from_weights(
        _config(model, layers), Path(CONFIG), _Sources(_tensors(model, layers), levels, head)
    )
    result = compared(model, made, len(levels))
    weights = made.weights
    if isinstance(tokenizer, str | Path):
        write_packed(out, made.json, weights.modules, weights.tensors, tokenizer, made.format)
        return result
    with tempfile.TemporaryDirectory() as folder:
        save_beside(folder, model, tokenizer)
        write_packed(out, made.json, weights.modules, weights.tensors, folder, made.format)
    return result


def _is_low_bit(module: nn.Module) -> bool:
    return isinstance(module, QuantLinear | SternaLinear) or kind_of(module) in BITNET


def _levels(name: str, layer: nn.Module) -> Levels:
    try:
        packed: PackedWeight
        if isinstance(layer, SternaLinear):
            packed = layer.packed
        else:
            packed = layer.packed() if isinstance(layer, QuantLinear) else packed_layer(layer, None)
        codebook = packed.format.codebook
        if codebook is None or not packed.format.scales.single:
            raise RequestError(
                f"must have levels with one scale each, but has the format {packed.format}; "
                "export the model before accelerate rounds it"
            )
    except SternaError as e:
        raise type(e)(f"{name}: {e}") from None
    levels, scale = ops.unpack(packed)
    worth = np.asarray(scale * np.float32(codebook.value), np.float32)
    return Levels(tuple(codebook.levels), levels, worth)


def _tensors(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, Stored]:
    """Collect all tensors but the weights of low-bit layers."""
    config: Any = model.config
    tensors: dict[str, Stored] = {}
    for name, tensor in model.state_dict().items():
        owner = next((n for n in _owners(name) if n in layers), None)
        if owner is not None and name[len(owner) + 1 :] not in _KEPT:
            continue
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            tensors[name] = stored_tensor(name, tensor)
    return tensors


def _owners(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _config(model: Any, layers: Mapping[str, nn.Module]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    made.pop("quantization_config", None)
    made["architectures"] = [type(model).__name__]
    norms: list[Any] = [n for n in (m.rms_norm for m in layers.values()) if n is not None]
    if norms:
        eps = {getattr(norm, "variance_epsilon", getattr(norm, "eps", None)) for norm in norms}
        if len(norms) != len(layers) or len(eps) != 1 or None in eps:
            raise RequestError(
                "rms_norm: must be of all low-bit layers, with one epsilon, but "
                f"{len(norms)} of {len(layers)} have one, with {sorted(map(str, eps))}"
            )
        made[LINEAR_NORM] = eps.pop()
    rotated = {name: m.rotation for name, m in layers.items() if getattr(m, "rotation", None)}
    if rotated:
        made[HADAMARD] = _hadamard(rotated, layers)
    return made


def _hadamard(rotated: Mapping[str, Any], layers: Mapping[str, nn.Module]) -> dict[str, Any]:
    blocks = {rotation.block for rotation in rotated.values()}
    signs: dict[str, str] = {}
    for name, rotation in rotated.items():
        width = str(layers[name].in_features)
        text = "" if rotation.signs is None else "".join("-+"[s > 0] for s in rotation.signs)
        if len(blocks) > 1 or signs.setdefault(width, text) != text:
            raise RequestError(
                f"{name}: rotation: must have one block size, and one sequence of signs for each "
                "width, in all layers; share the Rotation"
            )
    if not all(signs.values()) and any(signs.values()):
        raise RequestError("rotation: must have signs in all layers, or in none")
    return {
        "block_size": blocks.pop(),
        "signs": signs if all(signs.values()) else None,
        "inputs": list(rotated),
        "rows": [],
    }


# --------------------------------------------------------------------------------- in memory


class _Memory(Checkpoint):
    """A checkpoint whose tensors are in memory."""

    def __init__(self, config: dict[str, Any], stored: Mapping[str, Stored]) -> None:
        super().__init__(Path("."), config, [])
        self._arrays: dict[str, Array] = {}
        for name, item in stored.items():
            dtype, array = item if isinstance(item, tuple) else (None, item)
            dtype = dtype or _DTYPES.get(array.dtype)
            if dtype is not None:  # integers are torch's own buffers
                self._arrays[name] = array
                self.tensors[name] = TensorInfo(
                    name, dtype, array.shape, Path("model"), 0, array.nbytes
                )

    def read(self, name: str, out: Array | None = None) -> Array:
        return self._arrays[name]

    def require(self, name: str, *args: Any, **kwargs: Any) -> TensorInfo:
        try:
            return super().require(name, *args, **kwargs)
        except ModelFormatError as e:
            raise RequestError(f"model: {e}") from None


@dataclass
class _Weights(CheckpointWeights):
    """The weights of a model in memory, whose low-bit layers are levels already."""

    levels: Mapping[str, Levels] = field(default_factory=dict)

    def rows(self, part: Linear) -> Levels | Floats:
        levels = self.levels.get(part.name)
        if levels is None:
            return super().rows(part)
        self._read.update(f"{part.name}.{kept}" for kept in _KEPT)
        if f"{part.name}.bias" in self.checkpoint.tensors and not part.bias:
            raise RequestError(f"{part.name}: must have no bias in this architecture, but has one")
        if (levels.M, levels.K) != (part.M, part.K):
            raise RequestError(
                f"{part.name}: must be {part.M}x{part.K}, as config.json says, but is "
                f"{levels.M}x{levels.K}"
            )
        return levels


@dataclass(frozen=True)
class _Sources:
    tensors: Mapping[str, Stored]
    levels: Mapping[str, Levels]
    head: str | None

    def __call__(self, module: ModuleType) -> _Weights:
        threads = resolve_threads(None)
        return _Weights(
            _Memory({}, self.tensors), None, self.head, threads, False, levels=self.levels
        )
