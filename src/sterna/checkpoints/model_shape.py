"""What a model's memory and speed depend on besides its weights.

config.json says it, or the start of a GGUF file. The whole header has the vocabulary, some 10 MB;
the sizes of the layers come before it. So the first `START_BYTES` of a file on another machine tell
what its keys and values will take.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sterna import _native
from sterna.files.words import words

__all__ = [
    "START_BYTES",
    "UNKNOWN",
    "Shape",
    "memory_of",
    "shape_of_config",
    "shape_of_gguf",
]

START_BYTES = 1 << 18
#: Context that a need of memory is reckoned for, where none is asked for: a long chat.
CONTEXT = 8192
#: The interpreter, libraries, activations, and a share of the weights for what is made of them.
BASE_BYTES, SHARE = 256 << 20, 20
KV_DTYPE = "i16"

_MAX_SIZE = 1 << 24  # of a field; damaged ones are unknown
_STRING, _ARRAY = 8, 9
#: Letters of `struct` for the types of numbers.
_NUMBERS = {**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. context: positions that it was made for; kv_bytes: bytes of keys and values
    of a position, at most; expert_params: weights of all experts, of which a token reads the share
    `expert_share`."""

    context: int
    kv_bytes: int
    expert_params: int = 0
    expert_share: float = 1.0

    def tokens(self, asked: int | None) -> int:
        """Return the context that memory is reckoned for: the one asked for, or a long chat."""
        if type(asked) is int and asked > 0:  # others are refused where the model is opened
            return asked
        return min(self.context, CONTEXT) if self.context else CONTEXT

    def active_share(self, params: int) -> float:
        """Return which share of `params` weights a token reads."""
        idle = self.expert_params * (1 - self.expert_share)
        return 1 - min(idle / params, 0.99) if params else 1.0


UNKNOWN = Shape(0, 0)


def memory_of(weights: int, shape: Shape, context: int | None) -> int:
    """Return the bytes of memory that a model takes: weights, keys and values of a context, and a
    margin."""
    return weights + weights // SHARE + BASE_BYTES + shape.kv_bytes * shape.tokens(context)


def shape_of_gguf(start: bytes) -> Shape:
    """Read the sizes from the first bytes of a file; what they do not tell is 0."""
    fields = _fields(start)
    prefix = f"{fields.get('general.architecture', '')}."
    own = {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}
    return _shape(own, _GGUF)


def shape_of_config(config: Mapping[str, Any]) -> Shape:
    """Read the sizes from config.json, of a model with images those of its text."""
    text = config.get("text_config")
    return _shape({**config, **(text if isinstance(text, dict) else {})}, _CONFIG)


class _Names(NamedTuple):
    """The fields of a source; the first one that is there counts."""

    context: Sequence[str]
    layers: Sequence[str]
    hidden: Sequence[str]
    heads: Sequence[str]
    kv_heads: Sequence[str]
    head_dim: Sequence[str]
    value_dim: Sequence[str]
    every: Sequence[str]  # each how many layers one keeps keys and values
    experts: Sequence[str]
    used: Sequence[str]
    expert_size: Sequence[str]


_GGUF = _Names(
    words("context_length"),
    words("block_count"),
    words("embedding_length"),
    words("attention.head_count"),
    words("attention.head_count_kv attention.head_count"),
    words("attention.key_length"),
    words("attention.value_length attention.key_length"),
    words("full_attention_interval"),
    words("expert_count"),
    words("expert_used_count"),
    words("expert_feed_forward_length"),
)
_CONFIG = _Names(
    words("max_position_embeddings n_positions"),
    words("num_hidden_layers n_layer"),
    words("hidden_size n_embd"),
    words("num_attention_heads n_head"),
    words("num_key_value_heads num_attention_heads n_head"),
    words("head_dim"),
    words("head_dim"),
    words("full_attention_interval"),
    words("num_experts num_local_experts n_routed_experts"),
    words("num_experts_per_tok num_experts_per_token"),
    words("moe_intermediate_size intermediate_size"),
)


def _shape(fields: Mapping[str, Any], names: _Names) -> Shape:
    def size(keys: Sequence[str], default: int = 0) -> int:
        found = [v for key in keys if type(v := fields.get(key)) is int and 0 < v < _MAX_SIZE]
        return found[0] if found else default

    layers, heads, hidden = size(names.layers), size(names.heads), size(names.hidden)
    key_dim = size(names.head_dim, hidden // heads if heads else 0)
    dims = key_dim, size(names.value_dim, key_dim)
    of_layers = fields.get(names.kv_heads[0])
    if isinstance(of_layers, list):  # hybrids: 0 for a layer that has none
        kv_heads = sum(n for n in of_layers if type(n) is int and 0 < n < _MAX_SIZE)
    else:
        kv_heads = layers // size(names.every, 1) * size(names.kv_heads)
    per_head = sum(_native.kv_bytes(1, 1, dim, KV_DTYPE) for dim in dims if dim) // 2
    experts, used = size(names.experts), size(names.used)
    params = layers * experts * 3 * hidden * size(names.expert_size)
    share = min(used / experts, 1.0) if experts and used else 1.0
    return Shape(size(names.context), kv_heads * per_head, params, share)


def _fields(start: bytes) -> dict[str, Any]:
    """Read keys up to the end of the bytes: numbers, short texts and lists of whole numbers."""
    fields: dict[str, Any] = {}
    if start[:4] != b"GGUF":
        return fields
    at = 24  # magic, version, and the numbers of tensors and keys
    try:
        while at < len(start):
            key, at = _text(start, at)
            value, at = _value(start, at)
            fields[key] = value
    except (struct.error, ValueError):  # the end, within the vocabulary as a rule
        pass
    return fields


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise ValueError
    return data[at + 8 : end].decode(errors="replace"), end


def _value(data: bytes, at: int) -> tuple[Any, int]:
    (kind,) = struct.unpack_from("<I", data, at)
    if kind == _ARRAY:
        kind, count = struct.unpack_from("<IQ", data, at + 4)
        return _items(data, at + 16, kind, count)
    (value,), end = _items(data, at + 4, kind, 1)
    return value, end


def _items(data: bytes, at: int, kind: int, count: int) -> tuple[list[Any], int]:
    if count > len(data):  # each takes a byte at least
        raise ValueError
    if kind == _STRING:
        texts = []
        for _ in range(count):
            text, at = _text(data, at)
            texts.append(text)
        return texts, at
    if kind not in _NUMBERS:
        raise ValueError
    form = f"<{count}{_NUMBERS[kind]}"
    return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)
