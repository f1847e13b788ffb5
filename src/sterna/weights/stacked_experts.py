"""The matrices of experts as checkpoints store them, and their conversion to a format.

A checkpoint stores a tensor for each expert, or one for all: floats [experts, M, K], in gpt-oss
[experts, K, M]; or OCP MXFP4 as `*_blocks`, uint8 [experts, M, K / 32, 16], where a byte has
weights 2i and 2i + 1, and `*_scales`, uint8 [experts, M, K / 32]. MLX has one of all gates, one of
all ups and one of all downs, in floats or in its codes (`storages/mlx.py`), under `switch_mlp`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.checkpoints.directory import Checkpoint
from sterna.errors import NonFiniteError, UnsupportedModelError
from sterna.formats import Experts, PackedWeight
from sterna.formats.ggml_blocks import from_ggml
from sterna.weights import packing, storages
from sterna.weights.parts import Linear, OfHeads, Stacking
from sterna.weights.rounding import repacked
from sterna.weights.storages import Floats, Layer, Levels, Tensors, mlx

__all__ = ["experts_in", "joined", "mxfp4_experts", "stored_parts"]

U8 = npt.NDArray[np.uint8]
#: The weights of a part of an expert: (expert, part).
ReadPart = Callable[[int, Linear], Levels | Floats]


def stored_parts(
    tensors: Tensors,
    layer_of: Callable[[Linear], Layer],
    name: str,
    parts: list[Linear],
    count: int,
    stacking: Stacking,
) -> ReadPart:
    """Return the reader of an expert's part: from one tensor of all, read once, or from its own.

    The tensor of all has the name, with or without the suffix .weight.

    Raises as `Tensors.read` and `storages.read`.
    """
    if isinstance(stacking, OfHeads):
        return _parts_of_heads(layer_of, parts[0], count, stacking)
    known = tensors.checkpoint.tensors
    name = name if name in known else f"{name}.weight"
    if name not in known and f"{_of_mlx(parts[0]).name}.weight" in known:
        each = {part.name: _mlx_stack(layer_of(_of_mlx(part)), count) for part in parts}
        return lambda expert, part: each[part.name](expert)
    if name not in known:
        return lambda expert, part: storages.read(layer_of(part.of_expert(expert)))
    M, K = sum(part.M for part in parts), parts[0].K
    shape = (count, K, M) if stacking.transposed else (count, M, K)
    stored = tensors.read(name, shape)

    def read(expert: int, part: Linear) -> Floats:
        bits = stored.bits[expert]
        rows = (bits.T if stacking.transposed else bits)[stacking.rows(parts, part)]
        return Floats(stored.format, np.ascontiguousarray(rows))

    return read


def _parts_of_heads(
    layer_of: Callable[[Linear], Layer], part: Linear, count: int, stacking: OfHeads
) -> ReadPart:
    """Return the reader of a head's matrix; levels become the floats that they mean."""
    stored = storages.read(layer_of(stacking.whole(part, count)))
    if isinstance(stored, Levels) and stored.as_floats is None:
        raise UnsupportedModelError(
            f"{stacking.module}: must be of floats, or of levels that inputs are not rounded for, "
            "where each head has a part of its own; Sterna does not run this variant"
        )
    floats = stored if isinstance(stored, Floats) else stored.floats()
    return lambda head, part: Floats(floats.format, stacking.of(floats.bits, head, part))


def _of_mlx(part: Linear) -> Linear:
    """Return MLX's layer of all experts for that of one, whose names are also Mixtral's."""
    module, _, name = part.name.rpartition(".")
    name = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}.get(name, name)
    return replace(part, name=f"{module.replace('experts.{}', 'switch_mlp')}.{name}")


def _mlx_stack(stack: Layer, count: int) -> Callable[[int], Levels | Floats]:
    """Return the reader of an expert's matrix in a stack of codes or floats."""
    if mlx.recognises(stack):
        return mlx.of_experts(stack, count)
    stored = stack.tensors.read(f"{stack.part.name}.weight", (count, *stack.shape))
    return lambda expert: Floats(stored.format, np.ascontiguousarray(stored.bits[expert]))


def joined(parts: list[Levels | Floats]) -> list[Levels | Floats]:
    """Join floats of one dtype into one matrix, to be rounded together; else return the parts."""
    floats = [part for part in parts if isinstance(part, Floats)]
    if len(floats) < len(parts) or len({part.format for part in floats}) > 1:
        return parts
    return [Floats(floats[0].format, np.concatenate([part.bits for part in floats]))]


def mxfp4_experts(
    checkpoint: Checkpoint,
    name: str,
    parts: list[Linear],
    count: int,
    stacking: Stacking,
    threads: int,
) -> Iterator[PackedWeight]:
    """Yield the weights of all experts in mxfp4, from `name`_blocks and `name`_scales.

    ModelFormatError for another shape or dtype, NonFiniteError for a scale that is NaN.
    """
    M, K = sum(part.M for part in parts), parts[0].K
    info = checkpoint.require(f"{name}_blocks", (count, M, -(-K // 32), 16), "U8")
    checkpoint.require(f"{name}_scales", (count, M, -(-K // 32)), "U8")
    blocks, scales = (checkpoint.read(f"{name}_{what}") for what in ("blocks", "scales"))
    order = stacking.order(parts)
    for i in range(count):
        try:
            rows = _ggml_blocks(blocks[i], scales[i])
            yield from_ggml("mxfp4", rows, threads=threads, order=order)
        except NonFiniteError as error:
            raise NonFiniteError(f"{info.file}: {name}_scales: expert {i}: {error}") from None


def _ggml_blocks(nibbles: U8, scales: U8) -> U8:
    """Turn blocks [M, G, 16] of pairs and exponents [M, G] into rows of ggml's blocks [M, 17 G]:
    an exponent, then bytes of weights i and i + 16."""
    M, G, _ = nibbles.shape
    halves = nibbles.reshape(M, G, 2, 8)
    low, high = halves[:, :, 0], halves[:, :, 1]  # weights 0..15 and 16..31
    out = np.empty((M, G, 17), np.uint8)
    out[:, :, 0] = scales
    out[:, :, 1::2] = (low & 15) | (high & 15) << 4
    out[:, :, 2::2] = low >> 4 | (high & 0xF0)
    return out.reshape(M, 17 * G)


def experts_in(experts: Experts, format: str | None, threads: int, name: str) -> Experts:
    """Put experts into a format (None: their own): round floats, keep levels; RequestError."""
    if format is None or experts.format == format:
        return experts
    made = (weight_in(expert, format, threads, name) for expert in experts)
    return Experts.of(experts.count, made, name)


def weight_in(weight: PackedWeight, format: str, threads: int, name: str) -> PackedWeight:
    """Put a weight into a format that keeps its levels, or into floats; RequestError."""
    if weight.format == format:
        return weight
    if formats.get(format).integer or not weight.format.integer:
        return repacked(weight, format, threads, name)
    return packing.pack_floats(
        [Floats("f32", ops.dequantize(weight, threads=threads))], format, threads, name
    )
