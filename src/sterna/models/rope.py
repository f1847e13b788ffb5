"""Rotary embeddings (RoPE) from config.json: their base and the scaling for longer contexts.

Scalings are those of transformers (modeling_rope_utils), which is the reference of the tests.
Logarithms are the core's own, since libm's may differ between machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import UnsupportedModelError, shown
from sterna.graph import Rotary
from sterna.models.config_fields import MAX_SIZE, Fields

__all__ = [
    "ORIGINAL",
    "Yarn",
    "default_attention_factor",
    "extended_context",
    "growth_of",
    "partly_rotated",
    "rotary_of",
    "rotated_part",
    "rotations_of",
    "scaling_kind",
    "yarn_of",
]

ORIGINAL = "original_max_position_embeddings"
BETA_FAST, BETA_SLOW = 32.0, 1.0  # YaRN's, where a file leaves them out (arXiv 2309.00071)
F64 = npt.NDArray[np.float64]


def rotary_of(fields: Fields, parameters: dict[str, Any], rotary_dim: int) -> Rotary:
    """Return the rotations of the first `rotary_dim` values of a head.

    parameters: rope_parameters, of a kind of layers. `rope_factors` [rotary_dim / 2] is a field of
    ours: numbers to divide frequencies by, as GGUF stores Llama 3's scaling.
    """
    rope = _Rope(fields, parameters, rotary_dim)
    kind = scaling_kind(parameters)
    partial = rope.config.get("partial_rotary_factor")
    if partial is not None and kind != "proportional":
        rope.supported("partial_rotary_factor", partial, 1.0)
    if kind not in _SCALINGS:
        raise UnsupportedModelError(
            f"{fields.file}: rope_type must be one of {', '.join(_SCALINGS)}, but got "
            f"{shown(kind)}; Sterna does not run this scaling of the context"
        )
    rotary = _SCALINGS[kind](rope)
    factors = fields.numbers("rope_factors", rotary_dim // 2)
    return replace(rotary, inverse_frequencies=_rounded(rotary.inverse_frequencies, factors))


def rotations_of(fields: Fields, kinds: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return rope_parameters of each kind of layers; the file's win over defaults in `kinds`.

    Parameters without a kind are of the layers without a window.
    """
    parameters = fields.mapping("rope_parameters")
    if not any(kind in parameters for kind in kinds):
        parameters = {"full_attention": parameters}
    inner = fields.having(parameters)
    return {kind: {**defaults, **inner.mapping(kind)} for kind, defaults in kinds.items()}


def rotated_part(
    fields: Fields, parameters: dict[str, Any], head_dim: int
) -> tuple[int, dict[str, Any]]:
    """Count a head's rotated features; also return `parameters` without partial_rotary_factor.

    That field is in `parameters` or in config.json itself.
    """
    name = "partial_rotary_factor"
    rest = {key: value for key, value in parameters.items() if key != name}
    holder = fields if parameters.get(name) is None else fields.having(parameters)
    part = holder.number(name)
    rotary_dim = fields.count("rotary_dim", max(1, int(head_dim * min(part, 2))))
    if rotary_dim % 2 or rotary_dim > head_dim:
        rule = f"a part of head_dim={head_dim} that is an even number of features"
        holder.fail(name, rule, rotary_dim / head_dim)
    return rotary_dim, rest


def partly_rotated(fields: Fields) -> dict[str, Any]:
    """Return the fields that say which part of each head is rotated, in the words of `config`."""
    width = fields.count("hidden_size") // fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", width)
    rotary_dim, rope = rotated_part(fields, fields.mapping("rope_parameters"), head_dim)
    return {"rope_parameters": rope, "rotary_dim": rotary_dim, "partial_rotary_factor": None}


def growth_of(fields: Fields, parameters: dict[str, Any]) -> tuple[float, ...]:
    """Return `Attention.growth`, which llama_4_scaling_beta in rope_parameters asks for."""
    name = "llama_4_scaling_beta"
    if not parameters.get(name):
        return ()
    rope = _Rope(fields, parameters, 2)
    return rope.factor(name), float(rope.original)


def scaling_kind(parameters: dict[str, Any]) -> Any:
    """Return the scaling for longer contexts."""
    return parameters.get("rope_type", "default")


