"""Sizes of published models, for benchmarks with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sterna import _native, formats
from sterna.bench.random_codes import packed_bytes
from sterna.errors import RequestError, shown
from sterna.graph import RecurrentHeads
from sterna.weights.sources import head_format

__all__ = ["SHAPES", "Hybrid", "Shape", "shape_named"]


@dataclass(frozen=True)
class Shape:
    """Sizes of a published model, as its config.json has them.

    experts: their number in a layer, 0 for dense FFNs. A token uses `chosen` of them, each of width
    `intermediate`. shared: the width of a further expert that all tokens use; 0: there is none.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    tied: bool
    head_dim: int | None = None
    context: int = 4096
    experts: int = 0
    chosen: int = 0
    shared: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # further fields of config.json

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return (M, K) of one layer's matrices as they run: q, k, v are one, and so are gate, up.

        Of experts, only one counts.
        """
        width = self.head_dim or self.hidden // self.heads
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * width, self.hidden),
            "o": (self.hidden, self.heads * width),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers

    def kv_bytes(self, dtype: str) -> int:
        """Count the bytes of keys and values of one position."""
        head_dim = self.head_dim or self.hidden // self.heads
        return _native.kv_bytes(self.attention_layers, self.kv_heads, head_dim, dtype)

    def all_matrices(self) -> list[tuple[int, int]]:
        """Return (M, K) of the matrices of all layers."""
        of = self.matrices()
        return self.layers * [of["qkv"], of["o"], *self.ffn()]

    def ffn(self) -> list[tuple[int, int]]:
        """Return (M, K) of the matrices of one FFN, without a router."""
        two = [self.matrices()[name] for name in ("gate_up", "down")]
        d, ff = self.hidden, self.shared
        return max(self.experts, 1) * two + ([(2 * ff, d), (d, ff)] if ff else [])

    def layer_bytes(self, format: str) -> int:
        """Count the bytes of all layers in a format, scales included, embedding and head not."""
        f = formats.get(format)
        return sum(packed_bytes(f, M, K) for M, K in self.all_matrices())

    def nbytes(self, format: str, head: str) -> int:
        """Count the bytes of all weights and scales in a format; `head` as in `random_model`."""
        table = formats.get(head_format(head, "bf16"))
        tables = (1 if self.tied else 2) * packed_bytes(table, self.vocab, self.hidden)
        if head == "exact":  # the shadow, and three bounds for each row
            tables += packed_bytes(formats.get("i8"), self.vocab, self.hidden) + 12 * self.vocab
        return self.layer_bytes(format) + tables

    def config(self) -> dict[str, Any]:
        """Return the content of a config.json."""
        return {
            "architectures": [self.architecture],
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim or self.hidden // self.heads,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "tie_word_embeddings": self.tied,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            **(self._expert_fields() if self.experts else {}),
            **self.settings,
        }

    def _expert_fields(self) -> dict[str, Any]:
        return {
            "num_experts": self.experts,
            "num_local_experts": self.experts,
            "num_experts_per_tok": self.chosen,
            "moe_intermediate_size": self.intermediate,
            "shared_expert_intermediate_size": self.shared,
        }


_HEADS_27B = RecurrentHeads(16, 48, 128, 128)  # of Qwen3.5-27B
_HEADS_35B = RecurrentHeads(16, 32, 128, 128)  # of Qwen3.6-35B-A3B


@dataclass(frozen=True)
class Hybrid(Shape):
    """A model with recurrent layers: all but every `interval`-th."""

    interval: int = 4
    recurrent: RecurrentHeads = _HEADS_27B

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.layers // self.interval

    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return (M, K) of the matrices of both kinds of layers, as they run."""
        width, r = self.heads * (self.head_dim or self.hidden // self.heads), self.recurrent
        (qkv, K), both = super().matrices()["qkv"], super().matrices()
        in_proj = r.width + r.v_width + 2 * r.v_heads
        return {
            **both,
            "qkv": (qkv + width, K),  # each q has a gate
            "in_proj": (in_proj, self.hidden),
            "out_proj": (self.hidden, r.v_width),
        }

    def all_matrices(self) -> list[tuple[int, int]]:
        """Return (M, K) of the matrices of all layers."""
        of, attending = self.matrices(), self.attention_layers
        recurrent = [of[name] for name in ("in_proj", "out_proj")] * (self.layers - attending)
        return [*recurrent, *([of["qkv"], of["o"]] * attending), *(self.ffn() * self.layers)]

    def config(self) -> dict[str, Any]:
        """Return the content of a config.json."""
        r = self.recurrent
        return {
            **super().config(),
            "full_attention_interval": self.interval,
            "linear_num_key_heads": r.k_heads,
            "linear_num_value_heads": r.v_heads,
            "linear_key_head_dim": r.k_dim,
            "linear_value_head_dim": r.v_dim,
        }


@dataclass(frozen=True)
class Listed(Shape):
    """A model whose layers differ: how many there are of each matrix [M, K].

    attending: the layers that keep keys and values.
    """

    listed: tuple[tuple[int, int, int], ...] = ()
    attending: int = 0

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return self.attending

    def all_matrices(self) -> list[tuple[int, int]]:
        """Return (M, K) of the matrices of all layers, without routers."""
        return [(M, K) for count, M, K in self.listed for _ in range(count)]


_SIZES = "hidden intermediate layers heads kv_heads vocab".split()


def _shape(row: str, kind: type[Shape] = Shape, **fields: Any) -> Shape:
    """Make a shape from `Shape.config`'s architecture and sizes, and further fields by name."""
    architecture, *sizes, tied = row.split()[:8]
    fields.update(zip(_SIZES, map(int, sizes), strict=True))
    fields.update(_numbers(" ".join(row.split()[8:])))
    return kind(f"{architecture}ForCausalLM", tied=tied == "tied", **fields)


def _numbers(row: str) -> dict[str, int]:
    """Read whole numbers by name, as in "experts=72 chosen=10"."""
    return {name: int(number) for name, number in (pair.split("=") for pair in row.split())}


def _matrices(rows: str) -> tuple[tuple[int, int, int], ...]:
    """Read counts, M and K of matrices, as in "36*16768*4096 36*4096*8192"."""
    matrices = (map(int, row.split("*")) for row in rows.split())
    return tuple((count, M, K) for count, M, K in matrices)


def _ffn(layers: int, experts: int, d: int, ff: int) -> tuple[tuple[int, int, int], ...]:
    count = layers * experts
    return (count, 2 * ff, d), (count, d, ff)


#: 36 layers of Mamba-2 and 4 of attention, each with 72 experts and one that all tokens use.
_GRANITE_4_H_SMALL = _shape(
    "GraniteMoeHybrid 4096 768 40 32 8 100352 tied context=8192 experts=72 chosen=10 attending=4",
    Listed,
    listed=(
        *_matrices("36*16768*4096 36*4096*8192 4*6144*4096 4*4096*4096"),
        *_ffn(40, 72, 4096, 768),
        *_ffn(40, 1, 4096, 1536),
    ),
    settings={
        **_numbers("shared_intermediate_size=1536 mamba_n_heads=128 mamba_d_head=64"),
        **_numbers("mamba_d_state=128 mamba_n_groups=1"),
        "attention_multiplier": 2.0**-7,
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    },
)
#: 27 layers of latent attention, 26 with 64 experts and two that all tokens use. The latent of a
#: position has as many bytes as a key and a value of 288.
_DEEPSEEK_V2_LITE = _shape(
    "DeepseekV2 2048 1408 27 16 16 102400 untied context=8192 experts=64 chosen=6 attending=27",
    Listed,
    listed=(
        *_matrices("27*3648*2048 432*512*128 432*128*512 27*2048*2048"),
        *_ffn(1, 1, 2048, 10944),
        *_ffn(26, 64, 2048, 1408),
        *_ffn(26, 1, 2048, 2816),
    ),
    settings={
        **_numbers("intermediate_size=10944 kv_lora_rank=512 qk_nope_head_dim=128"),
        **_numbers("qk_rope_head_dim=64 v_head_dim=128 head_dim=64 n_shared_experts=2"),
        **_numbers("first_k_dense_replace=1"),
        "q_lora_rank": None,
    },
)
#: 18 layers of short convolutions and 6 of attention; all but two have 32 experts.
_LFM2_8B_A1B = _shape(
    "Lfm2Moe 2048 1792 24 32 8 65536 tied context=8192 experts=32 chosen=4 attending=6",
    Listed,
    listed=(
        *_matrices("18*6144*2048 18*2048*2048 6*3072*2048 6*2048*2048"),
        *_ffn(2, 1, 2048, 7168),
        *_ffn(22, 32, 2048, 1792),
    ),
    settings={
        **_numbers("intermediate_size=7168 num_dense_layers=2"),
        "layer_types": [
            "full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)
        ],
    },
)


def _ternary(hidden: int, intermediate: int, layers: int, heads: int) -> Shape:
    # Published checkpoints of this family: as many KV heads as heads, a tied embedding of 32,002.
    sizes = f"{hidden} {intermediate} {layers} {heads} {heads} 32002"
    return _shape(f"BitNet {sizes} tied context=2048")


#: Shapes with a model's name come from the models' config.json files; bonsai-8b and bonsai-27b have
#: the shapes of Qwen3-8B and Qwen3.5-27B. Shapes named by a size are models of Bitnet.cpp (arXiv
#: 2502.11880), Table 7. The paper does not print their shapes: 700m has that of bitnet_b1_58-large,
#: and the others come from the paper's code (utils/generate-dummy-bitnet-model.py in
#: microsoft/BitNet). Only 3.8b differs, with 30 heads of 128 instead of 32 of 120: the parameters
#: are as many, and heads of 120 would be padded to 128.
SHAPES: dict[str, Shape] = {
    "bitnet-2b": _shape("BitNet 2560 6912 30 20 5 128256 tied"),
    "llama3-8b": _shape("Llama 4096 14336 32 32 8 128256 untied"),
    "falcon3-1b": _shape("Llama 2048 8192 18 8 4 131072 untied head_dim=256"),
    "mobilellm-1.5b": _shape("Llama 1600 4352 54 25 5 32000 tied"),
    "mistral-7b": _shape("Llama 4096 14336 32 32 8 32000 untied"),
    "tinyllama-1.1b": _shape("Llama 2048 5632 22 32 4 32000 untied context=2048"),
    "bonsai-8b": _shape("Qwen3 4096 12288 36 32 8 151936 untied head_dim=128"),
    "gemma-3-4b": _shape(
        "Gemma3 2560 10240 34 8 4 262208 tied head_dim=256 context=8192",
        settings={"sliding_window": 1024, "query_pre_attn_scalar": 256},
    ),
    "bonsai-27b": _shape("Qwen3_5 5120 17408 64 24 4 248320 untied head_dim=256", Hybrid),
    "gpt-oss-20b": _shape(
        "GptOss 2880 2880 24 64 8 201088 untied head_dim=64 context=8192 experts=32 chosen=4"
    ),
    "qwen3.6-35b-a3b": _shape(
        "Qwen3_5Moe 2048 512 40 16 2 248320 untied head_dim=256 context=8192 experts=256 chosen=8 "
        "shared=512",
        Hybrid,
        recurrent=_HEADS_35B,
    ),
    "maple": _shape(
        "Maple 2048 512 24 16 4 151936 untied head_dim=128 context=8192 experts=256 chosen=8"
    ),
    "deepseek-v2-lite": _DEEPSEEK_V2_LITE,
    "granite-4-h-small": _GRANITE_4_H_SMALL,
    "lfm2-8b-a1b": _LFM2_8B_A1B,
    "700m": _ternary(1536, 4096, 24, 16),
    "1.5b": _ternary(1536, 9216, 28, 32),
    "3.8b": _ternary(3840, 8192, 24, 30),
    "7b": _ternary(4096, 12032, 32, 32),
    "13b": _ternary(5120, 13824, 40, 40),
    "30b": _ternary(6656, 16384, 60, 52),
    "70b": _ternary(8192, 24576, 80, 64),
    "100b": _ternary(8192, 45568, 72, 64),
    "tiny-experts": _shape("Qwen3Moe 256 192 4 4 2 4096 tied experts=16 chosen=4"),
    "tiny": _shape("Llama 256 768 4 4 2 4096 tied"),
}


def shape_named(name: str) -> Shape:
    """Return the shape of a name in SHAPES; RequestError, which lists all, for an unknown name."""
    if name not in SHAPES:
        raise RequestError(f"shape: must be one of {', '.join(SHAPES)}, but got {shown(name)}")
    return SHAPES[name]
