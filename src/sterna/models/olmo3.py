"""OLMo 3: OLMo 2's graph, three layers within a window for each without. arXiv 2512.13961.

Where a file has longer contexts, rope_scaling is of the layers without a window alone.
"""

from __future__ import annotations

from typing import Any

from sterna.models import olmo2
from sterna.models.config import FULL, SLIDING
from sterna.models.fields import Fields

ARCHITECTURES = ("Olmo3ForCausalLM",)
ACTIVATION = olmo2.ACTIVATION
TERNARY = olmo2.TERNARY
DEFAULTS = {**olmo2.DEFAULTS, "rope_theta": 500000.0, "sliding_window": 4096}
build = olmo2.build


def complete(f: Fields) -> dict[str, Any]:
    """Which layers have a window, and the rotations of both kinds."""
    given = Fields(f.mapping("rope_parameters"), f.file)
    theta = {"rope_theta": f.number("rope_theta")}
    found: dict[str, Any] = {
        "rope_parameters": {
            SLIDING: {**theta, **given.mapping(SLIDING)},
            FULL: {**theta, **f.mapping("rope_scaling"), **given.mapping(FULL)},
        }
    }
    if f.config.get("layer_types") is None:
        found["layer_types"] = [FULL if i % 4 == 3 else SLIDING for i in range(f.n_layers)]
    return found
