"""Adapters on disk as PEFT lays them out, of random numbers, for any model of Sterna."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sterna.checkpoints.lora import open_lora_folder
from sterna.checkpoints.safetensors import write_safetensors
from sterna.graph import AdaptedLayer
from sterna.loading import Model

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "bias": "none",
    "base_model_name_or_path": None, "target_modules": ["q_proj"], "use_rslora": False,
    "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "init_lora_weights": True,
}  # fmt: skip


def write(
    folder: Path,
    parts: list[AdaptedLayer],
    *,
    seed: int = 0,
    size: float = 0.5,
    prefix: tuple[str, str] = ("", ""),
    extra: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """An adapter of these layers, B's values about `size` over the root of the rank.

    prefix: what the model's names begin with, and what the checkpoint has there; extra: tensors.
    """
    rng = np.random.default_rng(seed)
    settings = CONFIG | config
    tensors: dict[str, Any] = dict(extra or {})
    ours, stored = prefix
    for part in parts:
        rank = settings["rank_pattern"].get(part.name.rpartition(".")[2], settings["r"])
        name = f"base_model.model.{stored}{part.name.removeprefix(ours)}.lora_"
        down = rng.standard_normal((rank, part.K), np.float32) / np.float32(part.K**0.5)
        up = rng.standard_normal((part.M, rank), np.float32) * np.float32(size / rank**0.5)
        tensors |= {f"{name}A.weight": down, f"{name}B.weight": up}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return folder


def parts_of(model: Model) -> list[AdaptedLayer]:
    """All layers that may have adapters."""
    return [part for place in model.graph.places for part in place.parts]


def added(folder: Path) -> dict[str, np.ndarray]:
    """scale B A of each layer, by the checkpoint's name of its weight, float32 [M, K]."""
    return {
        f"{name}.weight": (layer.scale * (layer.up.astype(np.float64) @ layer.down)).astype(
            np.float32
        )
        for name, layer in open_lora_folder(folder).layers.items()
    }