def extended_context(fields: Fields) -> int:
    """Return a model's positions: max_position_embeddings, or YaRN's extension of the original.

    Files extended by hand, as Qwen3's makers describe it, keep the old max_position_embeddings.
    """
    context = fields.count("max_position_embeddings")
    parameters = fields.mapping("rope_parameters")
    parameters = parameters.get("full_attention") or parameters
    if scaling_kind(parameters) != "yarn" or parameters.get(ORIGINAL) is None:
        return context
    rope = _Rope(fields, parameters, 2)
    return max(context, min(int(rope.original * rope.extension), MAX_SIZE))


def default_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's factor of cosines and sines (arXiv 2309.00071, section 3.4)."""
    return 0.1 * mscale * _native.log(factor) + 1.0 if factor > 1 else 1.0


class _Rope(Fields):
    """The fields of rotary embeddings: those of `parameters`, else of config.json itself."""

    def __init__(self, fields: Fields, parameters: dict[str, Any], dim: int) -> None:
        super().__init__({**fields.config, **parameters}, fields.file, fields.names)
        self.outer, self.parameters, self.dim = fields, parameters, dim
        self.theta = self.number("rope_theta", 10000.0)

    @property
    def base(self) -> F64:
        """Inverse frequencies without any scaling, [dim / 2]."""
        return np.asarray(_native.inverse_frequencies(self.theta, self.dim), np.float64)

    @property
    def original(self) -> int:
        """Positions that the model was trained for at first."""
        outer = self.outer.config.get(ORIGINAL)
        if outer is not None and outer != self.config[ORIGINAL]:
            self.fail(
                ORIGINAL, f"one number, but {outer} next to rope_parameters", self.config[ORIGINAL]
            )
        return self.count(ORIGINAL, self.outer.count("max_position_embeddings"))

    @property
    def extension(self) -> float:
        """The factor by which the context became longer, at least 1."""
        if self.config.get("factor") is None:
            return max(1.0, self.outer.count("max_position_embeddings") / self.original)
        factor = self.factor("factor")
        if factor < 1:
            self.fail("factor", "at least 1", factor)
        return factor

    def optional(self, field: str) -> float | None:
        """Return a positive number; None if the field is absent or null."""
        return None if self.config.get(field) is None else self.factor(field)


def _rounded(frequencies: Any, factors: Any = 1.0) -> tuple[float, ...]:
    """Divide frequencies by factors, rounded to float32 once."""
    quotients = np.asarray(frequencies, np.float64) / np.asarray(factors, np.float64)
    return tuple(quotients.astype(np.float32).tolist())


def _default(rope: _Rope) -> Rotary:
    return Rotary(_rounded(rope.base))


def _dynamic(rope: _Rope) -> Rotary:
    """NTK scaling by the length of a text: plain rotations up to max_position_embeddings, where
    `TransformerConfig` ends the context. Beyond, each length would rotate all of its keys anew."""
    rope.number("factor")
    rope.supported("alpha", rope.config.get("alpha"), None)  # Hunyuan's, which that family reads
    return _default(rope)


def _linear(rope: _Rope) -> Rotary:
    return Rotary(_rounded(rope.base, rope.number("factor")))


