"""BitNet's ternary layers in floats: trits with a scale, and dequantised (Falcon-E in bf16)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from families.base import LLAMA, Family

OFFLINE = {
    "quantization_config": {
        "quant_method": "bitnet",
        "linear_class": "autobitlinear",
        "quantization_mode": "offline",
        "modules_to_not_convert": None,
    }
}


def ternarise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(trits, scale) of WeightQuant, in float32 and per tensor."""
    scale = 1.0 / weight.abs().mean().clamp(min=1e-5)
    return (weight * scale).round().clamp(-1, 1), 1 / scale


def trits_and_scale(w: Tensor, _: str, __: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """The weights of an AutoBitLinear of the offline mode before they are packed."""
    trits, scale = ternarise(w)
    stored = scale.reshape(1).bfloat16()
    return {"weight": trits.bfloat16(), "weight_scale": stored}, trits * stored.float()


def dequantised(w: Tensor, _: str, __: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """-s, 0, s with one bf16 s for the matrix."""
    trits, scale = ternarise(w)
    weight = (trits * scale).bfloat16()
    return {"weight": weight}, weight.float()


TERNARY = {
    "bitnet-unpacked": Family(
        replace(LLAMA, dtype=torch.bfloat16, seed=20, config=OFFLINE),
        trits_and_scale, "i2", rounds=True,
    ),
    "falcon-e-bf16": Family(
        replace(LLAMA, dtype=torch.bfloat16, tied=True, seed=21), dequantised, "i2", rounds=True
    ),
}  # fmt: skip
