"""The tensors that only Gemma 4's layers have, by names inside a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from checkpoint_factory.recipe import Recipe


def is_full(recipe: Recipe, layer: int) -> bool:
    """Whether a layer sees all positions, with heads of its own."""
    return bool(recipe.config["layer_types"][layer] == "full_attention")


def heads(recipe: Recipe, layer: int) -> tuple[int, int]:
    """KV heads and features of a head."""
    if not is_full(recipe, layer):
        return recipe.kv_heads, recipe.width
    kv_heads = recipe.config.get("num_global_key_value_heads") or recipe.kv_heads
    return kv_heads, recipe.config["global_head_dim"]


def shapes(recipe: Recipe, layer: int) -> dict[str, tuple[int, int]]:
    """(M, K) of the linear layers. Layers that read the keys of others have some, too, unused."""
    kv_heads, width = heads(recipe, layer)
    config, hidden = recipe.config, recipe.hidden
    shared = layer >= recipe.layers - config.get("num_kv_shared_layers", 0)
    wide = recipe.intermediate * (2 if shared and config.get("use_double_wide_mlp") else 1)
    found = {
        "self_attn.q_proj": (recipe.heads * width, hidden),
        "self_attn.k_proj": (kv_heads * width, hidden),
        "self_attn.v_proj": (kv_heads * width, hidden),
        "self_attn.o_proj": (hidden, recipe.heads * width),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    if config.get("attention_k_eq_v") and is_full(recipe, layer):
        del found["self_attn.v_proj"]
    if rows := config["hidden_size_per_layer_input"]:
        found["per_layer_input_gate"] = (rows, hidden)
        found["per_layer_projection"] = (hidden, rows)
    return found


def experts(recipe: Recipe, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """The additional tensors of a layer with experts, each of them one for all experts."""
    count, hidden = recipe.experts, recipe.hidden
    wide = recipe.expert_width

    def random(*shape: int) -> torch.Tensor:
        return (1.5 / shape[-1]) ** 0.5 * torch.randn(*shape, generator=rng)

    found = {
        "router.proj.weight": 4 * random(count, hidden),
        "router.scale": 1 + 0.2 * torch.randn(hidden, generator=rng),
        "router.per_expert_scale": 0.5 + torch.rand(count, generator=rng),
        "experts.gate_up_proj": random(count, 2 * wide, hidden),
        "experts.down_proj": random(count, hidden, wide),
    }
    for name in ("pre_feedforward_layernorm_2", "post_feedforward_layernorm_1"):
        found[f"{name}.weight"] = 1 + 0.2 * torch.randn(hidden, generator=rng)
    found["post_feedforward_layernorm_2.weight"] = 1 + 0.2 * torch.randn(hidden, generator=rng)
    return {name: tensor.to(recipe.dtype) for name, tensor in found.items()}


def outside(recipe: Recipe, vocab: int, rng: torch.Generator) -> dict[str, torch.Tensor]:
    """The tensors outside the blocks."""
    rows = recipe.config["hidden_size_per_layer_input"]
    if not rows:
        return {}
    width = recipe.layers * rows

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng).to(recipe.dtype)

    return {
        "model.embed_tokens_per_layer.weight": 0.2 * random(vocab, width),
        "model.per_layer_model_projection.weight": 0.5 * random(width, recipe.hidden),
        "model.per_layer_projection_norm.weight": 1 + 0.2 * random(rows),
    }
