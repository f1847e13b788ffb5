"""GPTQ's files, and AutoRound's in the same layout: integers in words, a scale for each group.

    qweight  int32 [K bits / 32, M]   codes of 2, 4 or 8 bits, neighbours of k in a word
    scales   float [groups, M]
    qzeros   int32 [groups, M bits / 32]   zero points, neighbours of M in a word; stored minus one,
             modulo 2^bits, unless `checkpoint_format` is gptq_v2, or AutoRound's `packing_format`
             another one than GPTQ's
    g_idx    int32 [K]   the group of each k; absent in AutoRound's files

A weight is scale (code - zero). If all zeros are 2^(bits-1), levels of four bits fit i4; otherwise
codes of b bits have levels of b + 1 bits: in groups those of five bits take q5_0, others i8. If
groups are not of neighbours (desc_act), the weights become float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.weights.storages.base import Floats, Layer, Levels
from sterna.weights.storages.integers import WORD_BITS, group_index, integers, unpacked, with_zeros


def recognises(layer: Layer) -> bool:
    """Whether there are words of codes."""
    return layer.has("qweight")


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, and check them."""
    M, K = layer.shape
    words = layer.info("qweight")
    bits = next((b for b in (2, 4, 8) if words.shape == (K * b // WORD_BITS, M)), 0)
    if words.dtype != "I32" or not bits or K * bits % WORD_BITS or M * bits % WORD_BITS:
        layer.fail(
            "qweight",
            f"I32 [K bits / 32, M] with K={K}, M={M} and 2, 4 or 8 bits",
            f"{words.dtype} {list(words.shape)}",
        )
    groups = layer.info("scales").shape[0] if layer.info("scales").shape else 0
    if not groups or K % groups:
        layer.fail("scales", f"a scale for each of some groups of K={K}", f"{groups} groups")
    scale = layer.floats("scales", (groups, M)).T
    index = group_index(layer, "g_idx", groups)
    zeros = _zeros(layer, bits, groups)
    codes = unpacked(layer.checkpoint.read(words.name), bits, 0)
    kinds, levels = with_zeros(layer, codes, zeros, bits, index)
    return integers(kinds, levels, np.ascontiguousarray(scale), index)


def _zeros(layer: Layer, bits: int, groups: int) -> np.ndarray[tuple[int, int], np.dtype[np.int16]]:
    """Read the zero points as int16 [groups, M]."""
    M, settings = layer.part.M, layer.checkpoint.config.get("quantization_config") or {}
    info = layer.checkpoint.require(
        f"{layer.part.name}.qzeros", (groups, M * bits // WORD_BITS), "I32"
    )
    stored = unpacked(layer.checkpoint.read(info.name), bits, 1).astype(np.int16)
    middle = 1 << (bits - 1)
    if settings.get("sym") is True and np.isin(stored, (middle - 1, middle)).all():
        same = int(stored.flat[0])  # versions of AutoRound store either, with the same meaning
        if (stored == same).all():
            return np.full_like(stored, middle)
    return stored if _are_plain(settings) else (stored + 1) & ((1 << bits) - 1)


def _are_plain(settings: dict[str, Any]) -> bool:
    """Whether zero points are stored as they are."""
    packing = settings.get("packing_format")
    if isinstance(packing, str) and "auto-round" in str(settings.get("quant_method")):
        return packing != "auto" and not packing.endswith("gptq")
    return settings.get("checkpoint_format", settings.get("format")) == "gptq_v2"
