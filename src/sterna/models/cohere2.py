"""Cohere 2 (Command R7B, Command A): Cohere's graph, three layers within a window for each without,
which has no rotations either. arXiv 2504.00698.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.models import cohere
from sterna.models.cohere import build as build
from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields

ARCHITECTURES = ("Cohere2ForCausalLM",)
DEFAULTS: dict[str, Any] = without(cohere.DEFAULTS, "use_qk_norm") | {
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
GGUF = {"cohere2": replace(cohere.GGUF["command-r"], architecture=ARCHITECTURES[0], period=4)}
PATTERN = 4  # every fourth layer has no window, unless the file has a pattern


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of Cohere's, and which layers have a window and rotations."""
    n, pattern = f.n_layers, f.count("sliding_window_pattern", PATTERN)
    types = f.items("layer_types", n, (FULL, SLIDING))
    types = types or [SLIDING if (i + 1) % pattern else FULL for i in range(n)]
    rotated = [int(kind == SLIDING) for kind in types]
    return {**cohere.complete(f), "layer_types": types, "no_rope_layers": rotated}
