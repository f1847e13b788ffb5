"""The torch-free runtime of litespark-inference as a participant: its own layers, dummy weights.

On AVX-512, its prompt kernel returns without computing if there are more than 64 tokens (version
1.0.3), so prompts and products run in chunks of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna_papers.peers.case import F32, Case, Options, Part, distance, end_to_end, require
from sterna_papers.peers.end_to_end import EndToEnd
from sterna_papers.peers.products import Products

__all__ = ["create"]

CHUNK = 64
PACKAGE = "litespark_inference.torchless"
NAME = "litespark-inference"


def projection(levels: npt.NDArray[np.int8], scale: float) -> Any:
    """Pack a layer as the package's loader does, with an AMX copy if its build has AMX."""
    kernel, model = require(f"{PACKAGE}.kernel", NAME), require(f"{PACKAGE}.model", NAME)
    pack = require(f"{PACKAGE}.pack", NAME)
    M, K = levels.shape
    packed = pack.pack_ternary_4_per_byte(levels)
    amx = None
    if kernel.has_amx():
        amx = np.empty((K // 4, M, 4), np.int8)
        kernel.transpose_packed_to_amx_vnni(packed, amx, M, K)
    sums = levels.sum(axis=1, dtype=np.int32)
    return model.PackedProjection(packed, sums, scale, K, M, w_amx=amx)


class LitesparkModel(EndToEnd):
    """forward_prefill and forward_one on a PackedBitNetModel, with the default int4 head."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.runtime = require(f"{PACKAGE}.runtime", NAME)
        self.model = self._dummy()
        longest = max(case.n for case in self.cases)
        self.state = self.runtime.init_state(self.model, t_max=longest)
        self.last = np.zeros(0, np.float32)

    def _dummy(self) -> Any:
        s, model = self.options.model, require(f"{PACKAGE}.model", NAME)
        kv = s.kv_heads * (s.hidden // s.heads)
        rng = np.random.default_rng(0)
        rows = {"q": s.hidden, "k": kv, "v": kv, "o": s.hidden}
        rows |= {"gate": s.intermediate, "up": s.intermediate, "down": s.hidden}
        ones = np.full(s.hidden, 0x3F80, np.uint16)  # 1.0 in bf16
        norms = dict.fromkeys(("input_norm", "post_attn_norm", "attn_sub_norm"), ones)
        norms["ffn_sub_norm"] = np.full(s.intermediate, 0x3F80, np.uint16)
        layers, self.bytes = [], 0
        for _ in range(s.layers):
            made = {}
            for name, M in rows.items():
                K = s.intermediate if name == "down" else s.hidden
                levels = rng.integers(-1, 2, (M, K), np.int8)
                made[f"{name}_proj"] = projection(levels, (K * 2 / 3) ** -0.5)
                self.bytes += M * K // 4
            layers.append(model.PackedLayer(**made, **norms))
        head = rng.integers(0, 256, (s.vocab, s.hidden // 2), np.uint8)
        head_scale = np.full(s.vocab, 0.2, np.float32)
        self.bytes += head.nbytes + head_scale.nbytes
        config = model.BitNetConfig(
            s.hidden, s.layers, s.heads, s.kv_heads, s.intermediate, s.vocab, s.context, 1e-5, 5e5
        )
        return model.PackedBitNetModel(
            config, None, ones, layers=layers, embed_int4=head, embed_scale=head_scale
        )

    def keep(self, length: int) -> int:
        """Set the length; the package does not read the cache beyond it."""
        self.state.pos = length
        return length

    def feed(self, tokens: Sequence[int]) -> None:
        """Feed prompts in chunks of 64; the package computes logits after each."""
        for start in range(0, len(tokens), CHUNK):
            part = list(tokens[start : start + CHUNK])
            if len(part) == 1:
                self.last = self.runtime.forward_one(self.model, self.state, part[0])
            else:
                self.last = self.runtime.forward_prefill(self.model, self.state, part)

    def check(self, case: Case) -> tuple[bool, str]:
        """Check a case, and report the error of more than 64 tokens at once."""
        ok, how = super().check(case)
        if case.n > CHUNK:
            tokens = self._prompt(case.n)
            self._begin(case.depth)
            self.last = self.runtime.forward_prefill(self.model, self.state, tokens)
            error = distance(self.logits(), self._stepwise(case))
            how += f"; without chunks of {CHUNK}: by {error:.1e}"
        return ok, how

    def logits(self) -> F32:
        """Return a copy, since the package reuses its buffer."""
        last: F32 = self.last.copy()
        return last

    def weight_bytes(self, case: Case) -> float | None:
        """Count packed layers and head; prompts of the AMX build read four times the layers."""
        return self.bytes


class LitesparkProducts(Products):
    """The package's packed ternary products."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.kernel = require(f"{PACKAGE}.kernel", NAME)
        self.weights: list[Any] = []

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack four levels a byte."""
        self.made, self._n = projection(weight, 1.0), n
        return int(self.made.w_packed.nbytes)

    def copy(self, count: int) -> None:
        """Copy the weight in the form that a product of this many tokens reads."""
        # The package uses its AMX kernel for chunks of exactly 32, 48 or 64 tokens.
        self.amx = self.made.w_amx is not None and self._n > 1 and self._n % CHUNK == 0
        source = self.made.w_amx if self.amx else self.made.w_packed
        self.weights = [source.copy() for _ in range(count)]

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as int8 with the scale 1."""
        self.x = x
        self.ones = np.ones(len(x), np.float32)
        self.y = np.empty((len(x), self.made.out_features), np.float32)

    def multiply(self, copy: int) -> object:
        """Multiply one token, or chunks of 64."""
        w = self.weights[copy]
        if len(self.x) == 1:
            self.kernel.matmul_packed_m1(self.x[0], w, 1.0, 1.0, out=self.y[0])
            return self.y
        product = self.kernel.matmul_amx_mT_padded if self.amx else self.kernel.matmul_packed_mT
        for i in range(0, len(self.x), CHUNK):
            part = slice(i, i + CHUNK)
            product(self.x[part], self.ones[part], w, 1.0, out=self.y[part])
        return self.y

    def result(self, y: Any) -> F32:
        values: F32 = y
        return values

    def release(self) -> None:
        self.weights = []

    def check(self, case: Case) -> tuple[bool, str]:
        """Check a case, and report the errors of more than 64 tokens at once."""
        self._prepare(case)
        self.y.fill(-1e30)  # outputs left alone must not look right
        ok, how = super().check(case)
        if case.n > CHUNK:
            whole = np.full_like(self.y, -1e30)
            self.kernel.matmul_packed_mT(self.x, self.ones, self.made.w_packed, 1.0, out=whole)
            how += f"; without chunks of {CHUNK}: {self._wrong(whole)} wrong"
        return ok, how


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant, in the package's default types."""
    kernel = require(f"{PACKAGE}.kernel", NAME)
    parts: list[Part] = [LitesparkProducts(options)]
    if end_to_end(options) and not options.model.experts:
        parts.insert(0, LitesparkModel(options))
    build = " (AMX build)" if kernel.has_amx() else ""
    return version(NAME) + build, "ternary 2-bit", "int4", parts
