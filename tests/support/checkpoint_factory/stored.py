"""A small Llama as transformers saves it, and again with its linear layers stored otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = ["SMALL", "Stored", "Tensors", "small_llama", "stored"]

Tensors = dict[str, torch.Tensor]
#: Of a weight [M, K]: (the tensors that are stored for it, the weights that they stand for).
Stored = tuple[Tensors, torch.Tensor]
SMALL = LlamaConfig(
    vocab_size=64, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=64, initializer_range=0.1,
)  # fmt: skip


def small_llama(folder: Path) -> Path:
    """Writes a model of SMALL in float32, the same in each run, and returns its folder."""
    torch.manual_seed(6)
    LlamaForCausalLM(SMALL).save_pretrained(folder)
    return folder


def stored(
    source: Path, to: Path, store: Callable[[torch.Tensor], Stored], settings: dict[str, Any],
    prefix: str = "",
) -> tuple[Path, Path]:  # fmt: skip
    """(a folder in which `store` has stored the linear layers of `source`, one of the floats that
    it stands for).

    A layer's tensors are LAYER.PREFIXpart; settings: config.json's quantization_config.
    """
    packed: Tensors = {}
    plain: Tensors = {}
    for key, tensor in load_file(source / "model.safetensors").items():
        if "_proj" not in key:
            packed[key] = plain[key] = tensor
            continue
        tensors, values = store(tensor)
        layer = key.removesuffix("weight") + prefix
        packed |= {layer + part: t.contiguous() for part, t in tensors.items()}
        plain[key] = values.contiguous()
    config = json.loads((source / "config.json").read_text())
    for folder, weights, extra in (
        (to / "packed", packed, {"quantization_config": settings}),
        (to / "plain", plain, {}),
    ):
        folder.mkdir()
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | extra))
    return to / "packed", to / "plain"
