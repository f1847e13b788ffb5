"""What `config.json` says of a decoder-only transformer, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sterna import _native
from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.files.jsonfile import json_kind
from sterna.graph import Rope

__all__ = ["LINEAR_NORM", "TransformerConfig"]

MAX_SIZE = (
    1 << 24
)  # of any width, count of layers or vocabulary: far above any model, far below overflow
#: A field of ours, for quantization_config's use_rms_norm and rms_norm_eps: a packed directory has
#: a quantization_config of its own.
LINEAR_NORM = "linear_norm_eps"
MAX_HEAD_DIM = 1 << 14  # its rotations are listed before a tensor's shape can contradict it


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes in the words of config.json; `file` is named in errors."""

    file: Path
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    tied: bool
    activation: str
    attention_bias: bool  # of q, k, v and o
    mlp_bias: bool  # of gate, up and down
    linear_norm_eps: float  # of an RMSNorm before each linear layer; 0: there is none
    rope: Rope

    @classmethod
    def from_json(cls, config: dict[str, Any], file: Path, activation: str) -> TransformerConfig:
        """Reads the fields; ModelFormatError names a wrong one, UnsupportedModelError a feature
        that Sterna does not have.

        activation: the hidden_act that the architecture must have ("relu2" or "silu").
        """
        fields = _Fields(config, file)
        heads = fields.count("num_attention_heads")
        kv_heads = fields.count("num_key_value_heads", heads)
        hidden = fields.count("hidden_size")
        head_dim = fields.count("head_dim", hidden // heads, MAX_HEAD_DIM)
        if heads % kv_heads:
            fields.fail(
                "num_key_value_heads", f"a divisor of num_attention_heads={heads}", kv_heads
            )
        architecture = str((config.get("architectures") or ["?"])[0])
        fields.supported("hidden_act", config.get("hidden_act", activation), activation)
        fields.supported("layer_sharing", fields.flag("layer_sharing"), False)
        if head_dim % 2:
            fields.fail("head_dim", "an even number, as rotations are of pairs", head_dim)
        context = fields.count("max_position_embeddings", 2048)
        window = config.get("sliding_window")
        if type(window) is int and 0 < window < context and config.get("use_sliding_window", True):
            context = window  # within one window, sliding attention is full attention
        return cls(
            file=file,
            architecture=architecture,
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size"),
            n_layers=fields.count("num_hidden_layers"),
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            max_position=context,
            tied=bool(config.get("tie_word_embeddings") or config.get("share_embedding")),
            activation=activation,
            attention_bias=fields.flag("attention_bias"),
            mlp_bias=fields.flag("mlp_bias"),
            linear_norm_eps=fields.number(LINEAR_NORM) if LINEAR_NORM in config else 0.0,
            rope=Rope(heads, kv_heads, head_dim, _frequencies(fields, head_dim)),
        )


class _Fields:
    """Typed access to a JSON object; errors name the file and the field."""

    def __init__(self, config: dict[str, Any], file: Path) -> None:
        self.config, self.file = config, file

    def fail(self, field: str, expected: str, got: object) -> None:
        plain = isinstance(got, (int, float)) and not isinstance(got, bool)
        value = got if plain else f"{json_kind(got)}, {shown(got)}" if got is not None else "none"
        raise ModelFormatError(file=self.file, field=field, expected=expected, got=value)

    def count(self, field: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            self.fail(field, f"a whole number in 1..{most}", value)
        assert isinstance(value, int)
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(field, "a positive number", value)
        assert isinstance(value, (int, float))
        if not 0 < value < 1e30:  # NaN fails too
            self.fail(field, "a positive number", value)
        return float(value)

    def flag(self, field: str) -> bool:
        value = self.config.get(field)
        if not isinstance(value, bool | None):
            self.fail(field, "true or false", value)
        return bool(value)

    def numbers(self, field: str, count: int) -> list[float]:
        """So many positive numbers; ones where the field is absent."""
        values = self.config.get(field)
        if values is None:
            return [1.0] * count
        expected = f"a list of {count} positive numbers"
        if not isinstance(values, list) or len(values) != count:
            self.fail(field, expected, values)
        return [_Fields({field: v}, self.file).number(field) for v in values]

    def supported(self, field: str, value: object, wanted: object) -> None:
        if value != wanted:
            raise UnsupportedModelError(
                f"{self.file}: {field} must be {shown(wanted)} for this architecture, but got "
                f"{shown(value)}; Sterna does not run this variant"
            )


def _frequencies(fields: _Fields, head_dim: int) -> tuple[float, ...]:
    """Inverse frequencies of the rotary embedding, with the scaling that config.json asks for.

    `rope_factors` [head_dim / 2] is a field of ours: numbers to divide them by, as GGUF stores
    Llama 3's scaling.
    """
    config = fields.config
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        fields.fail("rope_parameters", "an object", parameters)
    for name, value in parameters.items():  # such as those of "sliding_attention" alone
        if isinstance(value, dict):
            raise UnsupportedModelError(
                f"{fields.file}: rope_parameters must be one set for all layers, but got one "
                f"for {shown(name)}; Sterna does not run this variant"
            )
    rope = _Fields({**config, **parameters}, fields.file)
    partial = rope.config.get("partial_rotary_factor")
    if partial is not None:
        rope.supported("partial_rotary_factor", partial, 1.0)
    base = _native.inverse_frequencies(rope.number("rope_theta", 10000.0), head_dim)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "linear":
        base = [float(np.float32(f / rope.number("factor"))) for f in base]
    elif kind == "llama3":
        base = [_llama3(f, rope) for f in base]
    elif kind != "default":
        raise UnsupportedModelError(
            f"{fields.file}: rope_type must be default, linear or llama3, but got {shown(kind)}; "
            "Sterna does not run this scaling of the context"
        )
    factors = fields.numbers("rope_factors", head_dim // 2)
    return tuple(float(np.float32(f / d)) for f, d in zip(base, factors, strict=True))


def _llama3(frequency: float, rope: _Fields) -> float:
    """Llama 3.1's scaling: long wavelengths are divided by `factor`, middle ones are blended."""
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        rope.fail("high_freq_factor", f"more than low_freq_factor={low}", high)
    old_context = rope.number("original_max_position_embeddings")
    wavelength = 2 * math.pi / frequency
    if wavelength < old_context / high:
        return frequency
    if wavelength > old_context / low:
        return float(np.float32(frequency / factor))
    smooth = (old_context / wavelength - low) / (high - low)
    return float(np.float32((1 - smooth) * frequency / factor + smooth * frequency))
