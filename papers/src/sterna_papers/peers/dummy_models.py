"""The tensors and keys of GGUF files of a shape, as llama.cpp's converters name them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sterna.bench.shapes import Shape
from sterna_papers.peers.blocks import TERNARY, row_bytes

__all__ = ["PLANS", "Dummy", "Tensor", "dummy_of", "head_type"]

_SIGMOID = 2  # of ggml's kinds of gating
_TAPS = 3  # of LFM2's convolutions, as its config class says


class Tensor(NamedTuple):
    """A tensor: its name, its shape with the rows' length last, its ggml type."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def rows(self) -> int:
        """Rows of all matrices in it; of a vector one."""
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        """Its bytes; RequestError if the type's block does not divide a row."""
        return self.rows * row_bytes(self.type, self.shape[-1])


@dataclass(frozen=True)
class Dummy:
    """A file: `general.architecture`, tensors, and keys in addition to Llama's."""

    architecture: str
    tensors: list[Tensor]
    keys: dict[str, Any] = field(default_factory=dict)


def head_type(type: str) -> str:
    """Choose the output matrix's type: Q6_K, as llama.cpp does below 8 bits, or the layers' type.

    An embedding tied to the output matrix has this type, too.
    """
    return type if type in ("F32", "F16", "BF16", "Q8_0") else "Q6_K"


def dummy_of(s: Shape, type: str) -> Dummy:
    """Plan the file of a shape with layers of this type.

    Without experts it is `bitnet` (sub-norms, tied embedding) for ternary weights and BitNet, else
    `llama`.
    """
    if s.architecture in PLANS:
        return PLANS[s.architecture](s, type)
    bitnet = type in TERNARY or s.architecture.startswith("BitNet")
    tensors = [*_outer(s, type, "output_norm", s.tied or bitnet)]
    for i in range(s.layers):
        tensors += [*_attention(s, type, i), *_ffn(s, type, i, s.intermediate)]
        if bitnet:
            tensors += [
                Tensor(f"blk.{i}.attn_sub_norm.weight", (s.hidden,), "F32"),
                Tensor(f"blk.{i}.ffn_sub_norm.weight", (s.intermediate,), "F32"),
            ]
    return Dummy("bitnet" if bitnet else "llama", tensors)


def _outer(s: Shape, type: str, norm: str, tied: bool) -> Iterator[Tensor]:
    head = head_type(type)
    yield Tensor("token_embd.weight", (s.vocab, s.hidden), head if tied else type)
    yield Tensor(f"{norm}.weight", (s.hidden,), "F32")
    if not tied:
        yield Tensor("output.weight", (s.vocab, s.hidden), head)


def _attention(s: Shape, type: str, layer: int, head_norms: bool = False) -> Iterator[Tensor]:
    head = s.head_dim or s.hidden // s.heads
    q, kv, d = s.heads * head, s.kv_heads * head, s.hidden
    shapes = {"q": (q, d), "k": (kv, d), "v": (kv, d), "output": (d, q)}
    for name, shape in shapes.items():
        yield Tensor(f"blk.{layer}.attn_{name}.weight", shape, type)
    yield Tensor(f"blk.{layer}.attn_norm.weight", (d,), "F32")
    for name in "qk" if head_norms else "":
        yield Tensor(f"blk.{layer}.attn_{name}_norm.weight", (head,), "F32")


def _ffn(s: Shape, type: str, layer: int, width: int) -> Iterator[Tensor]:
    yield Tensor(f"blk.{layer}.ffn_norm.weight", (s.hidden,), "F32")
    yield from _gated(f"blk.{layer}.ffn_{{}}.weight", (), s.hidden, width, type)


def _experts(s: Shape, type: str, layer: int) -> Iterator[Tensor]:
    yield Tensor(f"blk.{layer}.ffn_norm.weight", (s.hidden,), "F32")
    yield Tensor(f"blk.{layer}.ffn_gate_inp.weight", (s.experts, s.hidden), "F32")
    name = f"blk.{layer}.ffn_{{}}_exps.weight"
    yield from _gated(name, (s.experts,), s.hidden, s.intermediate, type)


def _gated(name: str, of: tuple[int, ...], hidden: int, width: int, type: str) -> Iterator[Tensor]:
    yield Tensor(name.format("gate"), (*of, width, hidden), type)
    yield Tensor(name.format("up"), (*of, width, hidden), type)
    yield Tensor(name.format("down"), (*of, hidden, width), type)


def _expert_keys(s: Shape) -> dict[str, Any]:
    return {
        "expert_count": s.experts, "expert_used_count": s.chosen,
        "expert_feed_forward_length": s.intermediate,
    }  # fmt: skip


def _qwen3_moe(s: Shape, type: str) -> Dummy:
    """Plan Qwen3 with experts in all layers."""
    tensors = [*_outer(s, type, "output_norm", s.tied)]
    for i in range(s.layers):
        tensors += [*_attention(s, type, i, head_norms=True), *_experts(s, type, i)]
    return Dummy("qwen3moe", tensors, _expert_keys(s))


def _lfm2_moe(s: Shape, type: str) -> Dummy:
    """Plan LFM2 with experts in all layers but the first, and convolutions in some."""
    d, dense = s.hidden, s.settings["num_dense_layers"]
    attends = [kind == "full_attention" for kind in s.settings["layer_types"]]
    wide = s.settings["intermediate_size"]
    tensors = [*_outer(s, type, "token_embd_norm", s.tied)]
    for i, attending in enumerate(attends):
        block = f"blk.{i}"
        if attending:
            tensors += _attention(s, type, i, head_norms=True)
        else:
            tensors += [
                Tensor(f"{block}.attn_norm.weight", (d,), "F32"),
                Tensor(f"{block}.shortconv.conv.weight", (d, _TAPS), "F32"),
                Tensor(f"{block}.shortconv.in_proj.weight", (3 * d, d), type),
                Tensor(f"{block}.shortconv.out_proj.weight", (d, d), type),
            ]
        tensors += _ffn(s, type, i, wide) if i < dense else _experts(s, type, i)
        if i >= dense:
            tensors.append(Tensor(f"{block}.exp_probs_b.bias", (s.experts,), "F32"))
    keys = {
        **_expert_keys(s), "feed_forward_length": wide, "leading_dense_block_count": dense,
        "attention.head_count_kv": [s.kv_heads if attending else 0 for attending in attends],
        "expert_gating_func": _SIGMOID, "shortconv.l_cache": _TAPS,
    }  # fmt: skip
    return Dummy("lfm2moe", tensors, keys)


#: Classes with experts, `case.WITH_EXPERTS` -> the plans of their files.
PLANS = {"Lfm2MoeForCausalLM": _lfm2_moe, "Qwen3MoeForCausalLM": _qwen3_moe}
