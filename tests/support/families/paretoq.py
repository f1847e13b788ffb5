"""MobileLLM-ParetoQ: latent weights with a clipping value for each row, or dequantised to bf16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from families.base import LLAMA, Family

NAMES = {1: "1", 0: "1.58", 2: "2", 3: "3", 4: "4"}
FORMATS = {1: "i1", 0: "i2", 2: "i2p", 3: "i4", 4: "i4"}


def start(w: Tensor, bits: int) -> Tensor:
    """Where the training of alpha [M, 1] starts."""
    if bits == 1:
        return w.abs().mean(-1, keepdim=True)
    largest = w.abs().amax(-1, keepdim=True)
    return largest if bits in (0, 2) else largest / (2 ** (bits - 1) - 1)


def quantised(w: Tensor, alpha: Tensor, bits: int) -> Tensor:
    """The weights of the forward pass."""
    alpha = alpha.clamp(min=1e-5)
    if bits == 1:
        return alpha * w.sign()
    if bits in (0, 2):
        levels, shift = (1.5, 0.0) if bits == 0 else (2.0, 0.5)
        inside = (w / alpha).clamp(-0.99, 0.99)
        return alpha * (((inside * levels - shift).round() + shift) / levels)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return alpha * (w / alpha).round().clamp(low, high)


def latent(bits: int) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """Latent bf16 weights and float32 clipping values, somewhat trained."""

    def store(w: Tensor, _: str, rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        w = w.bfloat16()
        alpha = start(w.float(), bits) * (0.7 + 0.3 * torch.rand(len(w), 1, generator=rng))
        alpha[0] = 1e-7  # floored
        if bits == 1:
            w[3, ::5] = 0  # the sign of 0 is 0
        return {"weight": w, "weight_clip_val": alpha}, quantised(w.float(), alpha, bits)

    return store


def dequantised(bits: int, rounds: bool = True) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """Stores the matrix that the forward pass multiplies by, rounded to bf16."""

    def store(w: Tensor, _: str, rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        alpha = start(w, bits) * (0.7 + 0.3 * torch.rand(len(w), 1, generator=rng))
        weight = quantised(w, alpha, bits)
        stored = weight.bfloat16()
        return {"weight": stored}, stored.float() if rounds else weight

    return store


def families() -> dict[str, Family]:
    """Both storages of every width."""
    out = {}
    for i, (bits, name) in enumerate(NAMES.items()):
        recipe = replace(LLAMA, dtype=torch.bfloat16, tied=True, seed=60 + i)
        trained = replace(recipe, config={"w_bits": bits})
        format = "i2" if bits == 1 else FORMATS[bits]  # of latent binary weights some are 0
        out[f"paretoq-{name}-latent"] = Family(trained, latent(bits), format)
        before = dequantised(bits, rounds=False) if bits > 1 else None
        out[f"paretoq-{name}-bf16"] = Family(
            recipe, dequantised(bits), FORMATS[bits], unrounded=before
        )
    return out


PARETOQ = families()
