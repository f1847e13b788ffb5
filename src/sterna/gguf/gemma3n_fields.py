"""Fields of config.json of Gemma 3n, from the keys of its GGUF files."""

from __future__ import annotations

from typing import Any

import numpy as np

from sterna.gguf.file import GgufModel
from sterna.models.config import FULL, SLIDING
from sterna.models.gemma3n import DEVIATIONS

__all__ = ["gemma3n_fields"]


def gemma3n_fields(model: GgufModel, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the streams, rows, kinds and widths of layers; sizes without a key are tensors'."""
    m, n = model.metadata, fields["num_hidden_layers"]
    windowed = m.windowed(f"{name}.attention.sliding_window_pattern", n, 5)
    # Those of layers without a cutoff are -inf.
    scales = np.asarray(m.numbers(f"{name}.activation_sparsity_scale", n), np.float64)
    sizes = {
        field: model.tensors[tensor].shape[0]
        for field, tensor in (
            ("vocab_size_per_layer_input", "per_layer_token_embd.weight"),
            ("laurel_rank", "blk.0.laurel_l.weight"),
        )
        if tensor in model.tensors  # `build` misses it otherwise
    }
    swa = {"rope_theta": m.number(f"{name}.rope.freq_base_swa", 10000.0)}
    return {
        **sizes,
        "layer_types": [SLIDING if w else FULL for w in windowed],
        "intermediate_size": m.each(f"{name}.feed_forward_length", n),
        "num_kv_shared_layers": m.integer(f"{name}.attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": m.integer(f"{name}.embedding_length_per_layer_input"),
        "altup_num_inputs": m.integer(f"{name}.altup.num_inputs"),
        "altup_active_idx": m.integer(f"{name}.altup.active_idx"),
        "final_logit_softcapping": m.number(f"{name}.final_logit_softcapping", 0.0) or None,
        DEVIATIONS: [float(s) if np.isfinite(s) else None for s in scales],
        "rope_parameters": {
            SLIDING: swa,
            FULL: {"rope_theta": fields["rope_theta"], **fields["rope_parameters"]},
        },
    }
