"""SmolLM3: Llama's graph, every fourth layer without rotations (arXiv 2501.18795)."""

from __future__ import annotations

from typing import Any

from sterna.models import llama
from sterna.models.config import FULL, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.llama import build as build

ARCHITECTURES = ("SmolLM3ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36}
    | {"num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768}
    | {"rope_theta": 2e6, "tie_word_embeddings": True, "use_sliding_window": False}
    | {"sliding_window": None, "no_rope_layer_interval": 4}
)
GGUF = {"smollm3": GgufArchitecture(ARCHITECTURES[0], permuted=True)}


def complete(f: Fields) -> dict[str, Any]:
    """Which layers have rotations; the others have the window, if there is one."""
    n, interval = f.n_layers, f.count("no_rope_layer_interval")
    rotated = f.items("no_rope_layers", n, (0, 1))
    rotated = rotated or [int((i + 1) % interval != 0) for i in range(n)]
    windowed = f.flag("use_sliding_window") and f.config.get("sliding_window") is not None
    types = f.config.get("layer_types")
    types = types or [SLIDING if windowed and not rotates else FULL for rotates in rotated]
    return {"no_rope_layers": rotated, "layer_types": types}
