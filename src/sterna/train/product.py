"""The product of training: Sterna's kernels forwards, floats backwards.

    y = S(x, Ŵ)      the kernels' sum, of x rounded to int8 where the format says so
    dL/dx = dL/dy Ŵ,  dL/dŴ = (dL/dy)^T x̂,  x̂: x as the kernels round it

So the loss is that of the exported model. On other devices than the CPU, the forward pass is x̂ Ŵ^T
in floats: the same numbers, summed in another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sterna import formats, ops
from sterna.formats import PackedWeight
from sterna.formats.base import Format
from sterna.torch import operator
from sterna.torch.tensors import packed_tensors
from sterna.train.bf16_product import bf16_product
from sterna.train.straight_through import Rounded

__all__ = ["packed", "product", "rounded_activations"]


def packed(rounded: Rounded) -> PackedWeight:
    """Pack weights for the kernels; RequestError for a level or scale that the format lacks."""
    return ops.pack(
        rounded.levels.detach().cpu().numpy(),
        rounded.scale.detach().cpu().numpy(),
        format=rounded.format,
        threads=torch.get_num_threads(),
    )


def product(x: Tensor, rounded: Rounded) -> Tensor:
    """y [..., M] = x [..., K] Ŵ^T with gradients, of x's dtype; raises as `ops.linear`."""
    if rounded.bf16:
        return bf16_product(x, rounded)
    if x.is_cpu:
        function: Any = _Product  # whose `apply` torch gives no types
        y: Tensor = function.apply(x, rounded.values, rounded)
        return y
    rows = x.float()
    made = rows + (rounded_activations(rows, formats.get(rounded.format)) - rows).detach()
    return torch.nn.functional.linear(made, rounded.values).to(x.dtype)


def rounded_activations(x: Tensor, format: Format) -> Tensor:
    """Return x, float32 [..., K], rounded as by a format's kernels: max |x| / 127, half to even.

    The maximum is that of a row, or of each 32 or 256 values if weights have scales in groups.
    """
    if not format.integer:
        return x
    scales: Any = format.scales
    blocks = x.reshape(*x.shape[:-1], -1, scales.x_group) if scales.group else x
    top = blocks.abs().amax(-1, keepdim=True)
    inverse = torch.where(top > 0, 127 / top, 0)
    made = (blocks * inverse).round() * (top / 127)
    return made.flatten(-2) if scales.group else made


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, rounded: Rounded) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.format = rounded.format
        weight = packed(rounded)
        return operator.linear(
            x.detach(), *packed_tensors(weight), str(weight.format), weight.M, weight.K
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, values = ctx.saved_tensors
        of_x = of_values = None
        rows = grads[0].float().flatten(0, -2)
        if ctx.needs_input_grad[0]:
            of_x = (rows @ values).reshape(x.shape).to(x.dtype)
        if ctx.needs_input_grad[1]:
            seen = rounded_activations(x.float(), formats.get(ctx.format))
            of_values = rows.t() @ seen.flatten(0, -2)
        return of_x, of_values, None
