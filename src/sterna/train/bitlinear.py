"""BitNet b1.58: ternary weights, one scale for a matrix."""

from __future__ import annotations

import torch

from sterna.train.quant_linear import QuantLinear
from sterna.train.straight_through import Rounded, finite, mean_abs, straight_through
from sterna.weights.storages.ternary_masters import SMALLEST

__all__ = ["BitLinear"]


class BitLinear(QuantLinear):
    """Ŵ = s clamp(round(W / s), -1, 1), s = mean |W|; dL/dW = dL/dŴ.

    BitNet b1.58 (arXiv 2402.17764), equations 1 to 3; activations as there, 127 / max |x| for each
    token. `rms_norm` before it: "with input norms", as 1bitLLM's and Falcon-E's training code have
    it. Exported as `i2`.
    """

    def rounded(self) -> Rounded:
        """Return the weights as they are now."""
        w = finite("weight", self.weight)
        scale = mean_abs(w.reshape(1, -1)).reshape(()).clamp(min=SMALLEST)
        # Times the inverse, which is rounded first: it decides near-ties.
        levels = (w.detach() * (1 / scale)).round().clamp(-1, 1)
        return Rounded("i2", levels.to(torch.int8), scale, straight_through(levels * scale, w))
