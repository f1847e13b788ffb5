"""DeepShift: powers of two by rounding (Q), or as trained shifts and signs (PS)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna.errors import RequestError, shown
from sterna.train.hadamard_rotation import Rotation
from sterna.train.quant_linear import QuantLinear
from sterna.train.straight_through import Rounded, finite, straight_through

__all__ = ["DeepShiftPSLinear", "DeepShiftQLinear"]

_SQRT_HALF = 0.5**0.5  # no float32 is the bound: it has no ties


class DeepShiftQLinear(QuantLinear):
    """Ŵ = sign(W) 2^P s, P = clamp(round(log2(|W| / s)), 0, 2^(bits-1) - 2); dL/dW = dL/dŴ.

    DeepShift-Q (arXiv 1905.13298, section 3.2). There the largest level is 1; here s, a power of
    two, puts it at the largest master's that training starts from. 0 stays 0. Exported as `pot4z`.
    """

    unit: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        bits: int = 4,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """RequestError unless bits are 2, 3 or 4."""
        if bits not in (2, 3, 4):
            raise RequestError(f"bits: must be 2, 3 or 4, but got {shown(bits)}")
        super().__init__(weight, bias, rms_norm=rms_norm, rotation=rotation)
        self.most = 2 ** (bits - 1) - 2
        top = float(finite("weight", self.weight.detach()).abs().max())
        _, exponent = torch.frexp(torch.tensor(top if top > 0 else 1.0))
        self.register_buffer("unit", torch.ldexp(torch.tensor(1.0), exponent - self.most))

    def rounded(self) -> Rounded:
        """Return the weights as they are now."""
        w = finite("weight", self.weight)
        mantissa, exponent = torch.frexp(w.detach().abs() / self.unit.float())
        p = (exponent - (mantissa < _SQRT_HALF).int()).clamp(0, self.most)
        levels = torch.ldexp(w.detach().sign(), p)
        scale = self.unit.float()
        return Rounded("pot4z", levels.to(torch.int8), scale, straight_through(levels * scale, w))


class DeepShiftPSLinear(DeepShiftQLinear):
    """Ŵ = round(S) 2^round(P) s, with P clamped to its range and S to -1..1, both trained.

    DeepShift-PS (arXiv 1905.13298, section 3.3); the rounding passes gradients on, so that dL/dP =
    dL/dŴ Ŵ ln 2 and dL/dS = dL/dŴ 2^P s. P is `weight`, S is `sign`, [M, K] both. They start from
    the powers nearest to the masters. Exported as `pot4z`.
    """

    sign: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        bits: int = 4,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        super().__init__(weight, bias, bits=bits, rms_norm=rms_norm, rotation=rotation)
        w = self.weight.detach().float()
        self.sign = nn.Parameter(w.sign())
        smallest = torch.finfo(torch.float32).tiny
        logs = (w.abs() / self.unit).clamp(min=smallest).log2()
        self.weight: nn.Parameter = nn.Parameter(logs.clamp(0, self.most))

    def rounded(self) -> Rounded:
        """Return the weights as they are now."""
        shift = finite("weight", self.weight).clamp(0, self.most)
        sign = finite("sign", self.sign).clamp(-1, 1)
        p, s = shift.detach().round(), sign.detach().round()
        values = (
            straight_through(s, sign) * torch.exp2(straight_through(p, shift)) * self.unit.float()
        )
        levels = torch.ldexp(s, p.int()).to(torch.int8)
        return Rounded("pot4z", levels, self.unit.float(), values)
