"""y [N, M] = x [N, K] W^T with the kernels' arithmetic, for weights of each kind of scales."""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import F32, fma_f32, quantize_activations
from sterna.formats import GROUP_K, PackedWeight
from sterna.formats.scales import MICRO_K, GroupScales, MicroBlockScales, SuperBlockScales
from sterna.formats.scales.superblocks import SUPER_K

SMALLEST = 1e-30  # largest |x| that a group counts with, at least


def reference_linear(x: F32, packed: PackedWeight, low: bool = False) -> F32:
    """y [N, M] from x [N, K], the bits that every unit gives; low: of the second plane of x."""
    x = np.asarray(x, np.float32)
    f = packed.format
    if not f.integer:
        return _floats(x, packed)
    if isinstance(f.scales, GroupScales):
        return _groups(x, packed, f.scales, low)
    if isinstance(f.scales, SuperBlockScales):
        return _super_blocks(x, packed, f.scales, low)
    if isinstance(f.scales, MicroBlockScales):
        return _micro_blocks(x, packed, low)
    return _rows(x, packed, low)


def row_scales(packed: PackedWeight) -> F32:
    """The value of a unit of a kernel's sums, float32 [M]."""
    return np.broadcast_to(packed.scale * np.float32(packed.format.unit), (packed.M,))


def _floats(x: F32, packed: PackedWeight) -> F32:
    """Ascending sums over k of fused multiply-adds, K padded with zeros."""
    f = packed.format
    values = packed.unpacked() / np.float32(f.unit)  # as kernels decode them: a power of two
    pad = ((0, 0), (0, -packed.K % f.layout.step_k))
    values, x = np.pad(values, pad), np.pad(x, pad)
    acc = np.zeros((x.shape[0], packed.M), np.float32)
    for k in range(values.shape[1]):
        acc = fma_f32(values[None, :, k], x[:, k, None], acc)
    return acc * row_scales(packed) if f.scaled else acc


def _rows(x: F32, packed: PackedWeight, low: bool) -> F32:
    """Exact sums, made floats once."""
    assert packed.format.codebook is not None
    q, s_x = quantize_activations(x, low=low)
    per_level = 2 // packed.format.codebook.step  # t counts half steps of the codebook
    t = per_level * (q.astype(np.int64) @ packed.unpacked().T.astype(np.int64))
    return t.astype(np.float32) * (row_scales(packed)[None, :] * s_x[:, None])


def _groups(x: F32, packed: PackedWeight, scales: GroupScales, low: bool) -> F32:
    """native/scales/groups.h: exact sums of a group of activations, then fused multiply-adds."""
    size = scales.x_group
    N, blocks = x.shape[0], packed.K // size
    q, s_x = quantize_activations(x.reshape(-1, size), SMALLEST, low)
    q, s_x = q.reshape(N, blocks, size).astype(np.int64), s_x.reshape(N, blocks)
    levels = packed.unpacked().reshape(packed.M, blocks, size).astype(np.int64)
    values = scales.group_values(packed.scales, packed.M, packed.K)
    y = np.zeros((N, packed.M), np.float32)
    for b in range(blocks):
        s_w = values[:, b * size // scales.group]
        t = (q[:, b] @ levels[:, b].T).astype(np.float32)
        scale = s_w[None, :, 0] * np.float32(packed.format.value) * s_x[:, b, None]
        y = fma_f32(t, scale, y)
        if scales.minima:
            sums = q[:, b].sum(axis=1).astype(np.float32) * s_x[:, b]
            y = fma_f32(s_w[None, :, 1], sums[:, None], y)
    return y


def _super_blocks(x: F32, packed: PackedWeight, scales: SuperBlockScales, low: bool) -> F32:
    """scales/superblocks.h: exact sums of groups, then fused multiply-adds."""
    (N, K), M, group = x.shape, packed.M, scales.group
    q, s_x = quantize_activations(x.reshape(-1, GROUP_K), SMALLEST, low)
    q = q.reshape(N, K // group, group).astype(np.int64)
    s_x = s_x.reshape(N, K // GROUP_K)
    levels = packed.unpacked().reshape(M, K // group, group).astype(np.int64)
    parts = scales.in_parts(packed.scales, M, K)
    whole = parts[:, :, 0, 1:].reshape(M, K // group)
    minima = parts[:, :, -1, 1:].reshape(M, K // group)
    y = np.zeros((N, M), np.float32)
    for block in range(K // SUPER_K):
        p = np.zeros((N, M), np.float32)
        for k in range(block * SUPER_K, (block + 1) * SUPER_K, GROUP_K):
            total = np.zeros((N, M), np.float32)
            for g in range(k // group, (k + GROUP_K) // group):
                t = (q[:, g] @ levels[:, g].T).astype(np.float32)
                total = fma_f32(t, whole[None, :, g], total)
            p = fma_f32(total, s_x[:, k // GROUP_K, None], p)
        y = fma_f32(p, parts[None, :, block, 0, 0] * np.float32(packed.format.value), y)
        if not scales.minima:
            continue
        u = np.zeros((N, M), np.float32)
        for g in range(block * SUPER_K // group, (block + 1) * SUPER_K // group):
            sums = q[:, g].sum(axis=1).astype(np.float32) * s_x[:, g * group // GROUP_K]
            u = fma_f32(minima[None, :, g], sums[:, None], u)
        y = fma_f32(u, parts[None, :, block, 1, 0], y)
    return y


def _micro_blocks(x: F32, packed: PackedWeight, low: bool) -> F32:
    """scales/microblocks.h: exact sums of 16 k, those of 32 k rounded once, then multiply-adds."""
    (N, K), M = x.shape, packed.M
    padded = -(-K // GROUP_K) * GROUP_K
    x = np.pad(x, ((0, 0), (0, padded - K)))
    q, s_x = quantize_activations(x.reshape(-1, GROUP_K), SMALLEST, low)
    q = q.reshape(N, -1, MICRO_K).astype(np.int64)
    s_x = s_x.reshape(N, -1)
    levels = packed.unpacked().reshape(M, K // MICRO_K, MICRO_K).astype(np.int64)
    scales = packed.scales.reshape(M, -1)
    y = np.zeros((N, M), np.float32)
    for group in range(padded // GROUP_K):
        total = np.zeros((N, M), np.float32)
        for b in range(2 * group, min(2 * group + 2, K // MICRO_K)):
            t = (q[:, b] @ levels[:, b].T).astype(np.float32)
            total = fma_f32(t, scales[None, :, 1 + b], total)
        y = fma_f32(total, s_x[:, group, None], y)
    return y * scales[None, :, 0]
