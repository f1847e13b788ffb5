"""Models of published shapes with random weights in memory, for benchmarks: `random:SHAPE`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.bench.machine import require_bytes
from sterna.bench.random_codes import BLOCK_K, codes_bytes, constant_scales, fill, random_pool
from sterna.bench.shapes import shape_named
from sterna.engine import KV_DTYPES
from sterna.errors import RequestError, shown
from sterna.formats import Experts, PackedWeight, Shadow, codec
from sterna.loading import Model, from_weights
from sterna.runtime import resolve_threads
from sterna.weights.sources import STACKED, Linear, Stacking, head_format

__all__ = ["HEADROOM_BYTES", "Zeros", "model_bytes", "random_model"]

F32 = npt.NDArray[np.float32]

HEADROOM_BYTES = 512 << 20  # room for a chunk of activations, and for the measurement itself


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
        self.head: formats.Format = formats.get(head_format(head, "bf16"))
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
