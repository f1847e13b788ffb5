"""f32: IEEE single weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from sterna.formats.base import Format

FORMAT = Format(
    name="f32", layout="f32", bits=32.0, summary="IEEE single", integer=False, default_scale="none"
)
