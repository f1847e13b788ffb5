"""`CheckpointWeights`: the source of a checkpoint in a published layout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna.checkpoints.directory import Checkpoint
from sterna.errors import RequestError, UnsupportedModelError, brief, warn
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.weights import packing, storages
from sterna.weights.parts import STACKED, Linear, Stacking
from sterna.weights.sources import head_format, in_runs, shadow_of
from sterna.weights.stacked_experts import joined, mxfp4_experts, stored_parts, weight_in
from sterna.weights.storages import Floats, Layer, Levels, Tensors
from sterna.weights.storages.float_levels import ternary_table

__all__ = ["CheckpointWeights"]

F32 = npt.NDArray[np.float32]
#: Scales and zeros by which other runtimes round keys, values or queries to 8 bits, under the names
#: that compressed-tensors, modelopt, AutoFP8 and vLLM give them.
KV_SCALES = re.compile(
    r".*\.((attn\.|(q|k|v|qkv)_proj\.)?(q|k|v|kv|prob)_(scale|zero_point|global_scale)"
    r"|[kv]_proj\.output_scale)"
)
#: Tensors that can be recomputed.
RECOMPUTED = (".rotary_emb.inv_freq",)


@dataclass
class CheckpointWeights:
    """The source of a checkpoint in a published layout; weights are packed on request.

    format: the linear layers' format; None for the checkpoint's own (ternary -> i2, floats
    unchanged). head: bf16, f16, f32, int8 or another format for the embedding and the head; exact
    for their own with a shadow; None for the default. transposed: ends of names of linear layers
    whose tensors are [K, M]. `modules` and `tensors` collect the results for the packed directory.
    """

    checkpoint: Checkpoint
    format: str | None
    head: str | None
    threads: int
    ternary_masters: bool  # the architecture's float layers are masters of ternary weights
    transposed: tuple[str, ...] = ()
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read config.json's description of the storage; raises as `storages.quantization` does."""
        self._stored = Tensors(self.checkpoint, self.threads)
        config, file = self.checkpoint.config, self.checkpoint.path / "config.json"
        self._quantization = storages.quantization(config, file)
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the checkpoint has some tensor of a layer of this name."""
        return any(f"{name}.{suffix}" in self.checkpoint.tensors for suffix in storages.SUFFIXES)

    def has_own_head(self, vocab: int, hidden: int) -> bool:
        """Whether there is an output head [vocab, hidden] that is not the embedding again."""
        head, embedding = (self._table_name(n) for n in ("lm_head", "model.embed_tokens"))
        tensors = self.checkpoint.tensors
        if head not in tensors or embedding not in tensors:
            return self.has("lm_head")
        if tensors[head].shape != tensors[embedding].shape or self._in_codes("lm_head"):
            return True
        self._read.add(head)
        one, other = (self._stored.read(name, (vocab, hidden)) for name in (head, embedding))
        if one.format == other.format:
            return not np.array_equal(one.bits, other.bits)
        return not np.array_equal(one.values(), other.values())

    def _table_name(self, name: str) -> str:
        """Return the name of a table's tensor; some ternary checkpoints nest lm_head."""
        tensor, nested = f"{name}.weight", f"model.{name}.weight"
        tensors = self.checkpoint.tensors
        return nested if tensor not in tensors and nested in tensors else tensor

    def vector(self, name: str, *shape: int) -> F32:
        """Read a small array, float32 of this shape."""
        self._read.add(name)
        self.tensors[name] = self._stored.floats(name, shape).reshape(shape)
        return self.tensors[name]

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Read the embedding or the output head [M, K], in the head's format."""
        tensor = self._table_name(name)
        self._read.add(tensor)
        if self._in_codes(name):
            return self._table_of_codes(name, Linear(tensor.removesuffix(".weight"), M, K))
        rows = self._stored.read(tensor, (M, K))
        asked = None if self.head is None else head_format(self.head, rows.format)
        part = rows if asked == rows.format else ternary_table(rows)
        choice = packing.choose(part, asked)
        if choice.keeps:
            self.modules[name] = packing.pack([part], choice, self.threads, tensor)
        else:
            self.modules[name] = packing.pack_floats([rows], choice.format, self.threads, tensor)
        return self.modules[name]

    def _in_codes(self, name: str) -> bool:
        """Whether a table is not stored in floats."""
        module = self._table_name(name).removesuffix(".weight")
        return f"{module}.scales" in self.checkpoint.tensors

    def _table_of_codes(self, name: str, part: Linear) -> PackedWeight:
        rows = self.rows(part)
        own = packing.choose(rows, None)
        if self.head == "exact" and isinstance(rows, Levels):
            raise RequestError(
                f"head: exact is for float heads, but {part.name} has integers; "
                "leave it out, which keeps the rows as they are"
            )
        asked = None if self.head is None else head_format(self.head, own.format)
        choice = packing.choose(rows, asked)
        self.modules[name] = packing.pack([rows], choice, self.threads, part.name)
        return self.modules[name]

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the int8 shadow of the output head's table if the head is exact, else None."""
        return shadow_of(table, self.head, self.threads)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Pack the rows of `parts` as one weight, or as one for each format among them."""
        read = {part.name: self.rows(part) for part in parts}
        choices = {
            part.name: packing.choose(read[part.name], None if part.exact else self.format)
            for part in parts
        }
        runs = in_runs(name, parts, lambda part: choices[part.name])
        for module, run in runs:
            rows, choice = [read[part.name] for part in run], choices[run[0].name]
            self.modules[module] = packing.pack(rows, choice, self.threads, run[0].name)
        return [self.modules[module] for module, _ in runs]

    def rows(self, part: Linear) -> Levels | Floats:
        """Read one layer from its tensors, checked."""
        layer = self._layer(part)
        if not part.name.endswith(self.transposed):
            return storages.read(layer)
        stored = self._stored.read(f"{part.name}.weight", (part.K, part.M))
        return Floats(stored.format, np.ascontiguousarray(stored.bits.T))

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Pack the rows of `parts` for all experts, as `matrix` does for one."""
        if f"{name}_blocks" in self.checkpoint.tensors:
            self._read |= {f"{name}_blocks", f"{name}_scales"}
            asked, threads = self.format or "mxfp4", self.threads
            stored = mxfp4_experts(self.checkpoint, name, parts, count, stacking, threads)
            weights = (weight_in(weight, asked, threads, name) for weight in stored)
            return [self._kept(name, Experts.of(count, weights, name))]
        self._read |= {name, f"{name}.weight"}
        read = stored_parts(self._stored, self._layer, name, parts, count, stacking)
        choices = {part.name: packing.choose(read(0, part), self.format) for part in parts}

        def packed(expert: int, run: list[Linear]) -> PackedWeight:
            rows = joined([read(expert, part) for part in run])
            choice = packing.choose(rows[0], self.format)
            return packing.pack(rows, choice, self.threads, run[0].of_expert(expert).name)

        return [
            self._kept(module, Experts.of(count, (packed(i, run) for i in range(count)), module))
            for module, run in in_runs(name, parts, lambda part: choices[part.name])
        ]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        """Read the biases of all experts, from one tensor or from one for each expert."""
        fused = f"{name}_bias"
        if fused in self.checkpoint.tensors:
            self._read.add(fused)
            biases = self._stored.floats(fused, (count, sum(part.M for part in parts)))
            order = stacking.order(parts)
            biases = biases if order is None else biases[:, order]
        else:
            of_all = [part.of_expert(i) for i in range(count) for part in parts]
            each = [self._stored.floats(f"{part.name}.bias", (part.M,)) for part in of_all]
            biases = np.concatenate(each).reshape(count, -1)
        self.tensors[f"{name}.bias"] = np.ascontiguousarray(biases)
        return self.tensors[f"{name}.bias"]

    def _kept(self, module: str, experts: Experts) -> Experts:
        self.modules[module] = experts.weight
        return experts

    def _layer(self, part: Linear) -> Layer:
        quantization = self._quantization
        masters = (quantization.declared or self.ternary_masters) and quantization.converts(
            part.name
        )
        layer = Layer(self._stored, part, masters, quantization)
        self._read.update(f"{part.name}.{suffix}" for suffix in storages.SUFFIXES)
        allowed = {"bias": part.bias, "rms_norm.weight": quantization.norm_eps > 0}
        for extra, known in allowed.items():
            if layer.has(extra) and not known and not self._is_idle(layer, extra):
                raise UnsupportedModelError(
                    f"{layer.info(extra).file}: {part.name}.{extra}: "
                    f"a linear layer of this architecture has no {extra}"
                )
        return layer

    def _is_idle(self, layer: Layer, extra: str) -> bool:
        """Whether this is a bias of zeros, which some quantisers add to every layer."""
        if extra != "bias":
            return False
        return not self._stored.floats(layer.info(extra).name, layer.info(extra).shape).any()

    def refuse_unread(
        self, without_effect: Iterable[str] = (), skipped: Iterable[str] = ()
    ) -> None:
        """Raise UnsupportedModelError for a tensor that the architecture did not ask for.

        The checkpoint's architecture is then not the stated one: one more norm or bias changes
        every result. Modules without an effect, names with a skipped prefix and tensors that can be
        recomputed are exempt, and so are scales of a KV cache, with a warning.
        """
        unused, scales = {*without_effect}, list[str]()
        for name, info in self.checkpoint.tensors.items():
            known = name in self._read or name.endswith(RECOMPUTED)
            known = known or name.rpartition(".")[0] in unused
            known = known or name.startswith(tuple(skipped))
            if not known and KV_SCALES.fullmatch(name):
                scales.append(name)
            elif name.startswith(("model.", "lm_head.")) and not known:
                raise UnsupportedModelError(
                    f"{info.file}: {name}: must be a tensor of "
                    f"{brief((self.checkpoint.config.get('architectures') or ['?'])[0])}, "
                    "but it has none of this name; config.json names another architecture or other "
                    "sizes"
                )
        if scales:
            warn(
                f"{self.checkpoint.path}: {len(scales)} scales of a KV cache ({scales[0]}) are not "
                "used: Sterna's cache has a type of its own"
            )
