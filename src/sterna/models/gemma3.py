"""Gemma 3, its text: Gemma 2's graph with norms of the heads of q and k in place of the cap of
scores, five layers within a window for each without, and rotations of their own for either.
arXiv 2503.19786.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Graph, Value
from sterna.models import gemma2
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.fields import Fields
from sterna.models.layers import HeadNorms
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3TextModel")
ACTIVATION = gemma2.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS = {
    **gemma2.DEFAULTS,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "max_position_embeddings": 131072,
}


def complete(f: Fields) -> dict[str, Any]:
    """The fields that follow from others, and the rotations of both kinds of layers.

    Files have rope_theta, rope_scaling and rope_local_base_freq, or rope_parameters of either kind.
    """
    f.supported("attn_logit_softcapping", f.config.get("attn_logit_softcapping"), None)
    given = Fields(f.mapping("rope_parameters"), f.file)
    rotations = {
        FULL: {
            "rope_theta": f.number("rope_theta", 1e6),
            **f.mapping("rope_scaling"),
            **given.mapping(FULL),
        },
        SLIDING: {
            "rope_theta": f.number("rope_local_base_freq", 10000.0),
            **given.mapping(SLIDING),
        },
    }
    found: dict[str, Any] = {"rope_parameters": rotations}
    if f.config.get("layer_types") is None:
        n, pattern = f.n_layers, f.count("sliding_window_pattern", 6)
        found["layer_types"] = [SLIDING if (i + 1) % pattern else FULL for i in range(n)]
    return found


def build(g: Graph, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return gemma2.write(g, c, w, HeadNorms())
