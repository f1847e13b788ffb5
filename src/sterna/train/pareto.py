"""ParetoQ: 1, 1.58, 2, 3 and 4 bits, with a trained scale for each row."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sterna.errors import RequestError, shown
from sterna.train.hadamard_rotation import Rotation
from sterna.train.quant_linear import QuantLinear
from sterna.train.straight_through import (
    Rounded,
    finite,
    mean_abs,
    scaled_gradient,
    straight_through,
)
from sterna.weights.storages.paretoq import SMALLEST

__all__ = ["ParetoLinear"]

_EDGE = 0.99  # of the range: what lies beyond is clipped, and its weight has no gradient
_BITS = (1, 1.58, 2, 3, 4)
#: Levels of a unit range, and by how much they are shifted.
_STRETCHED = {1.58: (1.5, 0.0), 2: (2.0, 0.5)}


class ParetoLinear(QuantLinear):
    """Weights of few bits with a trained range alpha for each row, `weight_clip_val` [M, 1].

    ParetoQ (arXiv 2502.02631, section 3.2), with v = W / alpha:

        1        Ŵ = alpha sign(v)                                     elastic binarisation
        1.58, 2  Ŵ = alpha (round(n clip(v, -.99, .99) - h) + h) / n   stretched elastic
        3, 4     Ŵ = alpha clip(round(v), -2^(b-1), 2^(b-1) - 1)       learned step size

    n, h = 1.5, 0 of 1.58 bits and 2, 1/2 of 2. dL/dW = dL/dŴ within the range, else 0. dŴ / d alpha
    is Ŵ / alpha beyond it, Ŵ / alpha - v within, and sign(v) of 1 bit; it is multiplied by
    1 / sqrt(weights of the matrix * largest level), as LSQ has it (arXiv 1902.08153, section 2.2).

    Its activations are floats in ParetoQ, and int8 here, as in inference. The sign of 0 is 1.
    Exported as `i1`, `i2`, `i2p` and, of 3 and 4 bits, `i4`. The state is a ParetoQ checkpoint's:
    with `w_bits` in config.json (0 for 1.58) Sterna reads what save_pretrained writes.
    """

    weight_clip_val: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        bits: float,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """alpha starts at mean |W| for 1 bit, max |W| for 1.58 and 2, else max |W| / top level."""
        if bits not in _BITS:
            raise RequestError(f"bits: must be one of {_BITS}, but got {shown(bits)}")
        super().__init__(weight, bias, rms_norm=rms_norm, rotation=rotation)
        self.bits = bits
        w = self.weight.detach().float()
        alpha = mean_abs(w) if bits == 1 else w.abs().amax(1)
        if bits > 2:
            alpha = alpha / (2 ** (int(bits) - 1) - 1)
        self.weight_clip_val = nn.Parameter(alpha[:, None])

    def rounded(self) -> Rounded:
        """Return the weights as they are now."""
        w = finite("weight", self.weight)
        alpha = finite("weight_clip_val", self.weight_clip_val).clamp(min=float(SMALLEST))
        if self.bits == 1:
            return self._signs(w, scaled_gradient(alpha, w.numel() ** -0.5))
        if self.bits > 2:
            top = 2 ** (int(self.bits) - 1)
            alpha = scaled_gradient(alpha, (w.numel() * (top - 1)) ** -0.5)
            v = w / alpha
            levels = v.detach().round().clamp(-top, top - 1)
            values = alpha * straight_through(levels, v.clamp(-top, top - 1))
            return Rounded("i4", levels.to(torch.int8), alpha[:, 0], values)
        n, h = _STRETCHED[self.bits]
        alpha = scaled_gradient(alpha, 1 / math.sqrt(w.numel() * (n - h) / n))
        v = (w / alpha).clamp(-_EDGE, _EDGE)
        steps = (v.detach() * n - h).round() + h
        values = alpha * straight_through(steps / n, v)
        if h:  # levels are odd numbers, times alpha / 4
            return Rounded("i2p", (2 * steps).to(torch.int8), alpha[:, 0], values)
        return Rounded("i2", steps.to(torch.int8), alpha[:, 0] * (1 / torch.tensor(n)), values)

    def _signs(self, w: Tensor, alpha: Tensor) -> Rounded:
        levels = torch.where(w.detach() < 0, -1.0, 1.0)
        within = (w / alpha.detach()).clamp(-1, 1)
        return Rounded(
            "i1", levels.to(torch.int8), alpha[:, 0], alpha * straight_through(levels, within)
        )
