"""f16: IEEE half weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from sterna.formats.base import Format

FORMAT = Format(
    name="f16", layout="f16", bits=16.0, summary="IEEE half", integer=False, default_scale="none"
)
