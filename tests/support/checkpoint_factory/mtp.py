"""Checkpoints of Qwen3.5 with the MTP layer that published ones have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from checkpoint_factory.files import write
from checkpoint_factory.recipe import Recipe
from checkpoint_factory.tensors import linear_shapes

FILE = "model.safetensors"


def mtp_tensors(recipe: Recipe, seed: int = 9) -> dict[str, torch.Tensor]:
    """The tensors of one MTP layer, by their published names."""
    rng = torch.Generator().manual_seed(seed)
    full = next(i for i in range(recipe.layers) if not recipe.is_recurrent(i))
    shapes = {f"layers.0.{name}": shape for name, shape in linear_shapes(recipe, full).items()}
    shapes["fc"] = recipe.hidden, 2 * recipe.hidden
    norms = {
        "norm": recipe.hidden, "pre_fc_norm_embedding": recipe.hidden,
        "pre_fc_norm_hidden": recipe.hidden, "layers.0.input_layernorm": recipe.hidden,
        "layers.0.post_attention_layernorm": recipe.hidden,
        "layers.0.self_attn.q_norm": recipe.width, "layers.0.self_attn.k_norm": recipe.width,
    }  # fmt: skip
    made = {name: 0.2 * torch.randn(size, generator=rng) for name, size in norms.items()}
    for name, (m, k) in shapes.items():
        made[name] = (1.5 / k) ** 0.5 * torch.randn(m, k, generator=rng)
    return {f"mtp.{name}.weight": w.to(recipe.dtype) for name, w in made.items()}


def copying(recipe: Recipe) -> dict[str, torch.Tensor]:
    """One whose layer adds nothing and whose h' is the normalised embedding of its token."""
    of_any = mtp_tensors(recipe)
    made = {name: torch.zeros_like(w) for name, w in of_any.items()}
    made["mtp.fc.weight"][:, : recipe.hidden] = torch.eye(recipe.hidden)
    made["mtp.fc.weight"] += 1e-6 * of_any["mtp.fc.weight"]  # or it would be taken for ternary
    return made


def write_mtp(folder: Path, recipe: Recipe, mtp: dict[str, torch.Tensor] | None = None) -> Path:
    """The recipe's checkpoint with these tensors, or those of `mtp_tensors`."""
    write(folder, replace(recipe, config={**recipe.config, "mtp_num_hidden_layers": 1}))
    weights = load_file(folder / FILE) | (mtp or mtp_tensors(recipe))
    save_file(weights, folder / FILE, {"format": "pt"})
    return folder
