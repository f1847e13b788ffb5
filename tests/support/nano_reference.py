"""The built-in model written out in torch, from its file alone: nothing here imports Sterna.

Weights are unpacked by the bit maps of docs/reference/formats.md. All is of one float type but for
what the model itself rounds: the activations of its ternary layers, int8 for each token.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor


class Reference:
    """Logits of a packed BitNet model whose layers are `i2` and whose embedding is bf16."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.config = json.loads((folder / "config.json").read_text())
        self.modules = self.config["quantization_config"]["modules"]
        with safe_open(folder / "model.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        self.tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
        self.embedding = self.unpack_bf16("model.embed_tokens")
        ternary = (name for name, module in self.modules.items() if module["format"] == "i2")
        self.ternary = {name: self.unpack_i2(name) for name in ternary}
        self.width = self.config["hidden_size"] // self.config["num_attention_heads"]

    def unpack_i2(self, name: str) -> tuple[Tensor, Tensor]:
        """(levels [M, K], scale [M] or []): byte 4r + j of a line has k + j of rows 16f + r."""
        M, K = (self.modules[name][key] for key in "MK")
        lines = self.tensors[f"{name}.codes"].numpy().reshape(-1, K // 4, 16, 4)  # tile, k, r, j
        fields = np.stack([lines >> 2 * f & 3 for f in range(4)])  # f, tile, k, r, j
        codes = fields.transpose(1, 0, 3, 2, 4).reshape(-1, K)[:M]
        levels = torch.from_numpy(codes).to(self.dtype) - 1
        return levels, self.tensors[f"{name}.scale"]

    def unpack_bf16(self, name: str) -> Tensor:
        """Values [M, K]: dword 16f + r of a line of 2 k is row 16f + r, its low half the first."""
        M, K = (self.modules[name][key] for key in "MK")
        halves = self.tensors[f"{name}.codes"].numpy().view("<u2").reshape(-1, K // 2, 64, 2)
        values = halves.transpose(0, 2, 1, 3).reshape(-1, K)[:M].astype(np.uint32) << 16
        return torch.from_numpy(values.view(np.float32)).to(self.dtype)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Ternary levels times int8 activations (BitNet b1.58), [n, K] -> [n, M]."""
        levels, scale = self.ternary[name]
        s = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        q = (x * s).round().clamp(-128, 127)
        return (q @ levels.T) / s * scale

    def norm(self, x: Tensor, name: str) -> Tensor:
        """RMSNorm."""
        mean = x.pow(2).mean(-1, keepdim=True)
        weight = self.tensors[f"{name}.weight"]
        return x * torch.rsqrt(mean + self.config["rms_norm_eps"]) * weight

    def rotate(self, x: Tensor) -> Tensor:
        """Half-split rotary embedding of [n, heads, width]."""
        half = self.width // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
        cos, sin = (f(angles).to(self.dtype)[:, None] for f in (torch.cos, torch.sin))
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, qkv: Tensor) -> Tensor:
        """Causal attention, query heads in groups of one key-value head; [n, …] -> [n, hidden]."""
        kv = self.config["num_key_value_heads"]
        n, groups = len(qkv), self.config["num_attention_heads"] // kv
        heads = qkv.view(n, -1, self.width)
        q, k, v = (
            self.rotate(heads[:, : -2 * kv]),
            self.rotate(heads[:, -2 * kv : -kv]),
            heads[:, -kv:],
        )
        k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / self.width**0.5
        scores += torch.full((n, n), float("-inf")).triu(1)
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(n, -1)

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """[n, vocab] of the tokens of one sequence."""
        x = self.embedding[torch.tensor(ids)]
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}"
            h = self.norm(x, f"{p}.input_layernorm")
            h = self.attention(self.linear(h, f"{p}.self_attn.qkv_proj"))
            h = self.norm(h, f"{p}.self_attn.attn_sub_norm")
            x = x + self.linear(h, f"{p}.self_attn.o_proj")
            h = self.norm(x, f"{p}.post_attention_layernorm")
            gate, up = self.linear(h, f"{p}.mlp.gate_up_proj").chunk(2, -1)
            h = self.norm(gate.relu() ** 2 * up, f"{p}.mlp.ffn_sub_norm")
            x = x + self.linear(h, f"{p}.mlp.down_proj")
        return self.norm(x, "model.norm") @ self.embedding.T

    def nats(self, ids: Sequence[int]) -> Tensor:
        """-ln p of every token but the first, given those before it: float64 [n - 1]."""
        log_p = self.logits(ids[:-1]).double().log_softmax(-1)
        return -log_p.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
