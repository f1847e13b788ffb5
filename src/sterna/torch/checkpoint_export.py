"""A BitNet model of transformers, trained or not, as a checkpoint that Sterna runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sterna import loading, ops
from sterna.checkpoints.directory import CONFIG, WEIGHTS
from sterna.checkpoints.safetensors import write_safetensors
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.files.writing import replacing_directory, synced
from sterna.torch.layer_packing import BITNET, kind_of, packed_layer
from sterna.torch.module import SternaLinear

__all__ = [
    "Exported",
    "Stored",
    "compared",
    "config_of",
    "export_checkpoint",
    "save_beside",
    "stored_tensor",
]

Stored = npt.NDArray[Any] | tuple[str, npt.NDArray[Any]]
_PROMPT_TOKENS = 16
_WORDS = {torch.bfloat16: "BF16", torch.float16: "F16"}


class Exported(NamedTuple):
    """The written folder, and the difference of Sterna's logits from torch's.

    n_layers: the number of low-bit layers; difference: the largest difference of a logit, divided
    by the largest logit; same_tokens: positions where both choose the same token; n_tokens:
    compared positions.
    """

    n_layers: int
    difference: float
    same_tokens: int
    n_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.n_layers} low-bit layers; logits within {self.difference:.1e} of the largest, "
            f"{self.same_tokens} of {self.n_tokens} tokens the same"
        )


def export_checkpoint(model: nn.Module, out: str | Path, tokenizer: Any = None) -> Exported:
    """Write a model of transformers, with BitNet's layers, as a folder for `sterna.LLM`.

    BitLinear, AutoBitLinear (the masters of the online mode are rounded as its forward pass rounds
    them) and SternaLinear of ternary levels become packed trits, in the layout of
    bitnet-b1.58-2B-4T, which transformers reads too; all else is kept in its dtype. tokenizer: one
    of transformers, saved in the same folder; LLM needs it.

    The folder is loaded and compared before it gets its name. `out` must be absent or empty; it is
    written completely or not at all. Raises RequestError or NonFiniteError, which name the layer,
    and UnsupportedModelError for an architecture that Sterna does not run.
    """
    config = config_of(model)
    ternary = {name: m for name, m in model.named_modules() if _is_ternary(name, m)}
    if not ternary:
        raise RequestError(
            "model: must have a BitLinear, an AutoBitLinear or a ternary SternaLinear, "
            "but got none; save_pretrained writes a float model, which sterna.LLM reads"
        )
    tensors: dict[str, Stored] = {}
    for name, layer in ternary.items():
        tensors |= _layer_tensors(name, layer)
    for name, tensor in model.state_dict().items():
        if name.rpartition(".")[0] in ternary:
            continue
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            tensors[name] = stored_tensor(name, tensor)
    nbytes = sum((a[1] if isinstance(a, tuple) else a).nbytes for a in tensors.values())
    with replacing_directory(Path(out), nbytes) as folder:
        write_safetensors(folder / WEIGHTS, tensors, {"format": "pt"})
        with synced(folder / CONFIG) as file:
            file.write(json.dumps(_config(model, ternary), indent=2).encode() + b"\n")
        save_beside(folder, model, tokenizer)
        return compared(model, loading.load(folder, cached=False), len(ternary))


def config_of(model: Any) -> Any:
    """Return the config of a model of transformers; RequestError for any other module."""
    config = getattr(model, "config", None)
    if config is None or not isinstance(model, nn.Module):
        raise RequestError(
            f"model: must be one of transformers, with a config, but got {type(model).__name__}"
        )
    return config


def save_beside(folder: str | Path, model: Any, tokenizer: Any) -> None:
    """Write the model's generation config and, if given, the files of a transformers tokenizer."""
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _is_ternary(name: str, module: nn.Module) -> bool:
    if not isinstance(module, SternaLinear):
        return kind_of(module) in BITNET
    f = module.packed.format
    if f.codebook is None or set(f.codebook.array) != {-1, 0, 1} or f.scales.group:
        raise RequestError(
            f"{name}: must have ternary levels and no groups, as BitNet's layers, but has the "
            f"format {f}; export the model before accelerate rounds it"
        )
    return True


def _layer_tensors(name: str, layer: nn.Module) -> dict[str, Stored]:
    try:
        packed = layer.packed if isinstance(layer, SternaLinear) else packed_layer(layer, None)
    except (NonFiniteError, RequestError) as e:
        raise type(e)(f"{name}: {e}") from None
    levels, scales = ops.unpack(packed)
    scale = np.unique(scales)
    if packed.M % 4 or len(scale) != 1:
        raise RequestError(
            f"{name}: must have output features in fours, and one scale, but got M={packed.M} and "
            f"{len(scale)} scales; a packed folder of sterna convert holds those"
        )
    # Row i * M / 4 + r lies in bits 2i of byte row r.
    quarters = (levels + 1).astype(np.uint8).reshape(4, packed.M // 4, packed.K)
    codes = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
    made: dict[str, Stored] = {f"{name}.weight": codes, f"{name}.weight_scale": scale}
    if layer.bias is not None:
        made[f"{name}.bias"] = stored_tensor(f"{name}.bias", layer.bias)
    return made


def stored_tensor(name: str, tensor: Any) -> Stored:
    """Convert a tensor to numpy; 16-bit floats to ("BF16" or "F16", uint16). name: for errors."""
    if tensor.device.type != "cpu":
        raise RequestError(f"{name}: must be on the CPU, but is on {tensor.device}; move it there")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise NonFiniteError(f"{name}: must be finite, but got NaN or an infinity")
    values = tensor.detach().contiguous()
    if values.dtype in _WORDS:
        return _WORDS[values.dtype], values.view(torch.int16).numpy().view(np.uint16)
    array: npt.NDArray[Any] = values.numpy()
    return array


def _config(model: Any, ternary: dict[str, nn.Module]) -> dict[str, Any]:
    norms: list[Any] = [layer.rms_norm for layer in ternary.values() if layer.rms_norm is not None]
    floats = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    quantization: dict[str, Any] = {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "offline",
        "modules_to_not_convert": floats or None,
        "use_rms_norm": bool(norms),
    }
    if norms:
        quantization["rms_norm_eps"] = norms[0].variance_epsilon
    config: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return config | {"architectures": [type(model).__name__], "quantization_config": quantization}


def compared(model: Any, loaded: loading.Model, n_layers: int) -> Exported:
    """Compare the logits of a few tokens between a model of transformers and its export."""
    engine = Engine(loaded, kv_dtype="f32")
    n = min(_PROMPT_TOKENS, model.config.max_position_embeddings)
    tokens = [(7 * i + 1) % model.config.vocab_size for i in range(n)]
    training = model.training
    # transformers compiles pieces of its BitLinear, which takes a compiler and a minute.
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        logits: Tensor = model.eval()(torch.tensor([tokens])).logits[0]
    model.train(training)
    expected, got = logits.float().numpy(), np.asarray(engine.logits([tokens])[0])
    same = int((expected.argmax(-1) == got.argmax(-1)).sum())
    difference = float(np.abs(got - expected).max() / np.abs(expected).max())
    return Exported(n_layers, difference, same, n)
