"""From a checkpoint's tensors to packed weights, whatever convention the checkpoint follows.

A model file asks for `matrix(name, parts)`: the rows of several linear layers (q, k and v; gate and
up) as one packed weight, or as several where their storage differs. How each is stored is decided
here, per tensor: packed ternary with a scale to multiply or to divide by, float masters to
ternarise, or plain floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.checkpoints.directory import Checkpoint
from sterna.errors import ModelFormatError, NonFiniteError, RequestError, UnsupportedModelError
from sterna.formats import PackedWeight, Shadow
from sterna.formats.base import EXPONENTS, MAX_INTEGER_K

__all__ = [
    "CheckpointWeights",
    "Linear",
    "PackedWeights",
    "WeightSource",
    "default_head",
    "in_runs",
]

F32 = npt.NDArray[np.float32]
FLOATS = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
#: What a head's rows are stored as; an exact head's as they are in the checkpoint. The name of a
#: weight format, such as q8_0, is a head as well.
HEADS = {"bf16": "bf16", "f16": "f16", "f32": "f32", "int8": "i8", "exact": None}
#: The head of a model whose rows are floats, where none is asked for: "exact", or None for the rows
#: alone. The logits that decide are the same; "exact" reads fewer bytes and takes more memory.
DEFAULT_FLOAT_HEAD: str | None = "exact"


def default_head(stored: str) -> str:
    """The head of a model stored in this format ("bf16", "i8" …) where none is asked for."""
    if stored == "i8":
        return "int8"
    return stored if formats.get(stored).integer else DEFAULT_FLOAT_HEAD or stored


def head_format(head: str, own: str) -> str:
    """The format of a head's rows, `own` being the checkpoint's; RequestError for another name."""
    if head in HEADS:
        return HEADS[head] or own
    if not formats.known(head):
        raise RequestError(
            f"head: must be one of {', '.join(HEADS)} or a weight format such as q8_0, "
            f"but got {head!r}"
        )
    return head


def _shadow(table: PackedWeight, head: str | None, threads: int) -> Shadow | None:
    """The shadow that an exact head needs, None for another head."""
    fits = table.K <= MAX_INTEGER_K  # else the default gives way, while asking for it is an error
    if (head or (default_head(table.format) if fits else "")) != "exact":
        return None
    return Shadow.of(table, threads)


@dataclass(frozen=True)
class Linear:
    """One linear layer of a checkpoint: tensor `name`.weight, M output and K input features.

    bias: whether the model adds the vector `name`.bias [M] to its result.
    """

    name: str
    M: int
    K: int
    bias: bool = False


def in_runs(
    name: str, parts: list[Linear], key: Callable[[Linear], object]
) -> list[tuple[str, list[Linear]]]:
    """Neighbouring parts of equal key, which become one weight each, with their module's name.

    A single run has the name that the model asks for, several `name.0`, `name.1` and so on: by
    these `PackedWeights` finds them.
    """
    runs = [list(run) for _, run in groupby(parts, key)]
    if len(runs) == 1:
        return [(name, runs[0])]
    return [(f"{name}.{i}", run) for i, run in enumerate(runs)]


class WeightSource(Protocol):
    """Where a model file gets its weights; what it has handed out, by name."""

    modules: dict[str, PackedWeight]
    tensors: dict[str, F32]

    def vector(self, name: str, size: int) -> F32:
        """A norm's weight or a bias, float32 [size], finite."""

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """The rows of `parts`, one after the other: one weight [sum M, K], or several.

        Each of several is a whole number of parts. Neighbours of one format should be one weight,
        which is faster. Raises UnsupportedModelError for a stored bias that no part has.
        """

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """The embedding or the output head [vocab, hidden]."""

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """The int8 shadow of the output head's table, if the head is exact."""


