"""Models with recurrent layers or convolutions."""

from __future__ import annotations

from model_configs.common import DELTA, FULL, LATENT, LATENT_KEYS, LINEAR, MOE, REGULAR, Saved

__all__ = ["MODELS"]

_CONV_LAYERS = ["conv", FULL, "conv", "conv", FULL]
_KIMI = {
    **LATENT, "q_lora_rank": None, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "linear_head_dim": 16, "linear_num_heads": 4,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_SPACE = {
    "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 24, "mamba_d_head": 16,
    "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL],
}  # fmt: skip
_GRANITE = {
    "embedding_multiplier": 5.0, "attention_multiplier": 0.125, "residual_multiplier": 0.25,
    "logits_scaling": 3.0,
}  # fmt: skip
_SPACE_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": 24, "ssm.group_count": 2, "ssm.inner_size": 128,
    "ssm.time_step_rank": 8,
}  # fmt: skip
_GRANITE_KEYS = {
    **_SPACE_KEYS, "attention.head_count_kv": [0, 2, 0, 0, 2], "rope.scaling.finetuned": False,
    "embedding_scale": 5.0, "attention.scale": 0.125, "residual_scale": 0.25, "logit_scale": 3.0,
    "expert_shared_feed_forward_length": 48, "attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip
_FALCON_H1 = {
    "mamba_n_heads": 8, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_d_state": 24,
}  # fmt: skip
# transformers keeps steps above time_step_min in prompts, which no other code does: here all are.
_NEMOTRON_H = {
    "time_step_min": 1e-6, "time_step_max": 1.0,
    "mamba_num_heads": 12, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 24,
    "head_dim": 24, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
}  # fmt: skip
_NEMOTRON_KEYS = {
    **_SPACE_KEYS, "ssm.inner_size": 192, "ssm.time_step_rank": 12,
    "rope.dimension_count": 16,  # hidden_size / heads, as converters write it; nothing is rotated
    "attention.head_count_kv": [0, 0, 2, 0, 0], "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_BAMBA = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 24, "mamba_d_head": 16}
_BAMBA_KEYS = {
    **_SPACE_KEYS, "attention.head_count_kv": [0, 2, 0, 0, 2], "rope.scaling.finetuned": True,
    "rope.dimension_count": 8, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_MAMBA2 = {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 24}
_MAMBA2_KEYS = {  # as llama.cpp's converter writes them: no number of KV heads
    **_SPACE_KEYS, "attention.head_count": 0,
    "feed_forward_length": 0, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_MAMBA = {"state_size": 12, "intermediate_size": 128}
_MAMBA_KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": 12, "ssm.inner_size": 128, "ssm.time_step_rank": 4,
    "attention.head_count": 0, "feed_forward_length": 0, "ssm.dt_b_c_rms": False,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_ZAMBA2 = {"mamba_d_state": 24, "n_mamba_heads": 8, "adapter_rank": 16, "time_step_min": 1e-12}
_JAMBA = {
    "num_experts": 6, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 12
}  # fmt: skip
_JAMBA_KEYS = {
    **_MAMBA_KEYS, "attention.head_count": 4, "attention.head_count_kv": [0, 2, 0, 0, 2],
    "feed_forward_length": 96, "expert_count": 6, "expert_used_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip
del _JAMBA_KEYS["ssm.dt_b_c_rms"]
MODELS: dict[str, Saved] = {
    "jamba": Saved("JambaForCausalLM", _JAMBA, gguf=("jamba", _JAMBA_KEYS)),
    "jamba-dense": Saved(
        "JambaForCausalLM",
        {**_JAMBA, "num_experts": 1},
        gguf=("jamba", {**_JAMBA_KEYS, "expert_count": 1}),
    ),
    "jamba-biased": Saved(
        "JambaForCausalLM",
        {
            "num_experts": 4, "num_experts_per_tok": 3, "expert_layer_period": 3,
            "expert_layer_offset": 0, "attn_layer_period": 4, "attn_layer_offset": 0,
            "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3,
            "mamba_dt_rank": 10, "mamba_expand": 1, "rms_norm_eps": 1e-2,
            "tie_word_embeddings": True,
        },
        converted=False,
    ),
    "recurrent-gemma": Saved(
        "RecurrentGemmaForCausalLM", {"attention_window_size": 20}, converted=False
    ),
    "recurrent-gemma-biased": Saved(
        "RecurrentGemmaForCausalLM",
        {
            "hidden_size": 96, "lru_width": 72, "block_types": ["attention", "recurrent"],
            "num_key_value_heads": None, "attention_bias": True, "conv1d_width": 3,
            "rms_norm_eps": 1e-2, "logits_soft_cap": 5.0, "attention_window_size": 200,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25,
            },
        },
        converted=False,
    ),
    "zamba2": Saved(
        "Zamba2ForCausalLM",
        {
            **_ZAMBA2, "num_mem_blocks": 2, "use_shared_attention_adapter": True,
            "use_mem_rope": True, "num_key_value_heads": 4, "mamba_ngroups": 2,
            "layers_block_type": [LINEAR, "hybrid", "hybrid", LINEAR, "hybrid"],
        },
        converted=False,
    ),
    "zamba2-plain": Saved(
        "Zamba2ForCausalLM",
        {
            **_ZAMBA2, "layers_block_type": ["hybrid", LINEAR, LINEAR, LINEAR, "hybrid"],
            "add_bias_linear": True, "rms_norm_eps": 1e-2, "mamba_d_conv": 3,
            "mamba_expand": 3, "n_mamba_heads": 6, "use_conv_bias": False,
        },
        converted=False,
    ),
    "mamba": Saved("MambaForCausalLM", _MAMBA, gguf=("mamba", _MAMBA_KEYS)),
    "mamba-biased": Saved(
        "MambaForCausalLM",
        {
            "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "time_step_rank": 7,
            "intermediate_size": 80, "layer_norm_epsilon": 1e-2, "tie_word_embeddings": False,
        },
        converted=False,
    ),
    "falcon-mamba": Saved(
        "FalconMambaForCausalLM", _MAMBA,
        gguf=("mamba", {**_MAMBA_KEYS, "ssm.dt_b_c_rms": True}),
    ),
    "falcon-mamba-biased": Saved(
        "FalconMambaForCausalLM",
        {
            "expand": 2, "intermediate_size": 128, "use_bias": True, "mixer_rms_eps": 1e-2,
            "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False,
        },
        converted=False,
    ),
    "bamba": Saved(
        "BambaForCausalLM",
        {**_BAMBA, "attn_layer_indices": [1, 4]},
        unsaid=True,  # the converter reads attn_rotary_emb, which transformers does not save
        gguf=("granitehybrid", _BAMBA_KEYS),
    ),
    "bamba-biased": Saved(
        "BambaForCausalLM",
        {
            **_BAMBA, "attn_layer_indices": [0, 2], "attention_bias": True, "mlp_bias": True,
            "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3,
            "rms_norm_eps": 1e-2, "tie_word_embeddings": True, "time_step_limit": [0.4, 0.8],
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
            },
        },
        converted=False,
    ),
    "mamba2": Saved(
        "Mamba2ForCausalLM",
        {**_MAMBA2, "intermediate_size": 128},  # the converter takes it for the inner width
        gguf=("mamba2", _MAMBA2_KEYS),
    ),
    "mamba2-biased": Saved(
        "Mamba2ForCausalLM",
        {
            **_MAMBA2, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "n_groups": 1,
            "layer_norm_epsilon": 1e-2, "tie_word_embeddings": True,
            "time_step_limit": [0.4, 0.8],
        },
        converted=False,
    ),
    "granite-hybrid": Saved(
        "GraniteMoeHybridForCausalLM",
        {**_SPACE, **_GRANITE, "num_local_experts": 6, "shared_intermediate_size": 48},
        gguf=(
            "granitehybrid",
            {**_GRANITE_KEYS, "expert_count": 6, "expert_used_count": 2},
        ),
    ),
    "granite-hybrid-dense": Saved(
        "GraniteMoeHybridForCausalLM",
        {**_SPACE, **_GRANITE, "num_local_experts": 0, "shared_intermediate_size": 48},
        gguf=("granitehybrid", _GRANITE_KEYS),
    ),
    "granite-hybrid-rope": Saved(
        "GraniteMoeHybridForCausalLM",
        {
            **_SPACE, "num_local_experts": 3, "shared_intermediate_size": 48,
            "position_embedding_type": "rope", "attention_bias": True, "mamba_proj_bias": True,
            "mamba_conv_bias": False, "mamba_n_groups": 1, "mamba_d_conv": 3,
            "mamba_d_head": "auto", "time_step_limit": [0.5, 0.9],
        },
        converted=False,
    ),
    "falcon-h1": Saved(
        "FalconH1ForCausalLM",
        {
            **_FALCON_H1, "lm_head_multiplier": 0.5, "embedding_multiplier": 3.0,
            "key_multiplier": 0.7, "attention_out_multiplier": 0.6,
            "attention_in_multiplier": 0.8, "ssm_in_multiplier": 1.5, "ssm_out_multiplier": 0.4,
            "mlp_multipliers": [0.9, 0.3], "ssm_multipliers": [0.6, 0.7, 0.8, 1.2, 1.3],
        },
    ),
    "falcon-h1-norm": Saved(
        "FalconH1ForCausalLM",
        {
            **_FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
            "mamba_d_conv": 3,
        },
        gguf=("falcon-h1", {**_SPACE_KEYS, "ssm.conv_kernel": 3}),
    ),
    "falcon-h1-norm-first": Saved(
        "FalconH1ForCausalLM",
        {
            **_FALCON_H1, "mamba_rms_norm": True, "attention_bias": True, "mlp_bias": True,
            "mamba_proj_bias": True, "projectors_bias": True, "mamba_conv_bias": False,
            "mamba_d_ssm": None, "time_step_limit": [0.4, 0.8], "rms_norm_eps": 1e-2,
        },
        converted=False,
    ),
    "nemotron-h": Saved(
        "NemotronHForCausalLM",
        {**_NEMOTRON_H, "layers_block_type": [LINEAR, "mlp", FULL, "mlp", LINEAR]},
        gguf=("nemotron_h", {**_NEMOTRON_KEYS, "feed_forward_length": [0, 96, 0, 96, 0]}),
    ),
    "nemotron-h-moe": Saved(
        "NemotronHForCausalLM",
        {
            **_NEMOTRON_H, "layers_block_type": [LINEAR, "moe", FULL, "moe", "mlp"],
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "mlp_bias": True,
            "use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 1e-2,
        },
        converted=False,
    ),
    "nemotron-h-latent": Saved(
        "NemotronHForCausalLM",
        {
            **_NEMOTRON_H, "layers_block_type": [LINEAR, "moe", FULL, "moe", LINEAR],
            "moe_latent_size": 32, "norm_topk_prob": False,
        },
        gguf=(
            "nemotron_h_moe",
            {
                **_NEMOTRON_KEYS, "feed_forward_length": [0, 32, 0, 32, 0], "expert_count": 8,
                "expert_used_count": 2, "expert_feed_forward_length": 32,
                "expert_shared_feed_forward_length": 48, "expert_weights_norm": False,
                "expert_weights_scale": 1.0, "expert_group_count": 1, "moe_latent_size": 32,
            },
        ),
    ),
    "kimi-linear": Saved(
        "KimiLinearForCausalLM",
        {**_KIMI, "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL]},
        gguf=(
            "kimi-linear",
            {
                **LATENT_KEYS, "attention.head_count_kv": [0, 1, 0, 0, 1], "expert_count": 6,
                "expert_shared_count": 1, "leading_dense_block_count": 1,
                "expert_weights_scale": 2.5, "expert_gating_func": 2, "kda.head_dim": 16,
                "ssm.conv_kernel": 4, "attention.layer_norm_rms_epsilon": 1e-5,
            },
        ),
    ),
    "kimi-linear-groups": Saved(
        "KimiLinearForCausalLM",
        {
            **_KIMI, "num_local_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
            "norm_topk_prob": False, "rms_norm_eps": 1e-2,
            "linear_conv_kernel_dim": 3, "linear_num_heads": 3, "linear_head_dim": 12,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse", "sparse"],
        },
        converted=False,
    ),
    # transformers cuts the convolutions of q, k and v into thirds when it saves them.
    "olmo-hybrid": Saved(
        "OlmoHybridForCausalLM",
        {
            "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 24,
        },
        converted=False,
    ),
    "olmo-hybrid-plain": Saved(
        "OlmoHybridForCausalLM",
        {
            "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 12,
            "linear_value_head_dim": 12, "linear_allow_neg_eigval": False, "attention_bias": True,
            "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-2, "tie_word_embeddings": True,
            "layer_types": [FULL, LINEAR, FULL, LINEAR, LINEAR],
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
        converted=False,
    ),
    "lfm2": Saved(
        "Lfm2ForCausalLM",
        {"layer_types": _CONV_LAYERS, "block_multiple_of": 16},
        gguf=(
            "lfm2",
            {
                "attention.head_count_kv": [0, 2, 0, 0, 2], "shortconv.l_cache": 3,
                "feed_forward_length": 64, "rope.freq_base": 1e6,
            },
        ),
    ),
    "lfm2-moe": Saved("Lfm2MoeForCausalLM", {**MOE, "layer_types": _CONV_LAYERS}),
    "lfm2-moe-scaled": Saved(
        "Lfm2MoeForCausalLM",
        {
            **MOE, "layer_types": _CONV_LAYERS, "use_expert_bias": False, "num_dense_layers": 0,
            "routed_scaling_factor": 2.5, "norm_topk_prob": False, "tie_word_embeddings": False,
        },
        converted=False,
    ),
    "lfm2-bias": Saved(
        "Lfm2ForCausalLM",
        {
            "full_attn_idxs": [0, 2], "conv_bias": True, "conv_L_cache": 5, "norm_eps": 1e-2,
            "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False,
        },
        converted=False,
    ),
    "qwen3.5": Saved("Qwen3_5ForCausalLM", DELTA, converted=False),
    "qwen3.5-regular": Saved("Qwen3_5ForCausalLM", REGULAR),
    "qwen3.5-moe": Saved(
        "Qwen3_5MoeForCausalLM", {**REGULAR, **MOE, "shared_expert_intermediate_size": 48}
    ),
    "qwen3-next": Saved(
        "Qwen3NextForCausalLM",
        {**REGULAR, **MOE, "shared_expert_intermediate_size": 48},
    ),
    "qwen3-next-of-all": Saved(
        "Qwen3NextForCausalLM",
        {
            **DELTA, **MOE, "shared_expert_intermediate_size": 48, "norm_topk_prob": False,
            "rms_norm_eps": 1e-2,
        },
        converted=False,
    ),
}  # fmt: skip
