"""1bitLLM/bitnet_b1_58-large and -3B: fp16 masters, ternarised by each forward pass; SiLU."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from families.base import LLAMA, Family
from families.ternary import ternarise

CONFIG = {
    "architectures": ["BitnetForCausalLM"],
    "input_bits": 8,
    "weight_bits": 1,
    "attention_bias": False,
    "rope_scaling": None,
    "pad_token_id": 0,
}
SUB_NORMS = ("self_attn.inner_attn_ln", "mlp.ffn_layernorm")


def masters(w: Tensor, _: str, __: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """The masters as they are; the model multiplies by their rounded values."""
    stored = w.half()
    trits, scale = ternarise(stored.float())
    return {"weight": stored}, trits * scale


LARGE = Family(
    replace(LLAMA, dtype=torch.float16, tied=True, seed=30, kv_heads=8, config=CONFIG),
    masters, "i2", rounds=True, sub_norms=SUB_NORMS,
)  # fmt: skip
# Heads of 20: as those of 100, no multiple of 16. hidden is heads * 20.
THREE_B = replace(LARGE, recipe=replace(LARGE.recipe, hidden=100, heads=5, kv_heads=5, seed=31))
ONEBIT = {"bitnet_b1_58-large": LARGE, "bitnet_b1_58-3B": THREE_B}