@dataclass
class PackedWeights:
    """Weights of a packed directory: they are there already, but for an exact head's shadow."""

    modules: dict[str, PackedWeight]
    tensors: dict[str, F32]
    path: str
    head: str | None
    threads: int

    def vector(self, name: str, size: int) -> F32:
        """A norm's weight or a bias, float32 [size]."""
        got = self.tensors.get(name)
        if got is None or got.shape != (size,):
            raise ModelFormatError(
                file=self.path, field=name, expected=f"F32 shape [{size}]",
                got="no such tensor" if got is None else f"shape {list(got.shape)}",
            )  # fmt: skip
        return np.asarray(got, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """The packed weight of this name, or those of `in_runs`, which hold whole parts each."""
        K = parts[0].K
        if f"{name}.0" not in self.modules:
            return [self.table(name, sum(p.M for p in parts), K)]
        found: list[PackedWeight] = []
        rest = list(parts)
        while rest:
            module = f"{name}.{len(found)}"
            stored = self.modules.get(module)
            rows = rest.pop(0).M
            while rest and stored is not None and rows < stored.M:
                rows += rest.pop(0).M
            found.append(self.table(module, rows, K))
        return found

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """The packed weight of this name."""
        got = self.modules.get(name)
        if got is None or got.shape != (M, K):
            raise ModelFormatError(
                file=self.path, field=name, expected=f"a packed weight of {M}x{K}",
                got="no such module" if got is None else f"{got.M}x{got.K}",
            )  # fmt: skip
        return got

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """The int8 shadow of the output head's table, if the head is exact."""
        return _shadow(table, self.head, self.threads)


@dataclass
class CheckpointWeights:
    """Weights of a checkpoint in a published layout, packed as they are asked for.

    format: of the linear layers, None for the checkpoint's own (ternary -> i2, floats as they
    are); head: bf16, f16, f32, int8 or another format for the embedding and the head, exact for
    their own with a shadow, None for the default.
    `modules` and `tensors` collect what was made, for the packed directory.
    """

    checkpoint: Checkpoint
    format: str | None
    head: str | None
    threads: int
    ternary_masters: bool  # float tensors of linear layers are masters of ternary weights
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def vector(self, name: str, size: int) -> F32:
        """A norm's weight or a bias, float32 [size]."""
        info = self.checkpoint.require(name, (size,), FLOATS)
        self.tensors[name] = self._floats(name, info.dtype)
        return self.tensors[name]

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """The embedding or the output head [M, K], in the head's format."""
        tensor = f"{name}.weight"
        if tensor not in self.checkpoint.tensors and f"model.{tensor}" in self.checkpoint.tensors:
            tensor = f"model.{tensor}"  # some ternary checkpoints nest lm_head
        info = self.checkpoint.require(tensor, (M, K), FLOATS)
        own = FLOATS[info.dtype]
        stored = own if self.head is None else head_format(self.head, own)
        self.modules[name] = self._pack_float(tensor, info.dtype, stored)
        return self.modules[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """The int8 shadow of the output head's table, if the head is exact."""
        return _shadow(table, self.head, self.threads)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """The rows of `parts` as one packed weight, or as one for each storage among them."""
        for p in parts:
            for extra in ("rms_norm.weight",) if p.bias else ("bias", "rms_norm.weight"):
                if f"{p.name}.{extra}" in self.checkpoint.tensors:
                    raise UnsupportedModelError(
                        f"{self.checkpoint.info(f'{p.name}.{extra}').file}: {p.name}.{extra}: "
                        f"a linear layer of this architecture has no {extra}"
                    )
        runs = in_runs(name, parts, lambda p: self.checkpoint.info(f"{p.name}.weight").dtype)
        for module, run in runs:
            if self.checkpoint.info(f"{run[0].name}.weight").dtype == "U8":
                weight = self._ternary([self._unpacked(p) for p in run])
            elif self.ternary_masters:
                weight = self._ternary([self._ternarised(p) for p in run])
            else:
                weight = self._float_matrix(run)
            self.modules[module] = weight
        return [self.modules[module] for module, _ in runs]

    # ------------------------------------------------------------------------- ternary layers

    def _scale_divides(self) -> bool:
        quantization = self.checkpoint.config.get("quantization_config") or {}
        kind = (
            quantization.get("linear_class", "bitlinear") if isinstance(quantization, dict) else ""
        )
        if kind not in ("bitlinear", "autobitlinear"):
            raise ModelFormatError(
                file=self.checkpoint.path / "config.json", field="quantization_config.linear_class",
                expected="bitlinear or autobitlinear", got=kind,
            )  # fmt: skip
        return bool(kind == "bitlinear")

    def _unpacked(self, part: Linear) -> tuple[str, npt.NDArray[Any], np.float32]:
        """(source, bytes [M/4, K], scale) of a packed layer; the stored scale may be 1 / scale."""
        tensor = f"{part.name}.weight"
        if part.M % 4:
            raise ModelFormatError(
                file=self.checkpoint.info(tensor).file, field=tensor,
                expected="output features in fours, for a packed layer", got=part.M,
            )  # fmt: skip
        self.checkpoint.require(tensor, (part.M // 4, part.K), "U8")
        name = f"{part.name}.weight_scale"
        info = self.checkpoint.info(name)
        if info.shape not in ((), (1,)) or info.dtype not in FLOATS:
            raise ModelFormatError(
                file=info.file,
                field=name,
                expected="one float",
                got=f"{info.dtype} {list(info.shape)}",
            )
        stored = self._floats(name, info.dtype).reshape(())[()]
        if self._scale_divides():
            if stored == 0:
                raise ModelFormatError(
                    file=info.file, field=name, expected="a scale to divide by", got=0.0
                )
            with np.errstate(over="ignore"):
                stored = np.float32(1) / stored
            if not np.isfinite(stored):
                raise ModelFormatError(
                    file=info.file,
                    field=name,
                    expected="a scale whose inverse is finite",
                    got=stored,
                )
        codes = self.checkpoint.read(tensor)
        if not formats.get("i2").codes_valid(codes, self.threads):
            raise ModelFormatError(
                file=self.checkpoint.info(tensor).file, field=tensor,
                expected="two-bit codes 0, 1 and 2", got="a code 3",
                remedy="the file is damaged, or the layer is not ternary",
            )  # fmt: skip
        return "bitnet", codes, np.float32(stored)

    def _ternarised(self, part: Linear) -> tuple[str, npt.NDArray[Any], np.float32]:
        """(source, levels [M, K], scale) of float masters, rounded as BitNet does."""
        info = self.checkpoint.require(f"{part.name}.weight", (part.M, part.K), FLOATS)
        levels, scale = formats.get("i2").quantize(self._floats(info.name, info.dtype), "tensor")
        return "levels", levels, np.float32(scale)

    def _ternary(self, parts: list[tuple[str, npt.NDArray[Any], np.float32]]) -> PackedWeight:
        format = formats.get(self.format or "i2")
        if format.levels is None or format.step != 1 or format.group:
            raise RequestError(
                f"format: a ternary checkpoint runs as t5, i2 or i8, but got {self.format!r}"
            )
        rows = [c.shape[0] * (4 if s == "bitnet" else 1) for s, c, _ in parts]
        M, K = sum(rows), parts[0][1].shape[1]
        format.check_shape(M, K, "a ternary layer")
        in_tiles = all(m % format.tile_rows == 0 for m in rows[:-1])
        if in_tiles and format.name == "i2":
            codes = [
                _native.pack(format.layout, source, data, m, K, 1, 1, self.threads)
                for (source, data, _), m in zip(parts, rows, strict=True)
            ]
            tiles = codes[0] if len(codes) == 1 else np.concatenate(codes)
        else:
            tiles = format.pack_codes(
                np.concatenate([_levels(*p[:2]) for p in parts]), self.threads
            )
        scales = [s for _, _, s in parts]
        scale = scales[0] if len(set(map(float, scales))) == 1 else np.repeat(scales, rows)
        return PackedWeight(format.name, M, K, tiles, np.asarray(scale, np.float32))

    # --------------------------------------------------------------------------- float layers

    def _floats(self, name: str, dtype: str) -> F32:
        """A float tensor as float32, finite."""
        raw = self.checkpoint.read(name)
        self._check_finite(name, raw, dtype)
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, dtype=np.float32)

    def _check_finite(self, name: str, raw: npt.NDArray[Any], dtype: str) -> None:
        if _native.has_non_finite(
            np.ascontiguousarray(raw), EXPONENTS[FLOATS[dtype]], self.threads
        ):
            raise NonFiniteError(
                f"{self.checkpoint.info(name).file}: {name}: weights must be finite, but got NaN "
                "or infinity; the file is damaged or its training diverged"
            )

    def _pack_float(self, name: str, dtype: str, format: str) -> PackedWeight:
        """A float tensor in a format: as its own bits where it is the same, else rounded."""
        f = formats.get(format)
        M, K = self.checkpoint.info(name).shape
        f.check_shape(M, K, name)
        if FLOATS[dtype] == format:
            raw = self.checkpoint.read(name)
            self._check_finite(name, raw, dtype)
            bits = raw if dtype != "F16" else raw.view(np.uint16)
            return PackedWeight(format, M, K, f.pack_codes(bits, self.threads), np.float32(1))
        levels, scale = f.rounded(self._floats(name, dtype))
        return PackedWeight(
            format, M, K, f.pack_codes(levels, self.threads), f.packed_scale(scale, M, K)
        )

    def _float_matrix(self, parts: list[Linear]) -> PackedWeight:
        infos = [self.checkpoint.require(f"{p.name}.weight", (p.M, p.K), FLOATS) for p in parts]
        own = FLOATS[infos[0].dtype]
        f = formats.get(self.format or own)
        K = parts[0].K
        f.check_shape(sum(p.M for p in parts), K, parts[0].name)
        if f.integer:
            pairs = [f.rounded(self._floats(i.name, i.dtype), "row") for i in infos]
            levels = np.concatenate([levels for levels, _ in pairs])
            scale = f.packed_scale(np.concatenate([s for _, s in pairs]), *levels.shape)
        elif f.name == own:
            raws = [self.checkpoint.read(i.name) for i in infos]
            for i, raw in zip(infos, raws, strict=True):
                self._check_finite(i.name, raw, i.dtype)
            levels = np.concatenate([r.view(np.uint16) if own == "f16" else r for r in raws])
            scale = np.float32(1)
        else:
            levels = np.concatenate([self._floats(i.name, i.dtype) for i in infos])
            scale = np.float32(1)
        return PackedWeight(f.name, levels.shape[0], K, f.pack_codes(levels, self.threads), scale)


def _levels(source: str, data: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Ternary levels int8 [M, K] of either storage."""
    if source == "levels":
        return np.asarray(data, np.int8)
    codes = np.concatenate([(data >> shift) & 3 for shift in (0, 2, 4, 6)])
    return codes.astype(np.int8) - 1
