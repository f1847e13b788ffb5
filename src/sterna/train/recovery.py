"""Distillation of scales: frozen levels, whose scales learn the unrounded model's answers.

    ŵ = level (d s_g) + m,   d and m trained, rounded to what the format stores

Levels stay as they were rounded, and so do the whole numbers s_g of super-blocks and micro-blocks,
of which only the float d (and d_m) is trained. Vectors (norms, biases) are trained, too. All are
trained relative to their size, so that one learning rate is right for all. The loss is the mean KL
divergence of the next token from the unrounded model's. Gradients go straight through the rounding
of scales (Bengio, arXiv 1308.3432).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sterna.convert.recovery import Piece
from sterna.formats import Format
from sterna.formats.scales import E8M0, F16, GroupScales, SuperBlockScales
from sterna.formats.scales.within_rows import ProductScales
from sterna.train.loop import Loss
from sterna.train.straight_through import straight_through

__all__ = ["ScaledLinear", "ScaledTable", "ScaledWeight", "divergence", "train_vector", "vector_of"]

F32 = npt.NDArray[np.float32]
CHUNK = 1 << 22  # weights that are float32 at a time
MOST_HALF = 65504.0


class ScaledWeight(nn.Module):
    """Frozen levels [M, K] with trained scales: the weights of a layer, a table or a head."""

    format: Format
    levels: Tensor
    change: nn.Parameter

    def __init__(self, piece: Piece) -> None:
        """Start from a piece as it was rounded; `change` has no gradient where nothing trains."""
        super().__init__()
        self.format, self._given = piece.format, piece.scales
        self.M, self.K = piece.levels.shape
        parts = self._in_parts(piece.scales)
        self._free, self._fixed = _tensor(parts[..., 0]), _tensor(parts[..., 1:])
        self._unit = self._free.abs()
        if self._free.shape[2] > 1:  # a minimum may be 0, but moves in steps of its scale
            self._unit[:, :, 1] = self._unit.amax(dim=2)
        self.levels = torch.from_numpy(np.ascontiguousarray(piece.levels))
        trains = piece.trains and getattr(piece.format.scales, "number", None) is not E8M0
        # The 1 at the end gives scales next to minima the learning rate that scales alone have.
        self.change = nn.Parameter(torch.zeros(*self._free.shape, 1), requires_grad=trains)

    def _in_parts(self, scales: F32) -> F32:
        """Reshape to [rows, blocks, parts, numbers]: scale and minimum, the trained number first.

        The numbers after it are those that multiply it, if any.
        """
        layout = self.format.scales
        parts = 2 if layout.minima else 1
        if isinstance(layout, ProductScales):
            return scales.reshape(self.M, -1, parts, scales.shape[-1])
        if isinstance(layout, GroupScales):
            return scales.reshape(self.M, -1, parts, 1)
        return np.reshape(scales, (-1, 1, 1, 1))  # of a row, or of all rows

    def _trained(self) -> Tensor:
        """Return the trained numbers as they are stored, [rows, blocks, parts]."""
        change = self.change[..., 0]
        scale = self._free[:, :, :1] * change[:, :, :1].exp()  # never changes its sign
        moved = self._free[:, :, 1:] + self._unit[:, :, 1:] * change[:, :, 1:]
        free = torch.cat([scale, moved], dim=2)
        return straight_through(_stored(self.format, free.detach()), free)

    def scales(self) -> Tensor:
        """Return the scale and the minimum of each group: [1 or 2, M, groups], with gradients."""
        free = self._trained()[..., None]
        pairs = free * self._fixed if self._fixed.shape[-1] else free
        by_part = pairs.permute(2, 0, 1, 3).flatten(2)
        value = torch.tensor([self.format.value, 1.0])[: len(by_part), None, None]
        return (by_part * value).expand(-1, self.M, -1)

    def stored(self) -> F32:
        """Return the scales as their layout has them."""
        made = np.array(self._in_parts(np.array(self._given)))
        with torch.no_grad():
            made[..., 0] = self._trained().numpy()
        return made.reshape(self._given.shape)


def _tensor(values: F32) -> Tensor:
    return torch.from_numpy(np.array(values, np.float32))


def _stored(format: Format, numbers: Tensor) -> Tensor:
    """Round scales to the numbers that a format stores."""
    layout: Any = format.scales
    number = F16 if isinstance(layout, SuperBlockScales) else getattr(layout, "number", None)
    if number is F16:
        return numbers.clamp(-MOST_HALF, MOST_HALF).half().float()
    return numbers if number is None else _tensor(number.nearest(numbers.numpy()))


def _real(levels: Tensor, scales: Tensor) -> Tensor:
    """Weights [m, K] of levels and of scales [1 or 2, m, groups]."""
    groups = levels.float().reshape(len(levels), scales.shape[2], -1) * scales[0, :, :, None]
    made: Tensor = groups + scales[1, :, :, None] if len(scales) > 1 else groups
    return made.flatten(1)


class _Product(torch.autograd.Function):
    """y = x Ŵ^T, where Ŵ is float32 for some rows at a time, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scales: Tensor, levels: Tensor) -> Tensor:
        ctx.save_for_backward(x, scales, levels)
        y = x.new_empty(len(x), len(levels))
        for rows in _chunks(levels):
            torch.mm(x, _real(levels[rows], scales[:, rows]).t(), out=y[:, rows])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, scales, levels = ctx.saved_tensors
        of_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        of_scales = torch.empty_like(scales) if ctx.needs_input_grad[1] else None
        for rows in _chunks(levels):
            of_y = grads[0][:, rows]
            if of_x is not None:
                of_x.addmm_(of_y, _real(levels[rows], scales[:, rows]))
            if of_scales is not None:
                of_w = (of_y.t() @ x).unflatten(1, (scales.shape[2], -1))
                if len(scales) > 1:
                    of_scales[1, rows] = of_w.sum(2)
                of_scales[0, rows] = of_w.mul_(levels[rows].unflatten(1, of_w.shape[1:])).sum(2)
        return of_x, of_scales, None


