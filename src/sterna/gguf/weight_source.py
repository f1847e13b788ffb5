"""The tensors of a GGUF file as the weights of a Hugging Face checkpoint, packed.

Quantised blocks keep their levels and scales; rows get the checkpoint's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats, ops
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    UnsupportedModelError,
    shown,
)
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.formats.ggml_blocks import BLOCKS, from_ggml
from sterna.gguf.file import GgufModel
from sterna.gguf.i2_s import i2s_levels
from sterna.gguf.indexed_blocks import INDEXED, decoded, from_indexed
from sterna.gguf.row_order import row_order
from sterna.gguf.scaled_floats import nvfp4
from sterna.gguf.tensor_names import gguf_name, has_module, is_array, norm_is_sum
from sterna.gguf.tensor_types import FLOAT_TYPES, SCALED_TYPES
from sterna.gguf.value_heads import ValueHeads
from sterna.weights import packing, sources
from sterna.weights.rounding import repacked
from sterna.weights.sources import STACKED, Linear, OfHeads, Stacking, head_format, in_runs
from sterna.weights.stacked_experts import joined
from sterna.weights.storages import Floats, Levels
from sterna.weights.storages.base import TERNARY

__all__ = ["GgufWeights"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass
class GgufWeights:
    """The `WeightSource` of a GGUF file; weights are packed on request.

    format: the linear layers' format; None: their own types. head: the format of the embedding and
    the head; None: their own. Floats take any format, quantised weights their own or a float
    format. config: the metadata as config.json (`config_of`). i2s: one of I2S_LAYOUTS.
    """

    model: GgufModel
    format: str | None
    head: str | None
    config: Mapping[str, Any]
    threads: int
    i2s: str = "128"
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set, repr=False)

    def has(self, name: str) -> bool:
        """Whether the file has a matrix of this name."""
        return self._name(f"{name}.weight") in self.model.tensors

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape.

        Files may leave out sizes of 1, and have what is one row here in several.
        """
        stored = self.model.tensors.get(self._name(name))
        plain = tuple(size for size in shape if size > 1) or (1,)
        as_said = stored is not None and (
            stored.shape == shape
            or (len(shape) == 1 and math.prod(stored.shape) == shape[0])
            or [size for size in stored.shape if size > 1] == [size for size in shape if size > 1]
        )
        shape_said = stored.shape if stored is not None and as_said else plain
        info = self._info(self._name(name), shape_said)
        if info.dtype not in FLOAT_TYPES:
            raise self._error(info, "an array of floats", info.dtype)
        values = self._floats(info).values().reshape(shape)
        values = values[self._order(name.removesuffix(".bias").removesuffix(".weight"), shape[0])]
        if norm_is_sum(self._architecture, name):
            # 1 + this has the stored bits if these are a float32 sum of 1 and some w.
            values = values - np.float32(1)
        elif name.endswith(".A_log"):
            if (values >= 0).any():
                raise self._error(info, "negative rates, -exp(A_log)", float(values.max()))
            values = _a_log(values)
        self.tensors[name] = values
        return values

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts`: a weight for each run of consecutive parts of one type."""
        for part in parts:
            bias = self.model.tensors.get(self._name(f"{part.name}.bias"))
            if bias is not None and not part.bias:
                raise UnsupportedModelError(
                    f"{bias.file}: {bias.name}: this layer has no bias in its architecture"
                )
        runs = in_runs(name, parts, self._kind)
        for module, run in runs:
            asked = None if run[0].exact else self.format
            self.modules[module] = self._packed(run, asked, "format")
        return [self.modules[module] for module, _ in runs]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Pack the rows of `parts` of all experts: a weight for each run of one type."""
        if isinstance(stacking, OfHeads):
            whole = stacking.whole(parts[0], count)
            joint = self._name(f"{whole.name}.weight")
            self._read.add(joint)  # files that have its halves, too, need it no more
            if self._name(f"{name}.weight") not in self.model.tensors:
                return self._of_heads(name, parts[0], count, stacking)
        whole = Linear(name, sum(part.M for part in parts), parts[0].K)
        if len(parts) > 1 and self._name(f"{name}.weight") in self.model.tensors:
            parts = [whole]
        stacks = {part.name: self._stack(part, count) for part in parts}
        runs = in_runs(name, parts, lambda part: stacks[part.name].dtype)
        made = []
        for module, run in runs:
            infos = [stacks[part.name] for part in run]
            raw = [self.model.read(info.name) for info in infos]
            weights = (
                self._expert(infos[0], [r[i * p.M :][: p.M] for r, p in zip(raw, run, strict=True)])
                for i in range(count)
            )
            made.append(Experts.of(count, weights, infos[0].name))
            self.modules[module] = made[-1].weight
        return made

    def _of_heads(self, name: str, part: Linear, count: int, place: OfHeads) -> list[Experts]:
        """Pack the matrices of heads in one linear layer; blocks become the floats they mean."""
        whole = place.whole(part, count)
        info = self._part(whole)
        floats = (
            self._floats(info, self._rows(whole))
            if info.dtype in FLOAT_TYPES
            else Floats("f32", self._values(whole, info))
        )

        def packed(head: int) -> PackedWeight:
            own = Floats(floats.format, place.of(floats.bits, head, part))
            choice = packing.choose(own, self.format)
            return packing.pack([own], choice, self.threads, info.name)

        made = Experts.of(count, (packed(head) for head in range(count)), name)
        self.modules[name] = made.weight
        return [made]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Read the biases of all experts; the parts' tensors lie side by side."""
        each = [(f"{part.name.replace('.{}', '')}.bias", part.M) for part in parts]
        biases = np.concatenate([self.vector(part, count, M) for part, M in each], axis=1)
        for part, _ in each:
            del self.tensors[part]
        self.tensors[f"{name}.bias"] = biases
        return biases

    def _stack(self, part: Linear, count: int) -> TensorInfo:
        """Return the tensor of a part of all experts."""
        name = self._name(f"{part.name.replace('.{}', '')}.weight")
        return self._info(name, (count, part.M, part.K))

    def _expert(self, info: TensorInfo, rows: list[U8]) -> PackedWeight:
        """Pack one expert: the rows of its parts, one after the other."""
        if info.dtype not in (*FLOAT_TYPES, *SCALED_TYPES):
            return self._of_blocks(info, rows, None, self.format, "format", narrows=False)
        scaled = info.dtype in SCALED_TYPES
        floats = joined([nvfp4(raw, None) if scaled else self._floats(info, raw) for raw in rows])
        return packing.pack(floats, packing.choose(floats[0], self.format), self.threads, info.name)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Read the embedding or the output head [M, K], in its stored format or in the head's."""
        part = Linear(name, M, K)
        info = self._part(part)
        is_float = info.dtype in FLOAT_TYPES
        if self.head == "exact" and not is_float:
            raise RequestError(
                f"head: exact is for float heads, but {info.name} is {info.dtype}; "
                "leave it out, which keeps the rows as they are"
            )
        asked = None if self.head is None else head_format(self.head, self._stored_format(info))
        self.modules[name] = self._packed([part], asked, "head")
        return self.modules[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Make the int8 shadow of the output head's table, if the head is exact."""
        return sources.shadow_of(table, self.head, self.threads)

    def refuse_unread(
        self, without_effect: Iterable[str] = (), skipped: Iterable[str] = ()
    ) -> None:
        """Raise UnsupportedModelError for a layer's tensor that the architecture did not ask for.

        An example is a norm's bias. Known modules without an effect are exempt.
        """
        m = self.model.metadata
        blocks = m.integer(f"{self._architecture}.block_count")
        blocks -= m.integer(f"{self._architecture}.nextn_predict_layers", 0)
        unused = {
            self._name(f"{module}.{suffix}")
            for module in without_effect
            for suffix in ("weight", "bias")
            if has_module(self._architecture, module)
        }
        for name, info in self.model.tensors.items():
            inside = name.startswith(tuple(f"blk.{i}." for i in range(blocks)))
            ignored = (
                name in self._read
                or name in unused
                or name.endswith(("attn_rot_embd.weight", ".input_scale"))
            )
            if inside and not ignored:
                raise UnsupportedModelError(
                    f"{info.file}: {name}: must be a tensor that {self._architecture} has, but its "
                    "layers have none of this name; Sterna does not run this variant"
                )

    # --------------------------------------------------------------------------------- tensors

    @cached_property
    def _architecture(self) -> str:
        return self.model.metadata.text("general.architecture")

    @cached_property
    def _value_heads(self) -> ValueHeads | None:
        return ValueHeads.of(self.config, self.model)

    def _name(self, name: str) -> str:
        """Return the file's name of a tensor."""
        return gguf_name(self._architecture, self._in_layer(name))

    def _in_layer(self, name: str) -> str:
        """Translate a name of the MTP layer, which is stored as the block after the last layer."""
        if not name.startswith("mtp."):
            return name
        m = self.model.metadata
        block = m.integer(f"{self._architecture}.block_count") - 1
        return f"model.layers.{block}.{name.removeprefix('mtp.').removeprefix('layers.0.')}"

    def _info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        info = self.model.tensors.get(name)
        if info is None:
            raise ModelFormatError(self.model.path, name, f"shape {list(shape)}", "no such tensor")
        self._read.add(name)
        if info.shape != shape:
            raise self._error(info, f"shape {list(shape)}", f"shape {list(info.shape)}")
        return info

    def _part(self, part: Linear) -> TensorInfo:
        """Return the tensor of a layer; a layer of one row is stored as a vector."""
        name = self._name(f"{part.name}.weight")
        stored = self.model.tensors.get(name)
        if part.M == 1 and stored is not None and stored.shape == (part.K,):
            self._read.add(name)
            return stored
        return self._info(name, (part.M, part.K))

    @staticmethod
    def _error(info: TensorInfo, expected: object, got: object) -> ModelFormatError:
        return ModelFormatError(info.file, info.name, expected, got, offset=info.offset)

    @staticmethod
    def _stored_format(info: TensorInfo) -> str:
        """Return the format that holds a tensor's type without a change."""
        if info.dtype == "I2_S":
            return "i2"
        name = info.dtype.lower()
        if name in INDEXED:
            return INDEXED[name].format.name
        if info.dtype in SCALED_TYPES:
            return name
        return name if info.dtype in FLOAT_TYPES else BLOCKS[name].format.name

    def _kind(self, part: Linear) -> str:
        """Return what parts of one weight must share: their type, or levels with a scale each."""
        dtype = self._part(part).dtype
        if dtype in SCALED_TYPES:
            return dtype
        return "levels" if dtype == "I2_S" or self._scale(part) is not None else dtype

    def _scale(self, part: Linear) -> np.float32 | None:
        """Return the factor of a tensor (`*.scale` in older BitNet files); None if it is 1."""
        name = self._name(f"{part.name}.scale")
        info = self.model.tensors.get(name)
        if info is None or is_array(self._architecture, name):
            return None
        self._read.add(name)
        if info.shape != (1,) or info.dtype != "F32":
            raise self._error(info, "one F32", f"{info.dtype} {list(info.shape)}")
        scale = self._floats(info).values().reshape(-1)[0]
        return None if scale == 1 else np.float32(scale)

    def _order(self, module: str, rows: int) -> npt.NDArray[np.intp] | slice:
        """Return the stored rows in the model's order."""
        if self._value_heads is not None:
            order = self._value_heads.row_order(module, rows)
        else:
            config = self.config
            head_dim, kv_heads = config.get("head_dim", 0), config.get("num_key_value_heads", 0)
            order = row_order(self._architecture, module, rows, head_dim, kv_heads)
        return slice(None) if order is None else order

    def _order_of_all(self, parts: list[Linear]) -> npt.NDArray[np.int64] | None:
        """Return the order of the rows of several layers in sequence; None if no row moves."""
        orders = [self._order(part.name, part.M) for part in parts]
        if all(isinstance(order, slice) for order in orders):
            return None
        ends = accumulate(part.M for part in parts)
        rows = [np.arange(end - part.M, end) for part, end in zip(parts, ends, strict=True)]
        ordered = [row[order] for row, order in zip(rows, orders, strict=True)]
        return np.concatenate(ordered).astype(np.int64)

    def _raw(self, part: Linear) -> U8:
        """Read the bytes of a layer's rows, uint8 [M, bytes], in the file's order."""
        raw = self.model.read(self._part(part).name)
        heads = self._value_heads
        return raw if heads is None else heads.with_columns(part.name, raw)

    def _rows(self, part: Linear) -> U8:
        """Read the bytes of a layer's rows, uint8 [M, bytes], in the model's order: a copy."""
        raw = self._raw(part)
        order = self._order(part.name, part.M)
        return raw if isinstance(order, slice) else raw[order]

    def _floats_of(self, part: Linear) -> Floats:
        """Return a layer's floats; those of NVFP4 with the factor of the tensor, if it has one."""
        info, raw = self._part(part), self._rows(part)
        if info.dtype not in SCALED_TYPES:
            return self._floats(info, raw)
        return nvfp4(raw, self._scale(part))

    def _floats(self, info: TensorInfo, raw: U8 | None = None) -> Floats:
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

    # ---------------------------------------------------------------------------------- packing

    def _packed(self, parts: list[Linear], asked: str | None, option: str) -> PackedWeight:
        """Pack parts of one kind as one weight, in the format asked for or their own."""
        info, kind = self._part(parts[0]), self._kind(parts[0])
        if kind not in (*FLOAT_TYPES, *SCALED_TYPES, "levels"):
            return self._from_blocks(parts, asked, option)
        read: list[Floats | Levels] = [
            self._levels(p) if kind == "levels" else self._floats_of(p) for p in parts
        ]
        choice = packing.choose(read[0], asked)
        if kind == "levels" and not choice.keeps and formats.get(choice.format).integer:
            raise self._would_round(info, choice.format, option)
        return packing.pack(read, choice, self.threads, info.name)

    def _from_blocks(self, parts: list[Linear], asked: str | None, option: str) -> PackedWeight:
        info = self._part(parts[0])
        raw = [self._raw(p) for p in parts]
        return self._of_blocks(info, raw, self._order_of_all(parts), asked, option)

    def _of_blocks(
        self,
        info: TensorInfo,
        raw: list[U8],
        order: npt.NDArray[np.int64] | None,
        asked: str | None,
        option: str,
        *,
        narrows: bool = True,
    ) -> PackedWeight:
        """Pack rows of blocks in the format asked for; narrows: allow `from_ggml`'s `narrow`."""
        name = info.dtype.lower()
        if asked is not None:
            asked = formats.fitting(formats.get(asked), info.shape[-1]).name
        try:
            if name in INDEXED:
                weight = from_indexed(name, raw, asked, self.threads, order)
            else:
                narrow = narrows and asked != BLOCKS[name].format.name
                weight = from_ggml(name, raw, threads=self.threads, order=order, narrow=narrow)
        except NonFiniteError as error:
            raise NonFiniteError(f"{info.file}: {info.name}: {error}") from None
        except RequestError as error:
            raise self._error(info, "sound blocks", error) from None
        if asked in (None, weight.format):
            return weight
        if formats.get(asked or "").integer:
            try:
                return repacked(weight, asked, self.threads, info.name)
            except RequestError:
                raise self._would_round(info, asked or "", option) from None
        values = Floats("f32", ops.dequantize(weight, threads=self.threads))
        return packing.pack_floats([values], asked or "", self.threads, info.name)

    @staticmethod
    def _would_round(info: TensorInfo, asked: str, option: str) -> RequestError:
        return RequestError(
            f"{option}: must keep {info.name}, which {info.file.name} has as {info.dtype} and "
            "another quantisation would round again, "
            f"but got {shown(asked)}; leave it out, or use a "
            "file with float weights"
        )

    def _levels(self, part: Linear) -> Levels:
        """Read ternary weights with one scale, in the checkpoint's order."""
        info, factor = self._part(part), self._scale(part)
        if info.dtype == "I2_S":
            stored, step = i2s_levels(self.model, info, self.i2s, self.threads)
            levels = stored[self._order(part.name, part.M)]
        else:
            values = self._values(part, info)
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

    def _values(self, part: Linear, info: TensorInfo) -> F32:
        raw = self._rows(part)
        if info.dtype in FLOAT_TYPES:
            return self._floats(info, raw).values()
        if info.dtype in SCALED_TYPES:
            return nvfp4(raw, None).values()
        if info.dtype.lower() in INDEXED:
            return decoded(info.dtype.lower(), raw, self.threads)
        return ops.dequantize(
            from_ggml(info.dtype.lower(), raw, threads=self.threads), threads=self.threads
        )


def _a_log(rates: F32) -> F32:
    """Return the A_log with -exp(A_log) = `rates`, or the nearest one in float32."""
    near = np.log(-rates.astype(np.float64)).astype(np.float32)
    below, above = (np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))
    candidates = np.stack([near, below, above])
    errors = np.abs(_native.exponentials(candidates.reshape(-1)).reshape(candidates.shape) + rates)
    return np.asarray(np.take_along_axis(candidates, errors.argmin(axis=0)[None], axis=0)[0])
