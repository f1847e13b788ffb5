"""Models of published shapes with random weights in memory, for benchmarks: `random:SHAPE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.bench.machine import require_bytes
from sterna.bench.random_codes import (
    BLOCK_K,
    codes_bytes,
    constant_scales,
    fill,
    packed_bytes,
    random_pool,
)
from sterna.engine import KV_DTYPES
from sterna.errors import RequestError, shown
from sterna.formats import Experts, PackedWeight, Shadow, codec
from sterna.graph import RecurrentHeads
from sterna.loading import Model, from_weights
from sterna.runtime import resolve_threads
from sterna.weights.sources import STACKED, Linear, Stacking, head_format

__all__ = [
    "HEADROOM_BYTES",
    "SHAPES",
    "Shape",
    "Zeros",
    "model_bytes",
    "random_model",
    "shape_named",
]

F32 = npt.NDArray[np.float32]

HEADROOM_BYTES = 512 << 20  # room for a chunk of activations, and for the measurement itself


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
        table = _head_format(head)
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
        return [
            *recurrent,
            *([of["qkv"], of["o"]] * attending),
            *(self.ffn() * self.layers),
        ]

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


def _ffn(layers: int, experts: int, d: int, ff: int) -> tuple[tuple[int, int, int], ...]:
    count = layers * experts
    return (count, 2 * ff, d), (count, d, ff)


#: 36 layers of Mamba-2 and 4 of attention, each with 72 experts and one that all tokens use.
_GRANITE_4_H_SMALL = Listed(
    "GraniteMoeHybridForCausalLM", 4096, 768, 40, 32, 8, 100352, True, context=8192, experts=72,
    chosen=10, attending=4,
    listed=(
        (36, 16768, 4096), (36, 4096, 8192), (4, 6144, 4096), (4, 4096, 4096),
        *_ffn(40, 72, 4096, 768), *_ffn(40, 1, 4096, 1536),
    ),
    settings={
        "shared_intermediate_size": 1536, "mamba_n_heads": 128, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "attention_multiplier": 2.0**-7,
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    },
)  # fmt: skip
#: 27 layers of latent attention, 26 with 64 experts and two that all tokens use. What a position
#: keeps has the bytes of a key and a value of 288.
_DEEPSEEK_V2_LITE = Listed(
    "DeepseekV2ForCausalLM", 2048, 1408, 27, 16, 16, 102400, False, context=8192, experts=64,
    chosen=6, attending=27,
    listed=(
        (27, 3072 + 576, 2048), (27 * 16, 512, 128), (27 * 16, 128, 512), (27, 2048, 2048),
        *_ffn(1, 1, 2048, 10944), *_ffn(26, 64, 2048, 1408), *_ffn(26, 1, 2048, 2816),
    ),
    settings={
        "intermediate_size": 10944, "kv_lora_rank": 512, "q_lora_rank": None,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64,
        "n_shared_experts": 2, "first_k_dense_replace": 1,
    },
)  # fmt: skip
#: 18 layers of short convolutions and 6 of attention; all but two have 32 experts.
_LFM2_8B_A1B = Listed(
    "Lfm2MoeForCausalLM", 2048, 1792, 24, 32, 8, 65536, True, context=8192, experts=32, chosen=4,
    attending=6,
    listed=(
        (18, 6144, 2048), (18, 2048, 2048), (6, 3072, 2048), (6, 2048, 2048),
        *_ffn(2, 1, 2048, 7168), *_ffn(22, 32, 2048, 1792),
    ),
    settings={
        "intermediate_size": 7168, "num_dense_layers": 2,
        "layer_types": [
            "full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)
        ],
    },
)  # fmt: skip


def _ternary(hidden: int, intermediate: int, layers: int, heads: int) -> Shape:
    # Published checkpoints of this family: as many KV heads as heads, a tied embedding of 32,002.
    return Shape(
        "BitNetForCausalLM", hidden, intermediate, layers, heads, heads, 32002, True, context=2048
    )


#: Shapes with a model's name come from the models' config.json files; bonsai-8b and bonsai-27b have
#: the shapes of Qwen3-8B and Qwen3.5-27B. Shapes named by a size are models of Bitnet.cpp (arXiv
#: 2502.11880), Table 7. The paper does not print their shapes: 700m has that of bitnet_b1_58-large,
#: and the others come from the paper's code (utils/generate-dummy-bitnet-model.py in
#: microsoft/BitNet). Only 3.8b differs, with 30 heads of 128 instead of 32 of 120: the parameters
#: are as many, and heads of 120 would be padded to 128.
SHAPES: dict[str, Shape] = {
    "bitnet-2b": Shape("BitNetForCausalLM", 2560, 6912, 30, 20, 5, 128256, True),
    "llama3-8b": Shape("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128256, False),
    "falcon3-1b": Shape("LlamaForCausalLM", 2048, 8192, 18, 8, 4, 131072, False, head_dim=256),
    "mobilellm-1.5b": Shape("LlamaForCausalLM", 1600, 4352, 54, 25, 5, 32000, True),
    "mistral-7b": Shape("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 32000, False),
    "tinyllama-1.1b": Shape("LlamaForCausalLM", 2048, 5632, 22, 32, 4, 32000, False, context=2048),
    "bonsai-8b": Shape("Qwen3ForCausalLM", 4096, 12288, 36, 32, 8, 151936, False, head_dim=128),
    "gemma-3-4b": Shape(
        "Gemma3ForCausalLM",
        2560,
        10240,
        34,
        8,
        4,
        262208,
        True,
        head_dim=256,
        context=8192,
        settings={"sliding_window": 1024, "query_pre_attn_scalar": 256},
    ),
    "bonsai-27b": Hybrid("Qwen3_5ForCausalLM", 5120, 17408, 64, 24, 4, 248320, False, head_dim=256),
    "gpt-oss-20b": Shape(
        "GptOssForCausalLM",
        2880,
        2880,
        24,
        64,
        8,
        201088,
        False,
        head_dim=64,
        context=8192,
        experts=32,
        chosen=4,
    ),
    "qwen3.6-35b-a3b": Hybrid(
        "Qwen3_5MoeForCausalLM",
        2048,
        512,
        40,
        16,
        2,
        248320,
        False,
        head_dim=256,
        context=8192,
        experts=256,
        chosen=8,
        shared=512,
        recurrent=_HEADS_35B,
    ),
    "maple": Shape(
        "MapleForCausalLM", 2048, 512, 24, 16, 4, 151936, False, head_dim=128, context=8192,
        experts=256, chosen=8,
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
    "tiny-experts": Shape(
        "Qwen3MoeForCausalLM", 256, 192, 4, 4, 2, 4096, True, experts=16, chosen=4
    ),
    "tiny": Shape("LlamaForCausalLM", 256, 768, 4, 4, 2, 4096, True),
}  # fmt: skip


@dataclass(frozen=True)
class Zeros:
    """The shares of a relu2 model's activations that are 0, for random weights to reproduce.

    up: the share of closed gates. down: the share of zeros among the inputs of `down`.
    """

    up: float
    down: float

    @classmethod
    def parse(cls, text: str) -> Zeros:
        """Parse "up=.68,down=.83".

        Raises RequestError for other text, and for rates that random weights cannot have: half of
        their gates are closed anyway.
        """
        try:
            parts = dict(part.split("=") for part in text.split(","))
            zeros = cls(**{name.strip(): float(value) for name, value in parts.items()})
        except (ValueError, TypeError):
            raise RequestError(
                f"zeros: must be two rates, as in up=.68,down=.83, but got {shown(text)}"
            ) from None
        if not 0.5 <= zeros.up <= zeros.down < 1:
            raise RequestError(f"zeros: needs 0.5 <= up <= down < 1, but got {shown(text)}")
        return zeros

    def closed_gates(
        self, weight: PackedWeight, gates: int, rng: np.random.Generator
    ) -> PackedWeight:
        """Close gates by a scale of 0: of the first `gates` rows, enough to reach the share `up`.

        Half of the other gates are closed without it.
        """
        scale = np.broadcast_to(weight.scale, (weight.M,)).astype(np.float32)
        scale[:gates][rng.random(gates) >= 2 * (1 - self.up)] = 0
        return replace(weight, scale=scale)

    def norm(self, size: int, rng: np.random.Generator) -> F32:
        """Return a norm's weights before `down`: ones, and zeros until the share `down` is reached.

        Some activations are 0 without them: those of closed gates, and those that round to 0.
        """
        product = np.square(rng.standard_normal(size)) * np.abs(rng.standard_normal(size))
        rounded = np.mean(product < product.max() / 254)  # int8 rounds these to 0
        kept = (1 - self.down) / ((1 - self.up) * (1 - rounded))
        weights: F32 = (rng.random(size) < kept).astype(np.float32)
        return weights


class RandomWeights:
    """A weight source of random weights, the same on every run."""

    def __init__(self, format: str, head: str, zeros: Zeros | None = None) -> None:
        self.format: formats.Format = formats.get(format)
        self.head: formats.Format = _head_format(head)
        self.zeros = zeros
        self.exact: bool = head == "exact"
        self.modules: dict[str, PackedWeight] = {}
        self.tensors: dict[str, F32] = {}
        self.rng: np.random.Generator = np.random.default_rng(0)
        self._start = 0  # offset into the pool of codes, so that no two layers are alike

    def has(self, name: str) -> bool:
        """Return False: the model has none of the optional tensors."""
        return False

    def vector(self, name: str, *shape: int) -> F32:
        """Return ones, so that activations keep a size like that after a trained norm."""
        if self.zeros and "mlp." in name:  # the norm before `down`
            return self.zeros.norm(shape[0], self.rng)
        return np.ones(shape, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """Return a packed weight of valid random codes."""
        f = formats.get("bf16") if parts[0].exact else self.format
        weight = self._random(f, sum(p.M for p in parts), parts[0].K)
        if self.zeros and parts[0].name.endswith("gate_proj"):
            weight = self.zeros.closed_gates(weight, parts[0].M, self.rng)
        return [weight]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """Return a packed weight of valid random codes."""
        M, f = sum(p.M for p in parts), self.format
        rows = Experts.rows_of(f.tile_rows, count, M)
        return [Experts(self._random(f, rows, parts[0].K), count, M)]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> F32:
        return np.zeros((count, sum(part.M for part in parts)), np.float32)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Return the embedding or the head."""
        return self._random(self.head, M, K)

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """Return the head's shadow, if the head is exact."""
        return Shadow.of(table, resolve_threads()) if self.exact else None

    def _random(self, f: formats.Format, M: int, K: int) -> PackedWeight:
        f.check_shape(M, K)
        pool, scale = random_pool(f.name, K**-0.5)  # activations keep their size
        codes = _native.alloc(codes_bytes(f, M, K)).reshape(f.n_tiles(M), f.tile_bytes(K))
        block = f.tile_bytes(BLOCK_K)
        self._start = (self._start + 97 * block) % pool.size
        fill(codes.reshape(-1), pool, self._start)
        if rows := M % f.tile_rows:  # rows beyond M are zeros, as in any packed weight
            values = self.rng.standard_normal((rows, K), np.float32) * np.float32(K**-0.5)
            levels, _ = codec.by_rule(f, values, "tensor")
            codes[-1] = codec.pack_codes(f, levels)[0]
        return PackedWeight(f, M, K, codes, constant_scales(f, M, K, scale))


