"""Qwen2 and Qwen2.5: Llama's graph with biases of q, k and v. arXiv 2407.10671.

x = x + o(attention(rope(q + b_q, k + b_k), v + b_v));   x = x + down(silu(gate) * up)
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions

ARCHITECTURES = ("Qwen2ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"rms_norm_eps": 1e-6, "vocab_size": 151936, "intermediate_size": 22016}
    | {"num_key_value_heads": 32, "max_position_embeddings": 32768, "use_sliding_window": False}
    | {"sliding_window": 4096, "max_window_layers": 28}
)
GGUF = {"qwen2": GgufArchitecture(ARCHITECTURES[0], written=True)}
# Keys may have biases of hundreds next to values of one: 13 bits for a vector are too few.
KV_DTYPE = "f16"


def complete(f: Fields) -> dict[str, Any]:
    """Return windows: none in the first max_window_layers layers, one in others if in use."""
    if not f.flag("use_sliding_window"):
        return {"sliding_window": None}
    if f.config.get("layer_types") is not None or f.config.get("sliding_window") is None:
        return {}
    first = f.count("max_window_layers") if f.config["max_window_layers"] != 0 else 0
    return {"layer_types": [SLIDING if i >= first else FULL for i in range(f.n_layers)]}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return llama.build(m, attention=AttentionOptions(bias=True))
