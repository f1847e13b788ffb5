"""Gemma 3, its text: Gemma 2's graph with norms of the heads of q and k instead of the cap of
scores. Five layers have a window for each without; both kinds have rotations of their own.
arXiv 2503.19786.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import gemma2, towers
from sterna.models.config import FULL, SLIDING, TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import INPUT_NORMS, QK_NORMS, SOFT_CAPS, SWA_BASE
from sterna.models.layers import HeadNorms
from sterna.models.rotations import rotations_of
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3ForConditionalGeneration")
ACTIVATION = gemma2.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **gemma2.DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}  # fmt: skip
GGUF = {
    "gemma3": replace(
        gemma2.GGUF["gemma2"],
        architecture=ARCHITECTURES[0],
        modules={**gemma2.GGUF["gemma2"].modules, **QK_NORMS, **INPUT_NORMS},
        reads=(*SOFT_CAPS, SWA_BASE),
        period=6,
    )
}


PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, those that follow from others, and the rotations of both kinds of
    layers."""
    f = towers.text_fields(f)
    f.supported("attn_logit_softcapping", f.config.get("attn_logit_softcapping"), None)
    found: dict[str, Any] = {
        **f.config,
        "rope_parameters": rotations_of(
            f,
            {
                FULL: {"rope_theta": f.number("rope_theta")},
                SLIDING: {"rope_theta": f.number("rope_local_base_freq")},
            },
        ),
    }
    if f.config.get("layer_types") is None:
        n, pattern = f.n_layers, f.count("sliding_window_pattern")
        found["layer_types"] = [SLIDING if (i + 1) % pattern else FULL for i in range(n)]
    return found


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return gemma2.write(g, c, w, HeadNorms(plus_one=True))
