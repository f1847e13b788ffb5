"""Mixtures of experts."""

from __future__ import annotations

from model_configs.common import (
    FULL,
    LATENT,
    LATENT_KEYS,
    LLAMA3,
    MOE,
    SLIDING,
    Saved,
    longrope,
    yarn,
)

__all__ = ["MODELS"]

_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_INDEXED = {"index_n_heads": 8, "index_head_dim": 16, "index_topk": 20}
_ERNIE = {"moe_num_experts": 6, "moe_k": 2}
MODELS: dict[str, Saved] = {
    "mixtral": Saved("MixtralForCausalLM", {"num_local_experts": 6}),
    "mixtral-window": Saved(
        "MixtralForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 20, "head_dim": 24},
        unsaid=True,
    ),
    "qwen3-moe": Saved("Qwen3MoeForCausalLM", {**MOE, "head_dim": 24, "norm_topk_prob": True}),
    "qwen3-moe-shares": Saved("Qwen3MoeForCausalLM", {**MOE, "head_dim": 24}, unsaid=True),
    "qwen3-moe-dense": Saved(
        "Qwen3MoeForCausalLM",
        {
            **MOE, "head_dim": 16, "mlp_only_layers": [0], "decoder_sparse_step": 2,
            "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 20,
        },
        converted=False,
    ),
    "olmoe": Saved("OlmoeForCausalLM", {"num_experts": 6, "num_experts_per_tok": 2}),
    "olmoe-normalised": Saved(
        "OlmoeForCausalLM",
        {"num_experts": 5, "num_experts_per_tok": 3, "norm_topk_prob": True, "rms_norm_eps": 1e-2},
        unsaid=True,
    ),
    "qwen2-moe": Saved(
        "Qwen2MoeForCausalLM", {**MOE, "shared_expert_intermediate_size": 48}
    ),
    "qwen2-moe-dense": Saved(
        "Qwen2MoeForCausalLM",
        {
            **MOE, "shared_expert_intermediate_size": 48, "qkv_bias": False,
            "decoder_sparse_step": 2, "norm_topk_prob": True, "use_sliding_window": True,
            "sliding_window": 20, "max_window_layers": 3,
        },
        converted=False,
    ),
    "granite-moe": Saved(
        "GraniteMoeForCausalLM",
        {
            "num_local_experts": 6, "embedding_multiplier": 5.0, "attention_multiplier": 0.11,
            "residual_multiplier": 0.3, "logits_scaling": 3.0,
        },
    ),
    "granite-moe-shared": Saved(
        "GraniteMoeSharedForCausalLM",
        {
            "num_local_experts": 6, "shared_intermediate_size": 48, "residual_multiplier": 0.3,
            "attention_multiplier": 0.11,
        },
    ),
    "granite-moe-shared-none": Saved("GraniteMoeSharedForCausalLM", {"num_local_experts": 3}),
    "glm4-moe": Saved("Glm4MoeForCausalLM", {**_ROUTED, "head_dim": 32}),
    "glm4-moe-norms": Saved(
        "Glm4MoeForCausalLM",
        {
            **_ROUTED, "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "n_group": 4,
            "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 2,
            "first_k_dense_replace": 2, "norm_topk_prob": False,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "deepseek-v2": Saved(
        "DeepseekV2ForCausalLM",
        {
            **LATENT, **_ROUTED, "q_lora_rank": None, "first_k_dense_replace": 1,
            **yarn(mscale=0.7, mscale_all_dim=0.7),
        },
        gguf=(
            "deepseek2",
            {
                **LATENT_KEYS, "expert_shared_count": 2, "leading_dense_block_count": 1,
                "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_log_multiplier": 0.07,
            },
        ),
    ),
    "deepseek-v2-groups": Saved(
        "DeepseekV2ForCausalLM",
        {
            **LATENT, **_ROUTED, "topk_method": "group_limited_greedy", "n_group": 4,
            "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 1,
            "attention_bias": True,
        },
        converted=False,
    ),
    "deepseek-v3": Saved(
        "DeepseekV3ForCausalLM",
        {**LATENT, **_ROUTED, "n_group": 4, "topk_group": 2},
        gguf=(
            "deepseek2",
            {
                **LATENT_KEYS, "attention.q_lora_rank": 24, "expert_shared_count": 1,
                "leading_dense_block_count": 3, "expert_weights_scale": 2.5,
                "expert_weights_norm": True, "expert_group_count": 4, "expert_group_used_count": 2,
                "expert_gating_func": 2,
            },
        ),
    ),
    "deepseek-v3-halves": Saved(
        "DeepseekV3ForCausalLM",
        {
            **LATENT, **_ROUTED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
            "norm_topk_prob": False, "rope_interleave": False, "rms_norm_eps": 1e-2,
            "n_shared_experts": 2,
        },
        unsaid=True,
    ),
    "deepseek-v3.2": Saved(
        "DeepseekV32ForCausalLM",
        {
            **LATENT, **_ROUTED, **_INDEXED, "n_group": 4, "topk_group": 2,
            **yarn(mscale=1.0, mscale_all_dim=1.0),
        },
        gguf=(
            "deepseek32",
            {
                **LATENT_KEYS, "attention.q_lora_rank": 24, "expert_shared_count": 1,
                "leading_dense_block_count": 3, "expert_weights_scale": 2.5,
                "expert_weights_norm": True, "expert_group_count": 4, "expert_group_used_count": 2,
                "expert_gating_func": 2, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_log_multiplier": 0.1, "attention.indexer.head_count": 8,
                "attention.indexer.key_length": 16, "attention.indexer.top_k": 20,
            },
        ),
    ),
    "deepseek-v3.2-dense": Saved(
        "DeepseekV32ForCausalLM",
        {
            **LATENT, **_ROUTED, **_INDEXED, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-2,
            "index_head_dim": 24, "index_topk": 7, "attention_bias": True,
            "mlp_layer_types": ["dense"] + ["sparse"] * 4,
        },
        converted=False,
    ),
    # As published; transformers saves the kinds of layers alone, which the converter does not read.
    "glm4-moe-lite": Saved(
        "Glm4MoeLiteForCausalLM", {**LATENT, **_ROUTED, "first_k_dense_replace": 1}
    ),
    "glm4-moe-lite-dense": Saved(
        "Glm4MoeLiteForCausalLM",
        {
            **LATENT, **_ROUTED, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
            "routed_scaling_factor": 1.0, "n_group": 4, "topk_group": 1,
        },
        converted=False,
    ),
    "exaone-moe": Saved(
        "ExaoneMoeForCausalLM",
        {**MOE, "sliding_window": 20, "rms_norm_eps": 1e-2},
        gguf=(
            "exaone-moe",
            {
                "attention.sliding_window": 20, "attention.layer_norm_rms_epsilon": 1e-2,
                "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32,
                "expert_shared_count": 1, "expert_weights_scale": 2.5, "expert_weights_norm": True,
                "leading_dense_block_count": 1, "expert_gating_func": 2,
            },
        ),
    ),
    "exaone-moe-groups": Saved(
        "ExaoneMoeForCausalLM",
        {
            **MOE, "sliding_window": 20, "sliding_window_pattern": 2, "head_dim": 24,
            "num_experts": 8, "n_group": 4, "topk_group": 2, "num_shared_experts": 2,
            "norm_topk_prob": False, "routed_scaling_factor": 1.5,
            "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 3, "tie_word_embeddings": True,
        },
        converted=False,
    ),
    "cohere2-moe": Saved(
        "Cohere2MoeForCausalLM",
        {
            "num_experts": 6, "sliding_window": 20, "num_shared_experts": 2, "head_dim": 24,
            "first_k_dense_replace": 1, "prefix_dense_intermediate_size": 80,
            "expert_selection_fn": "sigmoid", "logit_scale": 0.25, "layer_norm_eps": 1e-2,
        },
    ),
    "cohere2-moe-sum": Saved(
        "Cohere2MoeForCausalLM",
        {
            "num_experts": 4, "num_experts_per_tok": 3, "sliding_window": 20, "head_dim": 16,
            "num_shared_experts": 1, "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "rms_norm_eps": 1e-2,
            "prefix_dense_sliding_window_pattern": 2, "first_k_dense_replace": 2,
            "tie_word_embeddings": False, "attention_bias": True, "sliding_window_pattern": 2,
        },
        converted=False,
    ),
    "cohere2-moe-softmax": Saved(
        "Cohere2MoeForCausalLM", {"num_experts": 6, "sliding_window": 20, "head_dim": 16},
    ),
    "dots1": Saved(
        "Dots1ForCausalLM",
        {
            **_ROUTED, "head_dim": 24, "n_shared_experts": 2, "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1, "norm_topk_prob": True,
        },
    ),
    "dots1-windows": Saved(
        "Dots1ForCausalLM",
        {
            **_ROUTED, "head_dim": 16, "n_shared_experts": 1, "n_group": 4, "topk_group": 1,
            "sliding_window": 20, "max_window_layers": 2, "attention_bias": True,
        },
        unsaid=True,
    ),
    "ernie4.5-moe": Saved("Ernie4_5_MoeForCausalLM", {**_ERNIE, "moe_intermediate_size": 32}),
    "ernie4.5-moe-some": Saved(
        "Ernie4_5_MoeForCausalLM",
        {
            **_ERNIE, "moe_intermediate_size": 32, "moe_layer_interval": 2,
            "moe_layer_start_index": 0, "moe_layer_end_index": 2, "moe_norm_min": 0.7,
            "tie_word_embeddings": False,
        },
        unsaid=True,
    ),
    "hunyuan-moe": Saved(
        "HunYuanMoEV1ForCausalLM",
        {"num_experts": 6, "moe_topk": 2, "head_dim": 24},
        converted=False,
    ),
    "hunyuan-moe-lists": Saved(
        "HunYuanMoEV1ForCausalLM",
        {
            "num_experts": 4, "moe_topk": [1] * 5, "head_dim": 16, "attention_bias": True,
            "moe_intermediate_size": [96] * 5, "num_shared_expert": [1] * 5,
        },
    ),
    "minimax-m2": Saved(
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16},
    ),
    "minimax-m2-whole": Saved(
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 3, "head_dim": 16, "rms_norm_eps": 1e-2},
        converted=False,
    ),
    "phimoe": Saved(
        "PhimoeForCausalLM",
        {"num_local_experts": 6, "router_jitter_noise": 0.2, "sliding_window": None},
        converted=False,
    ),
    "phimoe-longrope": Saved(
        "PhimoeForCausalLM",
        {
            "num_local_experts": 6, "sliding_window": 20, "attention_bias": True,
            "lm_head_bias": True, "rms_norm_eps": 1e-2,
            "original_max_position_embeddings": 128, "rope_parameters": {
                # transformers divides by the short factors whatever the length is.
                **longrope(8, long_factor=[1.0 + i / 16 for i in range(8)]),
                # The factor of LongRoPE's paper, which GGUF files have.
                "short_mscale": (8 / 7) ** 0.5, "long_mscale": (8 / 7) ** 0.5,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "llama4": Saved(
        "Llama4ForCausalLM",
        {
            "num_local_experts": 4, "head_dim": 24, "intermediate_size_mlp": 80,
            "interleave_moe_layer_step": 2,
        },
    ),
    "llama4-two": Saved(
        "Llama4ForCausalLM",
        {
            "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16,
            "intermediate_size_mlp": 80, "use_qk_norm": False, "attention_bias": True,
            "no_rope_layers": [0, 1, 1, 0, 1], "attention_chunk_size": 100, "rms_norm_eps": 1e-2,
            "rope_parameters": {
                **LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 1.0, "rope_theta": 5e5
            },
        },
        unsaid=True,
    ),
    "gpt-oss": Saved("GptOssForCausalLM", {"num_local_experts": 6, "sliding_window": 20}),
    "gpt-oss-rope": Saved(
        "GptOssForCausalLM",
        {
            "num_local_experts": 6, "sliding_window": 20, "head_dim": 32,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        },
    ),
    "gpt-oss-layer-types": Saved(
        "GptOssForCausalLM",
        {
            "num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 20, "head_dim": 16,
            "layer_types": [FULL, FULL, SLIDING, FULL, SLIDING],
        },
        unsaid=True,
    ),
}  # fmt: skip
