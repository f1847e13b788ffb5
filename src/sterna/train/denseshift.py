"""S3 and DenseShift: powers of two whose bits are trained, each as the sign of a float."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sterna.errors import RequestError
from sterna.formats.pot_methods import Quantizer, denseshift, s3
from sterna.train.hadamard_rotation import Rotation
from sterna.train.quant_linear import QuantLinear
from sterna.train.straight_through import Rounded, finite, straight_through

__all__ = ["DenseShiftLinear", "S3Linear"]

_START = 1e-3  # of latents: near zero, so that bits may still flip (DenseShift, section 4.3)


class _Reparametrised(QuantLinear):
    """Latents w_sign, w_1 .. w_N and, with a zero, w_sparse, [M, K] each; `scale` [M] is trained.

    Equations 1 to 4 of "Demystifying Power-of-Two Quantization", 1(x) = 1 for x >= 0 and else 0:

        S_t = 1(w_t) (S_(t-1) + 1), S_0 = 0        Ŵ = 1(w_sparse) (2 1(w_sign) - 1) 2^(S_N) |scale|

    1(.) passes its gradient on. The latents start from the powers nearest to the masters, of which
    `weight` keeps w_sign.
    """

    w_sparse: Tensor | None
    scale: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        quantizer: Quantizer,
        rms_norm: nn.Module | None,
        rotation: Rotation | None,
    ) -> None:
        super().__init__(weight, bias, rms_norm=rms_norm, rotation=rotation)
        start = quantizer(finite("weight", self.weight.detach()).cpu().numpy())
        exponents = torch.from_numpy(start.exponents).int()
        self.n_shifts: int = quantizer.max_exponent
        negative = self.weight.detach() < 0
        del self.weight
        self.w_sign: nn.Parameter = _latent(~negative)
        for t in range(1, self.n_shifts + 1):  # the last e of them are 1, and the one before is 0
            self.register_parameter(f"w_{t}", _latent(exponents > self.n_shifts - t))
        zero = quantizer.zero == "near"
        self.w_sparse = _latent(torch.from_numpy(start.signs != 0)) if zero else None
        self.scale = nn.Parameter(torch.from_numpy(start.scale))

    def rounded(self) -> Rounded:
        """Return the weights as they are now; RequestError for a scale of 0."""
        scale = finite("scale", self.scale).abs()  # a sign is each weight's own
        if bool((scale == 0).any()):
            row = int((scale == 0).int().argmax())
            raise RequestError(
                f"scale: must not be 0, but that of row {row} is; train it with a smaller step"
            )
        made = 2 * _step("w_sign", self.w_sign) - 1
        exponent = torch.zeros_like(made)
        for t in range(1, self.n_shifts + 1):
            name = f"w_{t}"
            exponent = _step(name, getattr(self, name)) * (exponent + 1)
        if self.w_sparse is not None:
            made = _step("w_sparse", self.w_sparse) * made
        levels = torch.ldexp(made.detach(), exponent.detach().int()).to(torch.int16)
        format = "pot4" if self.w_sparse is None else "pot4z"
        values = made * torch.exp2(exponent) * scale[:, None] + 0.0  # which makes -0 a 0
        return Rounded(format, levels, scale, values)


class DenseShiftLinear(_Reparametrised):
    """+-2^0 .. +-2^T times a row's scale, without a zero (DenseShift, arXiv 2208.09708), `pot4`."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        T: int = 3,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """RequestError unless T is 2, 3 or 4."""
        super().__init__(weight, bias, denseshift(T), rms_norm, rotation)


class S3Linear(_Reparametrised):
    """0, +-2^0 .. +-2^(T-1) times a row's scale (S3, NeurIPS 2021), `pot4z`."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        T: int = 3,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """RequestError unless T is 2, 3 or 4."""
        super().__init__(weight, bias, s3(T), rms_norm, rotation)


def _latent(positive: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.where(positive, _START, -_START))


def _step(name: str, x: Tensor) -> Tensor:
    """Compute the step function 1(x), with the gradient of x."""
    x = finite(name, x)
    return straight_through((x >= 0).float(), x)
