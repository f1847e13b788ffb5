"""Cohere 2 with experts (North Mini Code): Cohere 2's graph, whose FFNs behind the first layers are
experts, and one that all tokens use.

    x = x + o(attention(q, k, v)) + (experts(norm(x)) + shared(norm(x))) / 2

Both sublayers read the same norm of x, an RMSNorm or a LayerNorm without a bias. The largest logits
choose experts; their shares are sigmoids, which may add up to 1, or a softmax of these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import Scoring, Value
from sterna.models import cohere, cohere2, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, SLIDING
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import DEEPSEEK_FFN, SWA_BASE, GgufArchitecture

ARCHITECTURES = ("Cohere2MoeForCausalLM",)
DEFAULTS: dict[str, Any] = (
    cohere2.DEFAULTS
    | {"head_dim": 128, "num_experts_per_tok": 2, "num_experts": 8, "num_shared_experts": 0}
    | {"shared_expert_combination_strategy": "average", "expert_selection_fn": "softmax"}
    | {"prefix_dense_sliding_window_pattern": 1, "norm_topk_prob": True}
    | {"prefix_dense_intermediate_size": None, "rms_norm_eps": None, "sliding_window_pattern": 4}
)
GGUF = {
    "cohere2moe": GgufArchitecture(
        ARCHITECTURES[0],
        modules={**DEEPSEEK_FFN, "input_layernorm": "attn_norm"},
        keys={"logit_scale": "logit_scale"},
        layer_norm=None,
        period=4,
        predicts=True,
        experts="expert_width",
        reads=("expert_weights_norm", "expert_gating_func", SWA_BASE),
    )
}
ALIASES = moe.ALIASES
SKIPPED = moe.SKIPPED
WIDTH = "expert_width"  # a field of ours
RMS = "rms_norms"  # a field of ours
NAMES = replace(moe.DEEPSEEK_NAMES, bias="")


def complete(f: Fields) -> dict[str, Any]:
    """Return kinds of layers and norms, and the widths of dense FFNs and of experts."""
    dense, n = moe.dense_first(f, 0), f.n_layers
    types = f.items("layer_types", n, (FULL, SLIDING))
    if types is None:
        first, rest = (f.count(f"{name}sliding_window_pattern") for name in ("prefix_dense_", ""))
        types = [SLIDING if (i + 1) % first else FULL for i in range(dense)]
        types += [SLIDING if (i + 1) % rest else FULL for i in range(n - dense)]
    forced = dense if f.count("prefix_dense_sliding_window_pattern") == 1 else 0
    experts = f.count(WIDTH, f.count("intermediate_size"))
    rms = f.config.get("rms_norm_eps") is not None
    return {
        "layer_types": types,
        "no_rope_layers": [int(kind == SLIDING or i < forced) for i, kind in enumerate(types)],
        "first_k_dense_replace": dense,
        WIDTH: experts,
        "intermediate_size": f.count("prefix_dense_intermediate_size", experts),
        RMS: rms,
        "rms_norm_eps": f.number("rms_norm_eps" if rms else "layer_norm_eps"),
        "rope_interleaved": True,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    experts = moe.ExpertFields.of(f, WIDTH)
    chosen = f.config["expert_selection_fn"]
    if chosen not in ("softmax", "sigmoid"):
        f.supported("expert_selection_fn", chosen, "softmax or sigmoid")
    strategy = f.config["shared_expert_combination_strategy"]
    if strategy not in ("average", "sum"):
        f.supported("shared_expert_combination_strategy", strategy, "average or sum")
    shared = moe.optional_count(f, "num_shared_experts")
    experts = replace(
        experts,
        of_all=chosen == "sigmoid" and not f.flag("norm_topk_prob"),
        shared=experts.width * shared,
        scoring=Scoring(chosen),
        dense=frozenset(range(moe.optional_count(f, "first_k_dense_replace", m.config.n_layers))),
    )
    factor = 0.5 if shared and strategy == "average" else 1.0
    expert_ffn = moe.ffn(replace(experts, dense=frozenset()), names=NAMES, factor=factor)

    def ffn(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
        if layer in experts.dense:
            return m.feed_forward(h, x, name)
        return expert_ffn(m, h, x, layer, name)

    return cohere.build(m, ffn=ffn, rms=f.flag(RMS))
