"""EXAONE 4: OLMo 2's graph with norms of single heads; layers without a window have no rotations.
arXiv 2507.11407.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, olmo2
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ADDS, LINEARS, QK_NORMS, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm

ARCHITECTURES = ("Exaone4ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32}
    | {"rms_norm_eps": 1e-5, "sliding_window": 4096, "sliding_window_pattern": 4}
)
GGUF = {"exaone4": GgufArchitecture(ARCHITECTURES[0], modules=LINEARS | QK_NORMS | ADDS, period=4)}


def complete(f: Fields) -> dict[str, Any]:
    """Return which layers have a window, and rotations; without windows all layers have these."""
    n = f.n_layers
    if f.config.get("sliding_window") is None:
        return {"layer_types": None}
    types = f.items("layer_types", n, (FULL, SLIDING))
    if types is None:
        pattern = f.count("sliding_window_pattern")
        types = [SLIDING if (i + 1) % pattern else FULL for i in range(n)]
    return {"layer_types": types, "no_rope_layers": [int(kind == SLIDING) for kind in types]}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(qk_norm=QKNorm())
    return llama.build(m, norms=olmo2.NORMS, attention=attention)
