"""A whole model in PyTorch as a participant: dense weights, `F.linear`, a cache of keys and values.

It shows the speed of a float framework with a ternary model. The layers are those of
models/bitnet.py and models/llama.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sterna.bench.machine import require_bytes
from sterna_papers.peers.case import F32, Case, Options, Part, require
from sterna_papers.peers.end_to_end import EndToEnd

__all__ = ["TorchModel", "create", "model_bytes"]

TILE = 64  # random rows made at a time
EPS, THETA = 1e-5, 500000.0
SIZES = {"bf16": 2, "f32": 4}


def model_bytes(options: Options) -> int:
    """Count the bytes of all weights."""
    s = options.model
    layers = s.layers * sum(M * K for M, K in s.matrices().values())
    tables = (1 if s.tied else 2) * s.vocab * s.hidden
    return SIZES[options.variant] * (layers + tables)


class TorchModel(EndToEnd):
    """A model with one forward pass a step; variant: the type of weights and activations."""

    def __init__(self, options: Options, torch: Any) -> None:
        super().__init__(options)
        self.torch, self.shape = torch, options.model
        s = self.shape
        self.bytes = model_bytes(options)
        require_bytes(
            self.bytes, f"torch, {options.shape} as {options.variant}", "choose a smaller --model"
        )
        self.type = {"bf16": torch.bfloat16, "f32": torch.float32}[options.variant]
        self.bitnet = s.architecture.startswith("BitNet")
        self.rng = np.random.default_rng(0)
        self.layers = [
            {name: self._matrix(M, K, K**-0.5) for name, (M, K) in s.matrices().items()}
            for _ in range(s.layers)
        ]
        self.table = self._matrix(s.vocab, s.hidden, 1.0)
        self.head = self.table if s.tied else self._matrix(s.vocab, s.hidden, s.hidden**-0.5)
        self.ones = torch.ones(max(s.hidden, s.intermediate), dtype=self.type)
        dim = s.head_dim or s.hidden // s.heads
        longest = max(case.n for case in self.cases)
        self.keys, self.values = (
            torch.zeros(s.layers, s.kv_heads, longest, dim, dtype=self.type) for _ in range(2)
        )
        angles = torch.outer(
            torch.arange(longest), THETA ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        )
        self.cos, self.sin = (f(angles).to(self.type)[None] for f in (torch.cos, torch.sin))
        self.length = 0
        self.last = np.zeros(0, np.float32)

    def _matrix(self, M: int, K: int, deviation: float) -> Any:
        """Make random ternary values of this deviation, [M, K]: one tile, rolled for the others."""
        torch = self.torch
        levels = torch.from_numpy(self.rng.integers(-1, 2, (TILE, K), np.int8))
        tile = levels.to(self.type) * deviation * 1.5**0.5
        made = torch.empty(M, K, dtype=self.type)
        for i, start in enumerate(range(0, M, TILE)):
            made[start : start + TILE] = tile.roll((i, i), (0, 1))[: M - start]
        return made

    def keep(self, length: int) -> int:
        """Set the length; the cache beyond it is not read."""
        self.length = length
        return length

    def feed(self, tokens: Sequence[int]) -> None:
        """Run all layers for these tokens, and the head for the last."""
        torch, f, s = self.torch, self.torch.nn.functional, self.shape
        start, n = self.length, len(tokens)
        # Tokens see themselves and earlier ones; a single token needs no mask.
        seen = torch.ones(n, start + n, dtype=torch.bool).tril(start) if n > 1 and start else None
        x = f.embedding(torch.tensor(tokens), self.table)
        for i, layer in enumerate(self.layers):
            h = self._attend(i, f.linear(self._norm(x), layer["qkv"]), seen, start)
            x = x + f.linear(self._norm(h) if self.bitnet else h, layer["o"])
            gate, up = f.linear(self._norm(x), layer["gate_up"]).split(s.intermediate, -1)
            h = self._norm(f.relu(gate) ** 2 * up) if self.bitnet else f.silu(gate) * up
            x = x + f.linear(h, layer["down"])
        self.length += n
        self.last = f.linear(self._norm(x[-1:]), self.head)[0].float().numpy()

    def _norm(self, x: Any) -> Any:
        width = x.shape[-1]
        return self.torch.nn.functional.rms_norm(x, (width,), self.ones[:width], EPS)

    def _attend(self, i: int, qkv: Any, seen: Any, start: int) -> Any:
        s, n = self.shape, len(qkv)
        end, dim = start + n, self.keys.shape[-1]
        heads = qkv.view(n, -1, dim).transpose(0, 1)  # [heads, n, dim]
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads))
        self.keys[i, :, start:end] = self._rotated(k, start, end)
        self.values[i, :, start:end] = v
        out = self.torch.nn.functional.scaled_dot_product_attention(
            self._rotated(q, start, end)[None], self.keys[i, None, :, :end],
            self.values[i, None, :, :end], attn_mask=seen, is_causal=n > 1 and seen is None,
            enable_gqa=s.heads != s.kv_heads,
        )  # fmt: skip
        return out[0].transpose(0, 1).reshape(n, -1)

    def _rotated(self, x: Any, start: int, end: int) -> Any:
        low, high = x.chunk(2, -1)
        cos, sin = self.cos[:, start:end], self.sin[:, start:end]
        return self.torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def logits(self) -> F32:
        """Return a copy of the last logits."""
        last: F32 = self.last.copy()
        return last

    def weight_bytes(self, case: Case) -> float | None:
        """Count all weights but an embedding that is not the head."""
        s = self.shape
        apart = 0 if s.tied else s.vocab * s.hidden * SIZES[self.options.variant]
        return float(self.bytes - apart)


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant. variant: bf16 or f32."""
    torch = require("torch", "torch")
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    return torch.__version__, options.variant, options.variant, [TorchModel(options, torch)]
