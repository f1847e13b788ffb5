"""bf16: bfloat16 weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from sterna.formats.base import Format

FORMAT = Format(
    name="bf16",
    layout="bf16",
    bits=16.0,
    summary="bfloat16",
    integer=False,
    step_k=2,
    default_scale="none",
)
