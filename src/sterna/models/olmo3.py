"""OLMo 3: OLMo 2's graph; three layers have a window for each without. arXiv 2512.13961.

A scaling for longer contexts applies only to the layers without a window.
"""

from __future__ import annotations

from typing import Any

from sterna.models import olmo2
from sterna.models.config import FULL, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.olmo2 import build as build
from sterna.models.rope import rotations_of

ARCHITECTURES = ("Olmo3ForCausalLM",)
DEFAULTS: dict[str, Any] = olmo2.DEFAULTS | {"rope_theta": 500000.0, "sliding_window": 4096}


def complete(f: Fields) -> dict[str, Any]:
    """Which layers have a window, and the rotations of both kinds."""
    theta = {"rope_theta": f.number("rope_theta")}
    derived: dict[str, Any] = {"rope_parameters": rotations_of(f, {SLIDING: theta, FULL: theta})}
    if f.config.get("layer_types") is None:
        derived["layer_types"] = [FULL if i % 4 == 3 else SLIDING for i in range(f.n_layers)]
    return derived
