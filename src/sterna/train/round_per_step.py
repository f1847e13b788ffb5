"""Weights that are rounded once for all the rows of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sterna.train.bf16_product import is_exact
from sterna.train.quant_linear import QuantLinear

__all__ = ["round_per_step"]


@contextmanager
def round_per_step(model: nn.Module, bf16: bool = False) -> Iterator[None]:
    """Within the context, training layers use weights that were rounded from their masters at its
    start.

    At its end, the gradients are passed to the masters. bf16: torch's products in bfloat16, and
    those of layers as `sterna.train.bf16_product` has them, where these have the kernels' bits.
    """
    layers = [m for m in model.modules() if isinstance(m, QuantLinear) and m.trains]
    made = [layer.rounded() for layer in layers]
    leaves = [rounded.values.detach().requires_grad_() for rounded in made]
    backend: Any = torch.backends.mkldnn  # an object, which mypy takes for the module
    products = backend.matmul
    precision = products.fp32_precision
    try:
        if bf16:
            products.fp32_precision = "bf16"
        for layer, rounded, leaf in zip(layers, made, leaves, strict=True):
            layer.held = rounded._replace(values=leaf, bf16=bf16 and is_exact(rounded))
        yield
    finally:
        products.fp32_precision = precision
        for layer in layers:
            layer.held = None
    reached = [(r.values, v.grad) for r, v in zip(made, leaves, strict=True) if v.grad is not None]
    if reached:
        torch.autograd.backward([v for v, _ in reached], [g for _, g in reached])