def _chunks(levels: Tensor) -> list[slice]:
    step = max(1, CHUNK // levels.shape[1])
    return [slice(begin, begin + step) for begin in range(0, len(levels), step)]


class ScaledLinear(nn.Module):
    """y [..., M] = x [..., K] Ŵ^T + bias."""

    scaled: ScaledWeight
    bias: nn.Parameter | None

    def __init__(self, weight: ScaledWeight, bias: nn.Parameter | None) -> None:
        """Take a weight, which a table may share."""
        super().__init__()
        self.scaled, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., K] -> [..., M], float32."""
        function: Any = _Product  # whose `apply` torch gives no types
        rows = x.float().flatten(0, -2)
        y: Tensor = function.apply(rows, self.scaled.scales(), self.scaled.levels)
        y = y.reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class ScaledTable(nn.Module):
    """The rows of tokens."""

    scaled: ScaledWeight

    def __init__(self, weight: ScaledWeight) -> None:
        """Take a weight, which a head may share."""
        super().__init__()
        self.scaled = weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up [...] -> [..., K], float32."""
        flat = tokens.flatten()
        rows = _real(self.scaled.levels[flat], self.scaled.scales()[:, flat])
        return rows.reshape(*tokens.shape, -1)


class _Relative(nn.Module):
    """A vector as what it was, plus a change in units of its mean size."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.start = start
        size = float(start.abs().mean())
        self.unit = size if size > 0 else 1.0

    def forward(self, change: Tensor) -> Tensor:
        return self.start + self.unit * change

    def right_inverse(self, value: Tensor) -> Tensor:
        return torch.zeros_like(value)


def train_vector(module: nn.Module, name: str, start: F32) -> None:
    """Let a module's vector be trained from `start` on, relative to its size."""
    shape = getattr(module, name).shape
    value = nn.Parameter(_tensor(start).reshape(shape))
    setattr(module, name, value)
    parametrize.register_parametrization(module, name, _Relative(value.detach().clone()))


def vector_of(module: nn.Module, name: str) -> F32:
    """Return a vector as it has been trained, float32."""
    with torch.no_grad():
        values: Tensor = getattr(module, name)
        return np.array(values.numpy(), np.float32)


def divergence(teacher: Callable[[list[int]], F32]) -> Loss:
    """Return the loss of `loop.train`: the KL divergence from the teacher's logits [n, vocab] of
    all rows' next tokens, the sum over the labelled ones."""

    def loss(model: Any, tokens: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        total: Tensor = logits.new_zeros(())
        for row, of_row in zip(tokens, logits[:, :-1], strict=True):
            wanted = torch.from_numpy(teacher(row.tolist()))[:-1].log_softmax(-1)
            made = of_row.float().log_softmax(-1)
            total = total + nn.functional.kl_div(made, wanted, log_target=True, reduction="sum")
        return total

    return loss
