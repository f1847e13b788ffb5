"""A linear layer as a checkpoint stores it, and the two results that a storage may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.safetensors import TensorInfo
from sterna.errors import ModelFormatError, NonFiniteError
from sterna.weights.parts import Linear
from sterna.weights.storages.quantization import Quantization

__all__ = ["FLOATS", "Floats", "Layer", "Levels", "Linear", "Tensors"]

F32 = npt.NDArray[np.float32]
#: The safetensors dtypes that hold weights, and the weight formats of the same bits.
FLOATS = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
TERNARY, BINARY, FOUR, SIXTEEN = (-1, 0, 1), (-1, 1), (-3, -1, 1, 3), tuple(range(-8, 8))


@dataclass(frozen=True)
class Floats:
    """Weights as they are: bits [M, K] of a float format (uint16 for bf16 and f16, float32)."""

    format: str
    bits: npt.NDArray[Any]

    def values(self) -> F32:
        """Convert the weights to float32."""
        return formats.float_format(self.format).floats(self.bits)


@dataclass(frozen=True)
class Levels:
    """Weights that are whole numbers times a scale: weight = level * scale.

    kinds: the possible levels, ascending. scale: float32 (), (M,), or [M, K / group] for groups of
    k. codes: levels int8 [M, K], int16 if they reach 128, or BitNet's bytes uint8 [M / 4, K] if
    `is_packed`. stored_format: set if levels are not all small integers: their weight format;
    `codes` is then float32 [M, K] and `kinds` empty. as_floats: a function that returns the weights
    as the checkpoint's floats; None if it has none, as a model that was trained with int8
    activations.
    """

    kinds: tuple[int, ...]
    codes: npt.NDArray[Any]
    scale: F32
    as_floats: Callable[[], Floats] | None = None
    is_packed: bool = False
    stored_format: str = ""

    @property
    def M(self) -> int:
        """Output features."""
        return int(self.codes.shape[0]) * (4 if self.is_packed else 1)

    @property
    def K(self) -> int:
        """Input features."""
        return int(self.codes.shape[1])

    @property
    def group(self) -> int:
        """Number of k that share a scale; 0: a scale for each row or one for all."""
        return self.K // self.scale.shape[1] if self.scale.ndim == 2 else 0

    @property
    def is_ternary(self) -> bool:
        """Whether all weights are 0 or plus or minus their scale."""
        return bool(self.kinds) and set(self.kinds) <= set(TERNARY)

    def floats(self) -> Floats:
        """Return the weights as floats; only if `as_floats` is set, or if they are ternary."""
        if self.as_floats is not None:
            return self.as_floats()
        assert self.is_ternary
        scales = formats.get("i2").scales
        return Floats("f32", scales.weights(self.unpacked(), self.scale, 1.0))

    def unpacked(self) -> npt.NDArray[Any]:
        """Return the levels [M, K], unpacked if need be."""
        if not self.is_packed:
            return self.codes
        # Bits 2i of byte row r hold row i * M / 4 + r: rows are strided, not adjacent.
        codes = np.concatenate([(self.codes >> shift) & 3 for shift in (0, 2, 4, 6)])
        return codes.astype(np.int8) - 1


@dataclass(frozen=True)
class Tensors:
    """Float tensors of a checkpoint, checked to be finite and of the requested shape."""

    checkpoint: Checkpoint
    threads: int

    def read(self, name: str, shape: tuple[int, ...]) -> Floats:
        """Read a float tensor; ModelFormatError for another shape or dtype, NonFiniteError."""
        info = self.checkpoint.require(name, shape, FLOATS)
        f = formats.float_format(FLOATS[info.dtype])
        raw = np.ascontiguousarray(self.checkpoint.read(name))
        if not f.is_finite(raw, self.threads):
            raise NonFiniteError(
                f"{info.file}: {name}: weights must be finite, but got NaN or infinity; "
                "the file is damaged or its training diverged"
            )
        return Floats(f.name, raw.view(f.word))

    def floats(self, name: str, shape: tuple[int, ...]) -> F32:
        """Read a tensor as `read` does, and convert it to float32."""
        return self.read(name, shape).values()


@dataclass(eq=False)
class Layer:
    """One linear layer of an open checkpoint: all that a storage may look at.

    masters: whether floats of this layer are masters of ternary weights, which config.json or the
    architecture says.
    """

    tensors: Tensors
    part: Linear
    masters: bool
    quantization: Quantization

    @property
    def checkpoint(self) -> Checkpoint:
        """The layer's checkpoint."""
        return self.tensors.checkpoint

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K): output and input features, by config.json."""
        return self.part.M, self.part.K

    @property
    def dtype(self) -> str:
        """The safetensors dtype of the weight; ModelFormatError if there is no weight."""
        return self.info("weight").dtype

    def has(self, suffix: str) -> bool:
        """Whether there is a tensor `name`.`suffix`."""
        return f"{self.part.name}.{suffix}" in self.checkpoint.tensors

    def info(self, suffix: str) -> TensorInfo:
        """Return where `name`.`suffix` lies; ModelFormatError if there is none."""
        return self.checkpoint.info(f"{self.part.name}.{suffix}")

    def floats(self, suffix: str, shape: tuple[int, ...]) -> F32:
        """Read the tensor `name`.`suffix` as finite float32."""
        return self.tensors.floats(f"{self.part.name}.{suffix}", shape)

    @cached_property
    def weight(self) -> Floats:
        """The weight [M, K], a float tensor, finite; read once."""
        stored = (self.part.M, *(self.part.kernel or (self.part.K,)))
        floats = self.tensors.read(f"{self.part.name}.weight", stored)
        return Floats(floats.format, floats.bits.reshape(self.shape))

    def fail(self, suffix: str, expected: str, got: object, remedy: str | None = None) -> NoReturn:
        """Raise ModelFormatError for the tensor `name`.`suffix`."""
        name = f"{self.part.name}.{suffix}"
        info = self.checkpoint.tensors.get(name) or self.info("weight")
        raise ModelFormatError(info.file, name, expected, got, remedy=remedy)
