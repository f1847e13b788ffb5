"""Rows of the Gemma families: Gemma 1 to 4, and 3n."""

from __future__ import annotations

import math

from model_configs.common import FULL, GEMMA4, SLIDING, Saved

__all__ = ["MODELS"]

_GEMMA3N = {
    "head_dim": 24, "sliding_window": 20, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 250, "laurel_rank": 12, "num_kv_shared_layers": 2,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING], "pad_token_id": 0,
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.7],
}  # fmt: skip
_GEMMA4_SHARED = {
    **GEMMA4, "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_hidden_layers": 6, "num_kv_shared_layers": 2,
}  # fmt: skip
MODELS: dict[str, Saved] = {
    "gemma2": Saved("Gemma2ForCausalLM", {"head_dim": 24, "sliding_window": 20,
                                          "query_pre_attn_scalar": 24}),
    "gemma2-caps": Saved(
        "Gemma2ForCausalLM",
        {
            "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2-layer-types": Saved(
        "Gemma2ForCausalLM",
        {
            "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24,
            "layer_types": [SLIDING, SLIDING, FULL, FULL, SLIDING],
        },
        unsaid=True,
    ),
    "gemma3": Saved(
        "Gemma3ForCausalLM",
        {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "gemma3-linear": Saved(
        "Gemma3ForCausalLM",
        {
            "head_dim": 16, "sliding_window": 20, "query_pre_attn_scalar": 16,
            "num_hidden_layers": 7, "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                SLIDING: {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "gemma3-layer-types": Saved(
        "Gemma3ForCausalLM",
        {
            "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24,
            "layer_types": [SLIDING, FULL, FULL, SLIDING, SLIDING],
        },
        unsaid=True,
    ),
    "gemma4": Saved("Gemma4ForCausalLM", GEMMA4),
    "gemma4-shared": Saved(
        "Gemma4ForCausalLM", {**_GEMMA4_SHARED, "use_double_wide_mlp": True}
    ),
    "gemma4-keys": Saved(
        "Gemma4ForCausalLM",
        {
            **GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0, "final_logit_softcapping": 2.0,
        },
    ),
    "gemma4-keys-shared": Saved(
        "Gemma4ForCausalLM",
        {**_GEMMA4_SHARED, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    ),
    "gemma4-experts": Saved(
        "Gemma4ForCausalLM",
        {
            **GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 6,
            "top_k_experts": 2, "moe_intermediate_size": 32,
        },
    ),
    # Layers' numbers of two digits, which transformers pads with zeros.
    "gemma4-twelve": Saved(
        "Gemma4ForCausalLM",
        {
            **GEMMA4, "num_hidden_layers": 12, "layer_types": None,
            "hidden_size_per_layer_input": 0,
        },
    ),
    # Files have rows of zeros for tokens behind the second table.
    "gemma3n": Saved("Gemma3nForCausalLM", {**_GEMMA3N, "vocab_size_per_layer_input": 256}),
    "gemma3n-unscaled": Saved(
        "Gemma3nForCausalLM", {**_GEMMA3N, "altup_correct_scale": False}, unsaid=True
    ),
    "gemma3n-plain": Saved(
        "Gemma3nForCausalLM",
        {
            **_GEMMA3N, "num_kv_shared_layers": 0, "altup_active_idx": 1, "altup_num_inputs": 3,
            "vocab_size_per_layer_input": 272, "intermediate_size": [96, 64, 96, 128, 96],
            "final_logit_softcapping": 2.0, "rms_norm_eps": 1e-2, "tie_word_embeddings": False,
        },
        converted=False,
        gguf=(
            "gemma3n",
            {
                "altup.num_inputs": 3, "altup.active_idx": 1, "rope.freq_base": 1e6,
                "embedding_length_per_layer_input": 16, "attention.shared_kv_layers": 0,
                "activation_sparsity_scale": [
                    1.2815515995025635, 0.0, -math.inf, -math.inf, 0.524400532245636
                ],
                "attention.sliding_window": 20, "final_logit_softcapping": 2.0,
                "attention.sliding_window_pattern": [True, False, True, False, True],
                "feed_forward_length": [96, 64, 96, 128, 96],
                "attention.layer_norm_rms_epsilon": 1e-2,
            },
        ),
    ),
    "gemma": Saved("GemmaForCausalLM", {"head_dim": 24}),
    "gemma-bias": Saved("GemmaForCausalLM", {"head_dim": 16, "attention_bias": True}, unsaid=True),
}  # fmt: skip
