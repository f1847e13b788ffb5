"""TriLM *_Unpacked: fp16 trits times a scale, one for each part that had its own device."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from families.base import LLAMA, Family

PARTS = 2  # devices of the training


def unpacked(by_columns: bool) -> object:
    """Storage of layers split by rows; o_proj and down_proj by columns, if that is asked for."""

    def store(w: Tensor, name: str, _: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        split = 1 if by_columns and name.endswith(("o_proj", "down_proj")) else 0
        parts = []
        for part in w.chunk(PARTS, dim=split):
            scale = part.abs().mean().clamp(min=1e-5)
            parts.append((part / scale).round().clamp(-1, 1).half() * scale.half())
        weight = torch.cat(parts, dim=split)
        return {"weight": weight}, weight.float()

    return store


RECIPE = replace(LLAMA, dtype=torch.float16)
TRILM = {
    "trilm-rows": Family(replace(RECIPE, seed=40), unpacked(False), "i2"),
    "trilm-columns": Family(
        replace(RECIPE, seed=41), unpacked(True), "i2", grouped=("o_proj", "down_proj")
    ),
}
