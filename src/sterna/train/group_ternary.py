"""Ternary weights with a scale for each group of a row, and an optional rotation of inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna import formats
from sterna.train.hadamard_rotation import Rotation
from sterna.train.quant_linear import QuantLinear
from sterna.train.straight_through import Rounded, finite, mean_abs, straight_through
from sterna.weights.storages.ternary_masters import SMALLEST

__all__ = ["GroupTernaryLinear"]


class GroupTernaryLinear(QuantLinear):
    """Ŵ = s clamp(round(W / s), -1, 1), s = mean |W| of each `group` weights; dL/dW = dL/dŴ.

    BitNet b1.58's equations 1 to 3 (arXiv 2402.17764) for groups, as Bonsai's models have them. s
    is the float of 16 bits that the format `i2:gN` holds, in training too. Activations have a scale
    for each 32. `rotation`: its inputs are rotated, as BitNet v2's are (arXiv 2504.18415).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        group: int = 128,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """RequestError for a group that is no multiple of 32, or does not divide K."""
        format = formats.get(f"i2:g{group}")
        format.check_shape(*weight.shape)
        super().__init__(weight, bias, rms_norm=rms_norm, rotation=rotation)
        self.group = group
        self._format = str(format)

    def rounded(self) -> Rounded:
        """Return the weights as they are now."""
        w = finite("weight", self.weight)
        blocks = w.detach().reshape(len(w), -1, self.group)
        scale = mean_abs(blocks).clamp(min=SMALLEST).half().float()
        levels = (blocks / scale[..., None]).round().clamp(-1, 1)
        values = (levels * scale[..., None]).flatten(1)
        return Rounded(
            self._format, levels.flatten(1).to(torch.int8), scale, straight_through(values, w)
        )
