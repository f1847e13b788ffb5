"""Power-of-two weights in the words of "Demystifying Power-of-Two Quantization", Table 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from families.base import LLAMA, Family


def quantization(encoding: str, **fields: Any) -> dict[str, Any]:
    """config.json's words for it."""
    return {"quantization_config": {"quant_method": "power_of_two", "encoding": encoding, **fields}}


def nibbles(fields: Tensor) -> Tensor:
    """Two of them in a byte, the first in the low half; an odd last one alone."""
    fields = torch.nn.functional.pad(fields, (0, fields.shape[1] % 2))
    return (fields[:, ::2] | fields[:, 1::2] << 4).to(torch.uint8)


def powers(
    encoding: str, top: int, *, group: int = 0, tensor: bool = False, zero: bool = False
) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    """Weights with exponents 0..top, rounded in the logarithm, the largest to 2^top."""

    def store(w: Tensor, _: str, __: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        blocks = w.reshape(1, -1) if tensor else w.reshape(-1, group or w.shape[1])
        scale = blocks.abs().amax(1, keepdim=True) / 2.0**top
        if group:
            scale = scale.half().float()
        e = (blocks.abs() / scale).log2().round().clamp(0, top).long()
        negative = (blocks < 0).long()
        sign = 1.0 - 2.0 * negative
        if zero:
            small = blocks.abs() < scale / 2
            sign[small], negative[small] = 0, 0
        real = (sign * 2.0**e * scale).reshape(w.shape)
        if encoding == "E3P2":
            field = torch.where(sign == 0, 0, e + 1) if zero else e
            words = nibbles((negative << 3 | field).reshape(w.shape))
        elif encoding == "E5P1":
            words = (negative << 7 | e).reshape(w.shape).to(torch.uint8)
        else:
            words = (negative << 15 | e << 7).reshape(w.shape).to(torch.uint16)
        shape = () if tensor else (len(w), -1) if group else (len(w),)
        stored = scale.reshape(shape)
        return {"weight": words, "weight_scale": stored.half() if group else stored}, real

    return store


def family(store: Any, format: str, seed: int, encoding: str, **fields: Any) -> Family:
    """A Llama with these layers."""
    recipe = replace(LLAMA, seed=seed, config=quantization(encoding, **fields))
    float_inputs = format in ("pot8", "pot16")
    grouped = ("_proj",) if format.endswith("g32") else ()
    return Family(recipe, store, format, grouped=grouped, float_inputs=float_inputs)


POWER_OF_TWO = {
    "pot-e3p2": family(powers("E3P2", 7), "pot4", 70, "E3P2"),
    "pot-e3p2-zero": family(
        powers("E3P2", 6, tensor=True, zero=True), "pot4z", 75, "E3P2",
        zero_free=False, scale="tensor",
    ),
    "pot-e3p2-groups": family(
        powers("E3P2", 7, group=32), "pot4:g32", 72, "E3P2", scale="group:32"
    ),
    "pot-e5p1": family(powers("E5P1", 31), "pot8", 73, "E5P1", zero_free=True, scale="row"),
    "pot-e8p1": family(powers("E8P1", 20, tensor=True), "pot16", 74, "E8P1", scale="tensor"),
}  # fmt: skip
