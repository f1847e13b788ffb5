"""The tensors of a GGUF file under the names and in the row order of Hugging Face's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError
from sterna.formats.ggml_blocks import BLOCKS, from_ggml
from sterna.gguf.file import GgufModel
from sterna.gguf.i2_s import i2s_levels
from sterna.gguf.row_order import row_order
from sterna.gguf.scaled_floats import nvfp4
from sterna.gguf.tensor_names import gguf_name, is_array
from sterna.gguf.tensor_types import FLOAT_TYPES, SCALED_TYPES
from sterna.gguf.value_heads import ValueHeads
from sterna.weights.sources import Linear
from sterna.weights.storages import Floats, Levels
from sterna.weights.storages.base import TERNARY

__all__ = ["TensorReader"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass
class TensorReader:
    """Reads the tensors of a GGUF file, unpacked.

    config: the metadata as config.json (`config_of`). i2s: one of I2S_LAYOUTS. used: the file's
    names of the tensors that were asked for.
    """

    model: GgufModel
    config: Mapping[str, Any]
    threads: int
    i2s: str = "128"
    used: set[str] = field(default_factory=set, init=False, repr=False)

    @cached_property
    def architecture(self) -> str:
        """GGUF's name of the architecture."""
        return self.model.metadata.text("general.architecture")

    @cached_property
    def _value_heads(self) -> ValueHeads | None:
        return ValueHeads.of(self.config, self.model)

    def name(self, name: str) -> str:
        """Return the file's name of a tensor."""
        return gguf_name(self.architecture, self._in_layer(name))

    def _in_layer(self, name: str) -> str:
        """Translate a name of the MTP layer, which is stored as the block after the last layer."""
        if not name.startswith("mtp."):
            return name
        m = self.model.metadata
        block = m.integer(f"{self.architecture}.block_count") - 1
        return f"model.layers.{block}.{name.removeprefix('mtp.').removeprefix('layers.0.')}"

    def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Return a tensor of the file by its own name; ModelFormatError for another shape."""
        info = self.model.tensors.get(name)
        if info is None:
            raise ModelFormatError(self.model.path, name, f"shape {list(shape)}", "no such tensor")
        self.used.add(name)
        if info.shape != shape:
            raise self.error(info, f"shape {list(shape)}", f"shape {list(info.shape)}")
        return info

    def part(self, part: Linear) -> TensorInfo:
        """Return the tensor of a layer; a layer of one row is stored as a vector."""
        name = self.name(f"{part.name}.weight")
        stored = self.model.tensors.get(name)
        if part.M == 1 and stored is not None and stored.shape == (part.K,):
            self.used.add(name)
            return stored
        return self.info(name, (part.M, part.K))

    @staticmethod
    def error(info: TensorInfo, expected: object, got: object) -> ModelFormatError:
        """Make an error that names a tensor."""
        return ModelFormatError(info.file, info.name, expected, got, offset=info.offset)

    @staticmethod
    def stored_format(info: TensorInfo) -> str:
        """Return the format that holds a tensor's type without a change."""
        if info.dtype == "I2_S":
            return "i2"
        name = info.dtype.lower()
        if info.dtype in SCALED_TYPES:
            return name
        return name if info.dtype in FLOAT_TYPES else BLOCKS[name].format.name

    def kind(self, part: Linear) -> str:
        """Return what parts of one weight must share: their type, or levels with a scale each."""
        dtype = self.part(part).dtype
        if dtype in SCALED_TYPES:
            return dtype
        return "levels" if dtype == "I2_S" or self._scale(part) is not None else dtype

    def _scale(self, part: Linear) -> np.float32 | None:
        """Return the factor of a tensor (`*.scale` in older BitNet files); None if it is 1."""
        name = self.name(f"{part.name}.scale")
        info = self.model.tensors.get(name)
        if info is None or is_array(self.architecture, name):
            return None
        self.used.add(name)
        if info.shape != (1,) or info.dtype != "F32":
            raise self.error(info, "one F32", f"{info.dtype} {list(info.shape)}")
        scale = self.floats(info).values().reshape(-1)[0]
        return None if scale == 1 else np.float32(scale)

    def order(self, module: str, rows: int) -> npt.NDArray[np.intp] | slice:
        """Return the stored rows in the model's order."""
        if self._value_heads is not None:
            order = self._value_heads.row_order(module, rows)
        else:
            config = self.config
            head_dim, kv_heads = config.get("head_dim", 0), config.get("num_key_value_heads", 0)
            order = row_order(self.architecture, module, rows, head_dim, kv_heads)
        return slice(None) if order is None else order

    def order_of_all(self, parts: list[Linear]) -> npt.NDArray[np.int64] | None:
        """Return the order of the rows of several layers in sequence; None if no row moves."""
        orders = [self.order(part.name, part.M) for part in parts]
        if all(isinstance(order, slice) for order in orders):
            return None
        ends = accumulate(part.M for part in parts)
        rows = [np.arange(end - part.M, end) for part, end in zip(parts, ends, strict=True)]
        ordered = [row[order] for row, order in zip(rows, orders, strict=True)]
        return np.concatenate(ordered).astype(np.int64)

    def raw(self, part: Linear) -> U8:
        """Read the bytes of a layer's rows, uint8 [M, bytes], in the file's order."""
        raw = self.model.read(self.part(part).name)
        heads = self._value_heads
        return raw if heads is None else heads.with_columns(part.name, raw)

    def rows(self, part: Linear) -> U8:
        """Read the bytes of a layer's rows, uint8 [M, bytes], in the model's order: a copy."""
        raw = self.raw(part)
        order = self.order(part.name, part.M)
        return raw if isinstance(order, slice) else raw[order]

    def floats_of(self, part: Linear) -> Floats | Levels:
        """Return a layer's floats; NVFP4 as levels, with the factor of its tensor, if any."""
        info, raw = self.part(part), self.rows(part)
        if info.dtype not in SCALED_TYPES:
            return self.floats(info, raw)
        return nvfp4(raw, self._scale(part))

    def floats(self, info: TensorInfo, raw: U8 | None = None) -> Floats:
        """Return a finite float tensor [rows, K], from `raw` if given, else from the file."""
        stored = formats.float_format(info.dtype.lower())
        raw = self.model.read(info.name) if raw is None else raw
        bits = raw.view(stored.word)
        if not stored.is_finite(bits, self.threads):
            raise NonFiniteError(
                f"{info.file}: {info.name}: weights must be finite, but got NaN or infinity; "
                "the file is damaged or its training diverged"
            )
        return Floats(stored.name, bits)

    def levels(self, part: Linear) -> Levels:
        """Read ternary weights with one scale, in the checkpoint's order."""
        info, factor = self.part(part), self._scale(part)
        if info.dtype == "I2_S":
            stored, step = i2s_levels(self.model, info, self.i2s, self.threads)
            levels = stored[self.order(part.name, part.M)]
        else:
            values = self.values(part, info)
            step = np.abs(values).max(initial=np.float32(0))
            levels = np.sign(values).astype(np.int8)
            if not np.array_equal(levels * step, values):
                raise UnsupportedModelError(
                    f"{info.file}: {info.name}: weights with a scale must be ternary, but are "
                    "of several sizes; use the model's safetensors"
                )
        scale = np.asarray(step * (np.float32(1) if factor is None else factor), np.float32)
        return Levels(
            TERNARY, levels, scale, lambda: Floats("f32", levels.astype(np.float32) * scale)
        )

    def values(self, part: Linear, info: TensorInfo) -> F32:
        """Compute the floats [M, K] that a layer's rows mean, in the model's order."""
        raw = self.rows(part)
        if info.dtype in FLOAT_TYPES:
            return self.floats(info, raw).values()
        if info.dtype in SCALED_TYPES:
            return nvfp4(raw, None).floats().values()
        return ops.dequantize(
            from_ggml(info.dtype.lower(), raw, threads=self.threads), threads=self.threads
        )
