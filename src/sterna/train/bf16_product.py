"""Products of training in bfloat16, for CPUs with bfloat16 instructions, with the kernels' bits.

y = (sum of levels q) (s s_x)    q: activations as integers, which like levels have 8 bits at
                                 most, that bfloat16 holds; sums below 2^24, that float32 holds:
                                 torch's sum is the kernels'
dL/dx, dL/dŴ                     of bfloat16 factors, summed in float32, rounded to bfloat16
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sterna import formats
from sterna.train.straight_through import Rounded

__all__ = ["bf16_product", "is_exact"]

_EXACT = 1 << 24  # integers up to here are floats
_SMALLEST = 1e-5  # the least max |x| of a token (native/rowwise.h)


def is_exact(rounded: Rounded) -> bool:
    """Whether `bf16_product` has the kernels' bits for weights of this format and width."""
    f = formats.get(rounded.format)
    if f.codebook is None or f.scales.group:
        return False
    largest = max(abs(level) for level in f.codebook.ends)
    return bool(largest <= 256 and 127 * largest * rounded.levels.shape[1] < _EXACT)


def bf16_product(x: Tensor, rounded: Rounded) -> Tensor:
    """y [..., M] = x [..., K] Ŵ^T with gradients, of x's dtype; of weights that are exact.

    Fast if torch.backends.mkldnn.matmul.fp32_precision is "bf16"; the bits are the same otherwise.
    """
    f = formats.get(rounded.format)
    levels, scale = rounded.levels.float(), rounded.scale.detach() * f.value
    function: Any = _Bf16Product  # whose `apply` torch gives no types
    y: Tensor = function.apply(x, rounded.values, levels, scale)
    return y


class _Bf16Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, levels: Tensor, scale: Tensor) -> Tensor:
        rows = x.float()
        top = rows.abs().amax(-1, keepdim=True).clamp(min=_SMALLEST)
        q = (rows * (127 / top)).round()
        s_x = top / 127
        ctx.save_for_backward(q.bfloat16(), s_x, levels, scale)
        ctx.dtype = x.dtype
        sums = torch.nn.functional.linear(q, levels)
        return (sums * (scale * s_x)).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, s_x, levels, scale = ctx.saved_tensors
        rows = grads[0].float()
        of_sums = (rows * scale).bfloat16().flatten(0, -2)
        of_x = (of_sums @ levels.bfloat16()).reshape(q.shape).to(ctx.dtype)
        scaled = (rows * s_x).bfloat16().flatten(0, -2)
        return of_x, (scaled.t() @ q.flatten(0, -2)).float(), None, None
