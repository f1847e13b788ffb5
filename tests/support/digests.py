"""Small models whose logits every machine must reproduce, and the committed digests of these.

    python tests/support/digests.py --add       # digests for what has none, in digests.json
    python tests/support/digests.py --replace   # all anew, after an intended change of bits

A digest is portable because nothing that a machine may decide comes before the logits. Levels,
scales, norms and tokens are whole numbers from Philox, whose raw words numpy promises to keep
(unlike its distributions), times powers of two; so no weight is rounded, neither numpy's
reductions, which add in the order of the CPU's vectors, nor BLAS or libm are asked, and packing
moves bits. Everything after that is Sterna's own arithmetic (docs/explanation/numerics.md).
Layers of floats are summed in ascending order here, since their fast sums are promised for one
machine alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from model_configs import DIGESTED

from sterna import _native, formats, loading, models
from sterna.checkpoints.resolve import BUILT_IN
from sterna.engine import DecidingLogits, Engine, Sequence
from sterna.formats import Experts, FloatFormat, Format, PackedWeight, Shadow, codec
from sterna.formats.pot_levels import PowerFloats
from sterna.formats.scales import E4M3, GroupScales, MicroBlockScales, SuperBlockScales
from sterna.loading import Model
from sterna.weights.sources import HEADS, STACKED, Linear, Stacking, head_format

FILE = Path(__file__).parent / "digests.json"
#: The attention's arithmetic of integers, and the one of floats; a format meets both.
FEW_KV = ("i16", "f16")
ALL_KV = ("i16", "i8", "k8v4", "f16", "f32")
#: Layers of the models that are there for their architecture or head.
LAYERS_FORMAT = "i2"

HIDDEN, INTERMEDIATE, VOCAB = 256, 512, 200  # whole super-blocks of 256 k; vocab: a rest of a tile
CONFIG: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "rms_norm_eps": 2.0**-17,
    "rope_theta": 10000.0,
}
#: Tokens of each step: a prompt over a page of 64 and any block of tokens, a step of few tokens,
#: and decoding, in which each token is the best of the logits before.
STEPS = (75, 6, 1, 1, 1)
FLOAT_BITS = 23  # of a float weight: more than bf16 and f16 hold, so that these round


@dataclass
class Drawn:
    """A source of weights that draws what it is asked for: the same on every machine."""

    format: Format
    head: Format
    exact: bool = False
    seed: int = 0
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Philox with a key of its own, so that numpy's mixing of seeds has no part in it."""
        self._words = np.random.Philox(key=self.seed)

    def whole(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Whole numbers low..high, int64."""
        words = self._words.random_raw(math.prod(shape)) >> np.uint64(32)
        return (words % np.uint64(high - low + 1)).astype(np.int64).reshape(shape) + low

    def has(self, name: str) -> bool:
        """Nothing that a model may lack."""
        return False

    def vector(self, name: str, *shape: int) -> np.ndarray:
        """A bias about 0, or a norm's weights about 1: multiples of 2^-7."""
        about = 0 if name.endswith(".bias") else 128
        return np.ldexp((about + self.whole(-48, 48, *shape)).astype(np.float32), -7)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """One weight."""
        f = formats.get("bf16") if parts[0].exact else self.format
        return [self._weight(f, sum(part.M for part in parts), parts[0].K)]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """One weight of all."""
        M, K = sum(part.M for part in parts), parts[0].K
        weights = (self._weight(self.format, M, K) for _ in range(count))
        return [Experts.of(count, weights, name)]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> np.ndarray:
        """About 0."""
        return self.vector(f"{name}.bias", count, sum(part.M for part in parts))

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """The embedding or the head."""
        return self._weight(self.head, M, K)

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """That of an exact head."""
        return Shadow.of(table, 1) if self.exact else None

    def _weight(self, f: Format, M: int, K: int) -> PackedWeight:
        values = self._values(f, M, K)
        scales = self._scales(f, M, K, _exponent(values.astype(np.float64) * f.value, K))
        codes, held = codec.pack_codes(f, values), codec.packed_scale(f, scales, M, K)
        return PackedWeight(f, M, K, codes, held)

    def _values(self, f: Format, M: int, K: int) -> np.ndarray:
        """Any levels of a codebook; floats in (-1/8, 1/8); or powers of two."""
        if f.codebook is not None:
            return f.codebook.array[self.whole(0, len(f.codebook.levels) - 1, M, K)]
        if isinstance(f, FloatFormat):
            most = (1 << FLOAT_BITS) - 1
            return np.ldexp(self.whole(-most, most, M, K).astype(np.float32), -FLOAT_BITS - 3)
        assert isinstance(f, PowerFloats), f"{f}: tests/support/digests.py knows no values for it"
        signs = (2 * self.whole(0, 1, M, K) - 1).astype(np.float32)
        return np.ldexp(signs, self.whole(max(f.low, -3), min(f.high, 3), M, K).astype(np.int32))

    def _scales(self, f: Format, M: int, K: int, exponent: int) -> np.ndarray:
        """Scales from 2^exponent to nearly twice that, or powers of two next to it; minima that
        make the mean of all weights 0."""
        layout, shape = f.scales, f.scales.shape(M, K)
        if not layout.scaled:
            return np.ones((), np.float32)
        if isinstance(layout, SuperBlockScales):
            return self._super_scales(layout, shape, exponent)
        if isinstance(layout, MicroBlockScales):
            d = np.ldexp((16 + self.whole(0, 15, M, 1)).astype(np.float32), exponent - 5)
            codes = self.whole(48, 63, M, layout.n_groups(K))  # E4M3 from 1/2 to nearly 2
            return np.concatenate([d, E4M3.decoded(codes)], axis=1).reshape(shape)
        one = shape[:2]
        if layout.any_number:
            scales = np.ldexp((16 + self.whole(0, 15, *one)).astype(np.float32), exponent - 4)
        else:
            scales = np.ldexp(np.float32(1), exponent + self.whole(0, 1, *one).astype(np.int32))
        if isinstance(layout, GroupScales):
            scales = layout.number.nearest(scales)
        if not layout.minima:
            return scales.reshape(shape)
        assert f.codebook is not None
        middle = (f.codebook.low + f.codebook.high) // 2 * f.value
        return np.stack([scales, -middle * scales], axis=-1).astype(np.float32)

    def _super_scales(
        self, layout: SuperBlockScales, shape: tuple[int, ...], exponent: int
    ) -> np.ndarray:
        """Any whole numbers, and floats so that the products are about 2^exponent."""
        parts = np.zeros((*shape[:2], len(layout.ranges), shape[-1]), np.float32)
        for part, (low, high) in enumerate(layout.ranges):
            whole = self.whole(low, high, *shape[:2], shape[-1] - 1)
            size = exponent - (max(-low, high) // 2).bit_length()
            d = np.ldexp((16 + self.whole(0, 15, *shape[:2])).astype(np.float32), size - 4)
            parts[:, :, part, 1:], parts[:, :, part, 0] = whole, d
        if layout.minima:
            parts[:, :, 1, 0] *= -1
        return parts.reshape(shape)


def _exponent(values: np.ndarray, K: int) -> int:
    """e such that products with 2^e times values like these, float64 [M, K], keep the size of x."""
    some = np.square(values.ravel()[:4096])  # exact: of whole numbers of 24 bits, times a power
    return -(math.frexp(math.fsum(some) / len(some) * K)[1] // 2)


@dataclass(frozen=True)
class Case:
    """A model by what it is there for: an architecture, a format or a head; or a built-in one."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Its key in digests.json."""
        return f"{self.kind} {self.name}"

    @property
    def kv_dtypes(self) -> tuple[str, ...]:
        """What it is run with."""
        return ALL_KV if self.kind == "architecture" else FEW_KV

    @property
    def activations(self) -> str | None:
        """What it is run with."""
        return "int8x2" if self.kind == "two planes" else None

    def model(self) -> Model:
        """Made anew."""
        if self.kind == "built-in":
            return loading.load(BUILT_IN[self.name], cached=False)
        architecture, format, head = "LlamaForCausalLM", LAYERS_FORMAT, "bf16"
        if self.kind == "architecture":
            architecture = self.name
        elif self.kind in ("format", "two planes"):
            format = head = self.name  # embedding and head too: rows are looked up in tiles
        else:
            head = self.name
        source = Drawn(formats.get(format), formats.get(head_format(head, "bf16")), head == "exact")
        config = {**CONFIG, "architectures": [architecture], **DIGESTED.get(architecture, {})}
        return loading.from_weights(config, Path(str(self)), lambda _: source)


def cases() -> list[Case]:
    """All cases, by discovery: formats also with scales in rows and in groups."""
    found = [Case("built-in", name) for name in BUILT_IN]
    found += [Case("architecture", name) for name in models.architectures()]
    found += [Case("head", name) for name in HEADS]
    for name in formats.names():
        f = formats.get(name)
        found.append(Case("format", name))
        found += [Case("format", f"{name}:g64")] * f.takes_groups
    return found + [Case("two planes", name) for name in ("i4", "i8:g64", "q4_1", "q6_k")]


def digest(
    model: Model, isa: str, kv_dtype: str, threads: int = 1, activations: str | None = None
) -> str:
    """SHA-256 of the logits of `STEPS`, little-endian float32, on a unit."""
    engine = Engine(
        model, threads=threads, isa=isa, kv_dtype=kv_dtype, deterministic=True,
        activations=activations,
    )  # fmt: skip
    vocab = model.config.vocab_size
    drawn = Drawn(formats.get("f32"), formats.get("f32"), seed=1).whole(0, vocab - 1, STEPS[0])
    tokens, state, sha = drawn.tolist(), Sequence(), hashlib.sha256()
    for count in STEPS:
        tokens = (tokens * count)[:count]
        if model.config.bidirectional:  # each step is a text of its own
            state = Sequence()
        (logits,) = engine.step([(state, tokens, count)])
        one = logits.shape[1] == 1  # a cross-encoder's score
        if not np.isfinite(logits).all() or (np.ptp(logits[-1]) == 0 and not one):
            raise AssertionError(f"{isa}, {kv_dtype}: logits must be finite and differ")
        sha.update(logits.astype("<f4").tobytes())
        tokens = [int(logits[-1].argmax())]
    # An exact head leaves out what does not decide, and which rows that are is no promise.
    state = Sequence() if model.config.bidirectional else state
    (logits,) = engine.step([(state, tokens, 1)], [DecidingLogits(1)])
    best = int(logits[0].argmax())
    sha.update(struct.pack("<if", best, logits[0, best]))
    return sha.hexdigest()


def digests(case: Case, units: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """By KV type, then by those units that are asked for with it."""
    model = case.model()
    return {
        kv: {isa: digest(model, isa, kv, activations=case.activations) for isa in isas}
        for kv, isas in units.items()
    }


@cache
def committed() -> dict[str, dict[str, str]]:
    """By case, then by KV type."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def made(old: dict[str, dict[str, str]], replace: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """The new contents of digests.json; SystemExit if the units of this machine disagree."""
    for case in cases():
        key = str(case)
        if not replace and set(old.get(key, ())) == set(case.kv_dtypes):
            yield key, old[key]
            continue
        found = digests(case, dict.fromkeys(case.kv_dtypes, _native.isas()))
        for kv, by_isa in found.items():
            if len(set(by_isa.values())) > 1:
                sys.exit(f"{key}, {kv}: units must agree, but got {by_isa}")
        yield key, {kv: by_isa[_native.isas()[0]] for kv, by_isa in found.items()}


def main(arguments: list[str], file: Path = FILE) -> None:
    """Writes `file` again and prints the changed digests; SystemExit for other arguments."""
    if arguments not in (["--add"], ["--replace"]):
        sys.exit("usage: python tests/support/digests.py --add | --replace")
    old = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    new = dict(made(old, arguments == ["--replace"]))
    file.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for word, keys in (
        ("added", new.keys() - old.keys()),
        ("removed", old.keys() - new.keys()),
        ("changed", {key for key in new.keys() & old.keys() if new[key] != old[key]}),
    ):
        for key in sorted(keys):
            print(f"{word}: {key}")


if __name__ == "__main__":
    main(sys.argv[1:])