def _llama3(rope: _Rope) -> Rotary:
    """Llama 3.1's scaling: long wavelengths are divided by `factor`, middle ones are blended.

    Llama 4's has no middle ones: both of its limits are the same.
    """
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low <= high:
        rope.fail("high_freq_factor", f"at least low_freq_factor={low}", high)
    old_context = rope.number(ORIGINAL)

    def scaled(frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < old_context / high:
            return frequency
        if wavelength > old_context / low:
            return frequency / factor
        if low == high:
            return frequency
        smooth = (old_context / wavelength - low) / (high - low)
        return (1 - smooth) * frequency / factor + smooth * frequency

    return Rotary(_rounded([scaled(frequency) for frequency in rope.base.tolist()]))


@dataclass(frozen=True)
class Yarn:
    """YaRN (arXiv 2309.00071): pairs that turn often in the original context keep their frequency.
    Slow pairs are divided by `factor`. A ramp over the pairs lies between.

    original: positions of that context. beta_fast, beta_slow: turns where the ramp begins and ends.
    truncate: the ramp begins and ends at whole pairs. attention_factor: multiplies cosines and
    sines.
    """

    factor: float
    original: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float

    def ends(self, dim: int, theta: float) -> tuple[float, float]:
        """Where the ramp over dim / 2 pairs begins and ends."""
        turns = (self.beta_fast, self.beta_slow)
        first, last = (
            dim * _native.log(self.original / (n * 2 * math.pi)) / (2 * _native.log(theta))
            for n in turns
        )
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        return max(first, 0), min(last, dim - 1)


def yarn_of(fields: Fields, parameters: dict[str, Any]) -> Yarn:
    """Read the YaRN of rope_parameters; ModelFormatError names a field."""
    rope = _Rope(fields, parameters, 2)
    factor = rope.extension
    fast, slow = rope.optional("beta_fast") or BETA_FAST, rope.optional("beta_slow") or BETA_SLOW
    if not slow < fast:
        rope.fail("beta_fast", f"more than beta_slow={slow}", fast)
    if rope.theta <= 1:
        rope.fail("rope_theta", "more than 1 for YaRN", rope.theta)
    if not slow * 2 * math.pi < rope.original:
        rope.fail(ORIGINAL, f"more than {slow * 2 * math.pi}, beta_slow turns", rope.original)
    truncate = rope.flag("truncate") or "truncate" not in rope.config
    return Yarn(factor, rope.original, fast, slow, truncate, _yarn_attention_factor(rope, factor))


def _yarn_attention_factor(rope: _Rope, factor: float) -> float:
    """attention_factor, else the quotient of the factors of mscale and mscale_all_dim, else the
    paper's.

    attention_factor_times, a field of ours: a multiple of the paper's factor, as in GGUF.
    """
    attention_factor = rope.optional("attention_factor")
    if attention_factor is not None:
        return attention_factor
    if all(rope.config.get(name) for name in ("mscale", "mscale_all_dim")):
        one, all_dim = (rope.factor(name) for name in ("mscale", "mscale_all_dim"))
        return default_attention_factor(factor, one) / default_attention_factor(factor, all_dim)
    return default_attention_factor(factor) * (rope.optional("attention_factor_times") or 1.0)


def _yarn(rope: _Rope) -> Rotary:
    yarn = yarn_of(rope.outer, rope.parameters)
    first, last = yarn.ends(rope.dim, rope.theta)
    if not first <= last:
        rope.fail("beta_fast", f"turns that some of {rope.dim // 2} pairs make", yarn.beta_fast)
    ramp = (np.arange(rope.dim // 2) - first) / (last - first or 0.001)
    share = np.clip(ramp, 0, 1)  # of a frequency that is divided
    mixed = rope.base / yarn.factor * share + rope.base * (1 - share)
    return Rotary(_rounded(mixed), factor=yarn.attention_factor)


def _longrope(rope: _Rope) -> Rotary:
    """LongRoPE (arXiv 2402.13753): each pair is divided by its short_factor in the original context
    and by its long_factor beyond. `Rotary.long` says which one a sequence has."""
    factor, original = rope.extension, rope.original
    for name in ("short_factor", "long_factor"):
        if rope.config.get(name) is None:
            rope.fail(name, f"a list of {rope.dim // 2} positive numbers", None)
    short, long = (rope.numbers(name, rope.dim // 2) for name in ("short_factor", "long_factor"))
    attention_factor = rope.optional("attention_factor")
    if attention_factor is None:
        if original < 2:
            rope.fail(ORIGINAL, "at least 2", original)
        attention_factor = math.sqrt(1 + _native.log(factor) / _native.log(original))
    return Rotary(
        _rounded(rope.base, short),
        factor=attention_factor,
        long=_rounded(rope.base, long),
        short_context=original,
    )


def _proportional(rope: _Rope) -> Rotary:
    """Gemma 4's scaling: the first partial_rotary_factor of the pairs turn as if the whole head
    did. The others do not turn."""
    part = rope.number("partial_rotary_factor", 1.0)
    turning = int(min(part, 2) * rope.dim // 2)
    if not 1 <= turning <= rope.dim // 2:
        rule = f"a part of a head of {rope.dim} that has pairs to rotate"
        rope.fail("partial_rotary_factor", rule, part)
    turns = np.arange(rope.dim // 2) < turning
    return Rotary(_rounded(np.where(turns, rope.base, 0.0), rope.factor("factor", 1.0)))


_SCALINGS = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
    "dynamic": _dynamic,
}