def _head_format(head: str) -> formats.Format:
    return formats.get(head_format(head, "bf16"))


def shape_named(name: str) -> Shape:
    """Return the shape of a name in SHAPES; RequestError, which lists all, for an unknown name."""
    if name not in SHAPES:
        raise RequestError(f"shape: must be one of {', '.join(SHAPES)}, but got {shown(name)}")
    return SHAPES[name]


def model_bytes(
    shape: str, format: str, head: str, kv_positions: int = 0, kv_dtype: str = KV_DTYPES[0]
) -> int:
    """Count the bytes of a `random_model`: weights, scales, and `kv_positions` of KV cache."""
    sizes = shape_named(shape)
    return sizes.nbytes(format, head) + sizes.kv_bytes(kv_dtype) * kv_positions


def random_model(
    shape: str,
    *,
    format: str = "i2",
    head: str = "bf16",
    kv_positions: int = 0,
    kv_dtype: str = KV_DTYPES[0],
    context: int = 0,
    zeros: Zeros | None = None,
) -> Model:
    """Make a model with random weights.

    Args:
        shape: A name in SHAPES.
        format: The weight format of the layers.
        head: The head, as in `LLM`.
        kv_positions: Positions of KV cache that will be in use at once.
        context: Positions of a sequence, if more than the shape's. Rotations are defined for any
            position, and random weights have learnt no length.
        zeros: Rates of zeros, for a shape with relu2 in a format with a scale for each row.

    Raises RequestError for an unknown shape, format or head, and, before it allocates anything, for
    weights that do not fit into the available memory.
    """
    sizes = shape_named(shape)
    copies = sizes.layers * sizes.intermediate * sizes.hidden // 2 if zeros else 0  # up, down
    require_bytes(
        model_bytes(shape, format, head, kv_positions, kv_dtype) + copies + HEADROOM_BYTES,
        f"random:{shape} as {format}, head {head}",
        "choose a smaller shape or a --format of fewer bits",
    )
    f = formats.get(format)
    if zeros and (sizes.architecture != "BitNetForCausalLM" or not f.scaled or f.scales.group):
        raise RequestError(
            f"zeros: need a relu2 model, and a format with a scale for each row, but got {shape} "
            f"as {format}; choose random:bitnet-2b, and i2 or t5"
        )
    weights = RandomWeights(format, head, zeros)
    sizes = replace(sizes, context=max(sizes.context, context))
    return from_weights(sizes.config(), Path(f"random:{shape}"), lambda _: weights)
