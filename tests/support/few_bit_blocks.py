"""Types of one and two bits, which the `gguf` package cannot write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf_factory import Tiny, build, i2s_bytes, interleaved, metadata, raw_file
from gguf_models import hf_name

#: What a tensor runs as; "Q2_0 of 128" is an older file under the id of Q2_0.
FEW_BITS = {
    "I2_S": "i2", "Q1_0": "q1_0", "Q2_0": "q2_0", "Q2_0 of 64, ternary": "i2:g64",
    "Q2_0 of 128, ternary": "i2:g128", "PQ2_0": "pq2_0", "PQ2_0, ternary": "i2:g128",
    "PTQ1_0": "t5:g128", "STQ1_0": "stq1_0",
}  # fmt: skip


def ternary_file(path: Path, tiny: Tiny, kind: str, layout: str = "128") -> dict[str, np.ndarray]:
    """A model whose layers are I2_S, Q1_0 or Q2_0; returns the checkpoint's floats."""
    rng = np.random.default_rng(3)
    file, floats = build(replace(tiny, types={}))
    tensors = []
    for name, (w, type_name) in file.items():
        type_id = {"F32": 0, "F16": 1}[type_name]
        raw = w.tobytes()
        if w.ndim == 2 and name.startswith("blk."):
            low, high = {"Q1_0": (0, 2), "Q2_0": (-1, 3), "PQ2_0": (-1, 3)}.get(kind, (-1, 2))
            levels = rng.integers(low, high, w.shape)
            levels = 2 * levels - 1 if kind == "Q1_0" else levels
            levels = three_of_four(levels, rng) if kind == "STQ1_0" else levels
            scale = float(np.float16(1.0 / w.shape[1] ** 0.5))
            raw, type_id = encoded(kind, levels, scale, layout)
            hf = hf_name(name)
            heads = {"attn_q": tiny.heads, "attn_k": tiny.kv_heads}.get(name.split(".")[2])
            real = (levels * np.float32(scale)).astype(np.float32)
            permuted = bool(heads) and tiny.arch == "llama"
            if permuted:  # the file has the rows as drawn; the checkpoint those before
                at = interleaved(np.arange(len(real))[:, None], heads)[:, 0]
                back = np.empty_like(real)
                back[at] = real
                real = back
            floats[hf] = real
        tensors.append((name, w.shape, type_id, raw))
    raw_file(path, {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    return floats


def encoded(
    kind: str, levels: np.ndarray, scale: float | np.ndarray, layout: str
) -> tuple[bytes, int]:
    """A tensor's bytes and type id, weight by weight as the reference sheet has it; scale: of all
    weights or, but for I2_S, of each block."""
    if kind == "I2_S":
        return i2s_bytes(levels, float(scale), layout), 36
    if kind == "STQ1_0":
        return sherry_bytes(levels, scale), 42
    block = 64 if kind in ("Q2_0", "Q2_0 of 64, ternary") else 128
    blocks = levels.reshape(-1, block).astype(np.int64)
    half = np.broadcast_to(np.float16(scale), len(blocks))[:, None].copy().view(np.uint8)
    if kind == "PTQ1_0":
        return np.hstack([trits(blocks), half]).tobytes(), 143
    width, codes = (1, blocks > 0) if kind == "Q1_0" else (2, blocks + 1)
    places = width * np.arange(8 // width)  # the first weight is in a byte's lowest bits
    packed = (codes.astype(np.int64).reshape(len(blocks), -1, len(places)) << places).sum(-1)
    ids = {"Q1_0": 41, "PQ2_0": 142, "PQ2_0, ternary": 142}
    return np.hstack([half, packed.astype(np.uint8)]).tobytes(), ids.get(kind, 42)


def trits(blocks: np.ndarray) -> np.ndarray:
    """128 levels of each block as the digits of 26 bytes, as Prism's fork lays them out."""
    parts = []
    for first, count, digits in ((0, 16, 5), (80, 8, 5), (120, 2, 4)):
        codes = blocks[:, first : first + count * digits].reshape(-1, digits, count) + 1
        value = (codes * 3 ** (4 - np.arange(digits))[:, None]).sum(1)
        parts.append(-(-value * 256 // 243))
    return np.hstack(parts).astype(np.uint8)


def three_of_four(levels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Levels of which one of four that lie 16 apart is 0, as STQ1_0 holds them."""
    signs = np.where(levels < 0, -1, 1).reshape(-1, 4, 16)
    zero = rng.integers(0, 4, (len(signs), 1, 16))
    return np.where(np.arange(4)[:, None] == zero, 0, signs).reshape(levels.shape)


def sherry_bytes(levels: np.ndarray, scale: float | np.ndarray) -> bytes:
    """Blocks of STQ1_0: four bits for each four weights, a sign of all, an f16."""
    groups = levels.reshape(-1, 4, 16).transpose(0, 2, 1).reshape(-1, 64, 4)
    kept = groups[groups != 0].reshape(-1, 64, 3)
    same = kept * kept[..., :1]  # the signs, those of the first being +
    codes = (groups == 0).argmax(2) * 4 + (same[..., 1] < 0) + 2 * (same[..., 2] < 0)
    nibbles = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    signs = np.packbits(kept[..., 0] < 0, axis=1, bitorder="little")
    half = np.broadcast_to(np.float16(scale), len(codes))[:, None].copy().view(np.uint8)
    return np.hstack([nibbles, signs, half]).tobytes()
