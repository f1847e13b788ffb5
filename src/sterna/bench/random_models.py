"""Models of published shapes with dummy weights in memory, for benchmarks: `random:SHAPE`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.models import Model, from_weights
from sterna.models.weights import HEADS, Linear

__all__ = ["SHAPES", "random_model"]

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """Sizes of a published model, as its config.json has them."""

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

    def config(self) -> dict[str, Any]:
        """As a config.json."""
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
        }


#: From the models' own config.json files.
SHAPES = {
    "bitnet-2b": Shape("BitNetForCausalLM", 2560, 6912, 30, 20, 5, 128256, True),
    "llama3-8b": Shape("LlamaForCausalLM", 4096, 14336, 32, 32, 8, 128256, False),
    "falcon3-1b": Shape("LlamaForCausalLM", 2048, 8192, 18, 8, 4, 131072, False, head_dim=256),
    "mobilellm-1.5b": Shape("LlamaForCausalLM", 1600, 4352, 54, 25, 5, 32000, True),
    "tinyllama-1.1b": Shape("LlamaForCausalLM", 2048, 5632, 22, 32, 4, 32000, False, context=2048),
    "tiny": Shape("LlamaForCausalLM", 256, 768, 4, 4, 2, 4096, True),
}


class RandomWeights:
    """A weight source that makes up what it is asked for; a fixed seed, no two layers alike."""

    def __init__(self, format: str, head: str) -> None:
        if head not in HEADS:
            raise RequestError(f"head: must be one of {', '.join(HEADS)}, but got {head!r}")
        self.format, self.head = formats.get(format), formats.get(HEADS[head])
        self.modules: dict[str, PackedWeight] = {}
        self.tensors: dict[str, F32] = {}
        self.rng = np.random.default_rng(0)

    def vector(self, name: str, size: int) -> F32:
        """Ones: activations stay of the size that a trained norm gives them."""
        return np.ones(size, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> PackedWeight:
        """A packed weight of valid random codes."""
        return self._random(self.format, sum(p.M for p in parts), parts[0].K)

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """The embedding or the head."""
        return self._random(self.head, M, K)

    def _random(self, f: formats.Format, M: int, K: int) -> PackedWeight:
        """Tiles of one random tile row, rolled: valid codes at the speed of a copy."""
        block = 64
        deviation = np.float32(K**-0.5)
        values = self.rng.standard_normal((block, K)).astype(np.float32) * deviation
        levels, scale = f.quantize(values, "tensor")
        tile = f.pack_codes(levels)[0]
        codes = _native.alloc(f.n_tiles(M) * tile.size).reshape(f.n_tiles(M), tile.size)
        steps = tile.reshape(-1, tile.size // max(1, tile.size // 1024))
        for i in range(len(codes)):
            np.copyto(codes[i].reshape(steps.shape), np.roll(steps, i, axis=0))
        if M % f.tile_rows and len(codes):  # rows beyond M are zeros, as in any packed weight
            rest = np.zeros((M % f.tile_rows, K), levels.dtype)
            rest[:] = levels[: len(rest)]
            codes[-1] = f.pack_codes(rest)[0]
        return PackedWeight(f.name, M, K, codes, np.asarray(scale, np.float32))


def random_model(shape: str, *, format: str = "i2", head: str = "bf16") -> Model:
    """A model of a shape of SHAPES. RequestError for an unknown shape, format or head."""
    if shape not in SHAPES:
        raise RequestError(
            f"model: random:SHAPE must name one of {', '.join(SHAPES)}, but got {shape!r}"
        )
    weights = RandomWeights(format, head)
    return from_weights(SHAPES[shape].config(), Path(f"random:{shape}"), lambda _: weights)
