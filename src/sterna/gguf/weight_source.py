"""The tensors of a GGUF file as the weights of a Hugging Face checkpoint, packed.

Quantised blocks keep their levels and scales; rows get the checkpoint's order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native, formats, ops
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import (
    NonFiniteError,
    RequestError,
    UnsupportedModelError,
    shown,
)
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.formats.ggml_blocks import BLOCKS, from_ggml
from sterna.formats.indexed import Indexed
from sterna.gguf.scaled_floats import nvfp4
from sterna.gguf.tensor_names import has_module, norm_is_sum
from sterna.gguf.tensor_reader import TensorReader
from sterna.gguf.tensor_types import FLOAT_TYPES, SCALED_TYPES
from sterna.weights import packing, sources
from sterna.weights.rounding import repacked
from sterna.weights.sources import STACKED, Linear, OfHeads, Stacking, head_format, in_runs
from sterna.weights.stacked_experts import joined
from sterna.weights.storages import Floats, Levels

__all__ = ["GgufWeights"]

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]


@dataclass
class GgufWeights:
    """The `WeightSource` of a GGUF file; weights are packed on request.

    reader: reads the tensors that are packed. format: the linear layers' format; None: their own
    types. head: the format of the embedding and the head; None: their own. Floats take any format,
    quantised weights their own or a float format.
    """

    reader: TensorReader
    format: str | None = None
    head: str | None = None
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether the file has a matrix of this name."""
        return self.reader.name(f"{name}.weight") in self.reader.model.tensors

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape.

        Files may leave out sizes of 1, and have what is one row here in several.
        """
        stored = self.reader.model.tensors.get(self.reader.name(name))
        plain = tuple(size for size in shape if size > 1) or (1,)
        as_said = stored is not None and (
            stored.shape == shape
            or (len(shape) == 1 and math.prod(stored.shape) == shape[0])
            or [size for size in stored.shape if size > 1] == [size for size in shape if size > 1]
        )
        shape_said = stored.shape if stored is not None and as_said else plain
        info = self.reader.info(self.reader.name(name), shape_said)
        if info.dtype not in FLOAT_TYPES:
            raise self.reader.error(info, "an array of floats", info.dtype)
        values = self.reader.floats(info).values().reshape(shape)
        values = values[
            self.reader.order(name.removesuffix(".bias").removesuffix(".weight"), shape[0])
        ]
        if norm_is_sum(self.reader.architecture, name):
            # 1 + this has the stored bits if these are a float32 sum of 1 and some w.
            values = values - np.float32(1)
        elif name.endswith(".A_log"):
            if (values >= 0).any():
                raise self.reader.error(info, "negative rates, -exp(A_log)", float(values.max()))
            values = _a_log(values)
        self.tensors[name] = values
        return values

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts`: a weight for each run of consecutive parts of one type."""
        for part in parts:
            bias = self.reader.model.tensors.get(self.reader.name(f"{part.name}.bias"))
            if bias is not None and not part.bias:
                raise UnsupportedModelError(
                    f"{bias.file}: {bias.name}: this layer has no bias in its architecture"
                )
        runs = in_runs(name, parts, self.reader.kind)
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
            joint = self.reader.name(f"{whole.name}.weight")
            self.reader.used.add(joint)  # files that have its halves, too, need it no more
            if self.reader.name(f"{name}.weight") not in self.reader.model.tensors:
                return self._of_heads(name, parts[0], count, stacking)
        whole = Linear(name, sum(part.M for part in parts), parts[0].K)
        if len(parts) > 1 and self.reader.name(f"{name}.weight") in self.reader.model.tensors:
            parts = [whole]
        stacks = {part.name: self._stack(part, count) for part in parts}
        runs = in_runs(name, parts, lambda part: stacks[part.name].dtype)
        made = []
        for module, run in runs:
            infos = [stacks[part.name] for part in run]
            raw = [self.reader.model.read(info.name) for info in infos]
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
        info = self.reader.part(whole)
        floats = (
            self.reader.floats(info, self.reader.rows(whole))
            if info.dtype in FLOAT_TYPES
            else Floats("f32", self.reader.values(whole, info))
        )

        def packed(head: int) -> PackedWeight:
            own = Floats(floats.format, place.of(floats.bits, head, part))
            choice = packing.choose(own, self.format)
            return packing.pack([own], choice, self.reader.threads, info.name)

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
        name = self.reader.name(f"{part.name.replace('.{}', '')}.weight")
        return self.reader.info(name, (count, part.M, part.K))

    def _expert(self, info: TensorInfo, rows: list[U8]) -> PackedWeight:
        """Pack one expert: the rows of its parts, one after the other."""
        if info.dtype not in (*FLOAT_TYPES, *SCALED_TYPES):
            return self._of_blocks(info, rows, None, self.format, "format", narrows=False)
        scaled = info.dtype in SCALED_TYPES
        parts = joined(
            [nvfp4(raw, None) if scaled else self.reader.floats(info, raw) for raw in rows]
        )
        return packing.pack(
            parts, packing.choose(parts[0], self.format), self.reader.threads, info.name
        )

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Read the embedding or the output head [M, K], in its stored format or in the head's."""
        part = Linear(name, M, K)
        info = self.reader.part(part)
        is_float = info.dtype in FLOAT_TYPES
        if self.head == "exact" and not is_float:
            raise RequestError(
                f"head: exact is for float heads, but {info.name} is {info.dtype}; "
                "leave it out, which keeps the rows as they are"
            )
        asked = (
            None if self.head is None else head_format(self.head, self.reader.stored_format(info))
        )
        self.modules[name] = self._packed([part], asked, "head")
        return self.modules[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Make the int8 shadow of the output head's table, if the head is exact."""
        return sources.shadow_of(table, self.head, self.reader.threads)

    def refuse_unread(
        self, without_effect: Iterable[str] = (), skipped: Iterable[str] = ()
    ) -> None:
        """Raise UnsupportedModelError for a layer's tensor that the architecture did not ask for.

        An example is a norm's bias. Known modules without an effect are exempt.
        """
        m = self.reader.model.metadata
        blocks = m.integer(f"{self.reader.architecture}.block_count")
        blocks -= m.integer(f"{self.reader.architecture}.nextn_predict_layers", 0)
        unused = {
            self.reader.name(f"{module}.{suffix}")
            for module in without_effect
            for suffix in ("weight", "bias")
            if has_module(self.reader.architecture, module)
        }
        for name, info in self.reader.model.tensors.items():
            inside = name.startswith(tuple(f"blk.{i}." for i in range(blocks)))
            ignored = (
                name in self.reader.used
                or name in unused
                or name.endswith(("attn_rot_embd.weight", ".input_scale"))
            )
            if inside and not ignored:
                raise UnsupportedModelError(
                    f"{info.file}: {name}: must be a tensor that {self.reader.architecture} has, "
                    "but its layers have none of this name; Sterna does not run this variant"
                )

    # ---------------------------------------------------------------------------------- packing

    def _packed(self, parts: list[Linear], asked: str | None, option: str) -> PackedWeight:
        """Pack parts of one kind as one weight, in the format asked for or their own."""
        info, kind = self.reader.part(parts[0]), self.reader.kind(parts[0])
        if kind not in (*FLOAT_TYPES, *SCALED_TYPES, "levels"):
            return self._from_blocks(parts, asked, option)
        read: list[Floats | Levels] = [
            self.reader.levels(p) if kind == "levels" else self.reader.floats_of(p) for p in parts
        ]
        choice = packing.choose(read[0], asked)
        if kind == "levels" and not choice.keeps and formats.get(choice.format).integer:
            raise self._would_round(info, choice.format, option)
        return packing.pack(read, choice, self.reader.threads, info.name)

    def _from_blocks(self, parts: list[Linear], asked: str | None, option: str) -> PackedWeight:
        info = self.reader.part(parts[0])
        raw = [self.reader.raw(p) for p in parts]
        return self._of_blocks(info, raw, self.reader.order_of_all(parts), asked, option)

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
            narrow = narrows and asked != BLOCKS[name].format.name
            weight = from_ggml(name, raw, threads=self.reader.threads, order=order, narrow=narrow)
        except NonFiniteError as error:
            raise NonFiniteError(f"{info.file}: {info.name}: {error}") from None
        except RequestError as error:
            raise self.reader.error(info, "sound blocks", error) from None
        if asked in (None, weight.format):
            return weight
        if formats.get(asked or "").integer and not isinstance(weight.format, Indexed):
            try:
                return repacked(weight, asked, self.reader.threads, info.name)
            except RequestError:
                raise self._would_round(info, asked or "", option) from None
        values = Floats("f32", ops.dequantize(weight, threads=self.reader.threads))
        return packing.pack_floats([values], asked or "", self.reader.threads, info.name)

    @staticmethod
    def _would_round(info: TensorInfo, asked: str, option: str) -> RequestError:
        return RequestError(
            f"{option}: must keep {info.name}, which {info.file.name} has as {info.dtype} and "
            "another quantisation would round again, "
            f"but got {shown(asked)}; leave it out, or use a "
            "file with float weights"
        )


def _a_log(rates: F32) -> F32:
    """Return the A_log with -exp(A_log) = `rates`, or the nearest one in float32."""
    near = np.log(-rates.astype(np.float64)).astype(np.float32)
    below, above = (np.nextafter(near, np.float32(end)) for end in (-np.inf, np.inf))
    candidates = np.stack([near, below, above])
    errors = np.abs(_native.exponentials(candidates.reshape(-1)).reshape(candidates.shape) + rates)
    return np.asarray(np.take_along_axis(candidates, errors.argmin(axis=0)[None], axis=0)[0])
