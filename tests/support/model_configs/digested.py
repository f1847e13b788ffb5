"""Fields of the models of `digests`."""

from __future__ import annotations

from typing import Any

from model_configs.common import FULL, LINEAR, SLIDING, YARN

__all__ = ["DIGESTED"]

_TWO_HYBRID: dict[str, Any] = {
    "layer_types": [LINEAR, FULL], "linear_key_head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_value_head_dim": 40,
}  # fmt: skip
_TWO_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 176, "num_experts": 6, "num_experts_per_tok": 2,
}  # fmt: skip
_SHARED = {"shared_expert_intermediate_size": 144}
_TWO_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4, "kv_lora_rank": 80, "q_lora_rank": 96, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 48, "dim_model_base": 64, "scale_depth": 1.5,
}  # fmt: skip
_TWO_GRANITE = {
    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 160,
    "shared_intermediate_size": 144, "residual_multiplier": 0.25, "attention_multiplier": 0.125,
}  # fmt: skip
_TWO_LLAMA4 = {
    "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 160,
    "intermediate_size_mlp": 144, "interleave_moe_layer_step": 2, "no_rope_layers": [1, 0],
}  # fmt: skip
_TWO_PHIMOE = {
    "num_local_experts": 5, "intermediate_size": 160, "router_jitter_noise": 0.25,
    "lm_head_bias": True, "attention_bias": True,
}  # fmt: skip
_TWO_ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 176, "n_group": 4,
    "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip
_ALL_KEYS = {"num_key_value_heads": 4}
_ALIBI = {**_ALL_KEYS, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
_SCORES = {**_ALL_KEYS, "num_labels": 1}
_TWO_MODERN = {**_ALL_KEYS, "local_attention": 48, "layer_types": [SLIDING, FULL]}
_TWO_WINDOWS = {"sliding_window": 48, "layer_types": [SLIDING, FULL]}
_TWO_EXAONE = {
    **_TWO_EXPERTS, **_TWO_WINDOWS, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip
_LATE = {**YARN, "rope_theta": 10000.0, "llama_4_scaling_beta": 0.5}  # queries grow
#: Of two layers that see the same keys; with one more, which has a window.
_THREE_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 3, "num_kv_shared_layers": 1, "sliding_window": 48,
    "layer_types": [SLIDING, FULL, FULL],
    "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 200,
    "use_double_wide_mlp": True,
}  # fmt: skip
_THREE_GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 3, "num_kv_shared_layers": 1, "sliding_window": 48, "laurel_rank": 48,
    "layer_types": [SLIDING, FULL, FULL], "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 190, "activation_sparsity_pattern": [0.75, 0.0, 0.5],
    "intermediate_size": [512, 480, 512],
}  # fmt: skip
_TWO_SPACE: dict[str, Any] = {
    "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 40, "mamba_d_head": 40,
}  # fmt: skip
_TWO_SCANS: dict[str, Any] = {"state_size": 24, "intermediate_size": 480}
#: By class: fields without which two layers and few positions do not show what is special. Sizes
#: are those of `digests.CONFIG`.
DIGESTED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("BertModel", "XLMRobertaModel", "RobertaModel", "NomicBertModel"), _ALL_KEYS),
    **dict.fromkeys(("JinaEmbeddingsV3Model", "GteModel"), _ALL_KEYS),
    **dict.fromkeys(("JinaBertModel", "JinaBertForMaskedLM"), _ALIBI),
    "JinaBertForSequenceClassification": {
        **_ALIBI, "num_labels": 1, "feed_forward_type": "original"
    },
    "JinaEmbeddingsV3ForSequenceClassification": _SCORES,
    "GteForSequenceClassification": _SCORES,
    "Qwen3ForSequenceClassification": {"num_labels": 1},
    **dict.fromkeys(("BertForSequenceClassification", "RobertaForSequenceClassification"), _SCORES),
    "XLMRobertaForSequenceClassification": _SCORES,
    "ModernBertModel": _TWO_MODERN,
    "ModernBertForSequenceClassification": {
        **_TWO_MODERN, "num_labels": 1, "classifier_pooling": "mean"
    },
    "Gemma2ForCausalLM": {"sliding_window": 48, "query_pre_attn_scalar": 64},
    **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3TextModel"), _TWO_WINDOWS),
    "Gemma3ForConditionalGeneration": {"text_config": _TWO_WINDOWS},
    "MinistralForCausalLM": _TWO_WINDOWS,
    "Ministral3ForCausalLM": {"rope_parameters": _LATE},
    "Mistral3ForConditionalGeneration": {"text_config": {"rope_parameters": _LATE}},
    "CwmForCausalLM": {"sliding_window": 48, "layer_types": [FULL, SLIDING]},
    **dict.fromkeys(("Cohere2ForCausalLM", "Exaone4ForCausalLM"), _TWO_WINDOWS),
    "VaultGemmaForCausalLM": {"sliding_window": 48, "query_pre_attn_scalar": 64},
    **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), _THREE_GEMMA4),
    "Gemma3nForCausalLM": _THREE_GEMMA3N,
    "Gemma3nForConditionalGeneration": {"text_config": _THREE_GEMMA3N},
    "HeliumForCausalLM": {"attention_bias": True},
    "HunYuanDenseV1ForCausalLM": {"rope_scaling": {"type": "dynamic", "alpha": 1000.0}},
    "MiniCPMForCausalLM": {"scale_emb": 12, "scale_depth": 1.5, "dim_model_base": 64},
    "Olmo3ForCausalLM": _TWO_WINDOWS,
    "GptOssForCausalLM": {
        "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 48,
        "intermediate_size": 160,
    },
    "GPTNeoXForCausalLM": {"num_key_value_heads": 4},
    "GPTJForCausalLM": {"rotary_dim": 32},
    "GPTNeoForCausalLM": {"sliding_window": 48, "attention_layers": ["local", "global"]},
    "GPTBigCodeForCausalLM": {"hidden_act": "gelu_pytorch_tanh"},
    "FalconForCausalLM": {"new_decoder_architecture": True, "bias": True},
    "OlmoForCausalLM": {"clip_qkv": 0.5},
    "OPTForCausalLM": {"word_embed_proj_dim": 256},
    "HyperCLOVAXForCausalLM": {
        "attention_multiplier": 2.0**-4, "embedding_multiplier": 12.0, "logits_scaling": 0.5,
        "residual_multiplier": 0.25,
    },
    "GraniteForCausalLM": {
        "attention_multiplier": 2.0**-4, "embedding_multiplier": 12.0,
        "logits_scaling": 8.0, "residual_multiplier": 0.25,
    },
    "Phi3ForCausalLM": {"partial_rotary_factor": 0.75, "sliding_window": 48},
    "Qwen3_5ForCausalLM": _TWO_HYBRID,
    "Qwen3_5ForConditionalGeneration": {"text_config": _TWO_HYBRID},
    "OlmoHybridForCausalLM": {
        **_TWO_HYBRID, "linear_num_key_heads": 6, "linear_num_value_heads": 6,
    },
    "Lfm2ForCausalLM": {"layer_types": ["conv", FULL]},
    "MiniCPM3ForCausalLM": _TWO_LATENT,
    "Lfm2MoeForCausalLM": {
        **_TWO_EXPERTS, "layer_types": ["conv", FULL], "num_dense_layers": 1,
    },
    "MapleForCausalLM": {**_TWO_EXPERTS, **_TWO_WINDOWS, "head_dim": 64},
    "MixtralForCausalLM": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "Qwen3MoeForCausalLM": {**_TWO_EXPERTS, "mlp_only_layers": [1]},
    "OlmoeForCausalLM": {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 160},
    "Qwen2MoeForCausalLM": {**_TWO_EXPERTS, **_SHARED},
    **dict.fromkeys(("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), _TWO_GRANITE),
    "GraniteMoeHybridForCausalLM": {
        **_TWO_GRANITE, **_TWO_SPACE, "mamba_n_heads": 16, "mamba_d_head": 32,
        "layer_types": [LINEAR, FULL], "time_step_limit": [0.5, 1.5],
    },
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 64, "n_groups": 2, "state_size": 24},
    "JambaForCausalLM": {
        "num_experts": 5, "num_experts_per_tok": 2, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0,
        "mamba_d_state": 24,
    },
    **dict.fromkeys(("MambaForCausalLM", "FalconMambaForCausalLM"), _TWO_SCANS),
    "RecurrentGemmaForCausalLM": {
        "attention_window_size": 48, "block_types": ["recurrent", "attention"], "lru_width": 240,
    },
    "Zamba2ForCausalLM": {
        "mamba_ngroups": 2, "mamba_d_state": 24, "num_hidden_layers": 4, "num_mem_blocks": 2,
        "layers_block_type": ["hybrid", LINEAR, "hybrid", "hybrid"], "adapter_rank": 48,
        "use_shared_attention_adapter": True, "use_mem_rope": True, "num_key_value_heads": None,
        "head_dim": None,
    },
    "BambaForCausalLM": {
        "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 24, "attn_layer_indices": [1],
    },
    "FalconH1ForCausalLM": {
        **_TWO_SPACE, "mamba_d_ssm": 240, "mamba_rms_norm": True, "attention_in_multiplier": 0.5,
        "ssm_multipliers": [0.5, 2.0, 1.0, 0.25, 4.0], "mlp_multipliers": [2.0, 0.5],
    },
    "NemotronHForCausalLM": {
        **_TWO_ROUTED, **_TWO_SPACE, "num_hidden_layers": 4, "moe_latent_size": 96,
        "layers_block_type": [LINEAR, FULL, "moe", "mlp"],
        "moe_shared_expert_intermediate_size": 144,
    },
    "Glm4MoeForCausalLM": {**_TWO_ROUTED, "use_qk_norm": True, "attention_bias": True},
    "DeepseekV2ForCausalLM": {**_TWO_LATENT, **_TWO_ROUTED, "topk_method": "group_limited_greedy"},
    "DeepseekV3ForCausalLM": {**_TWO_LATENT, **_TWO_ROUTED},
    "Glm4MoeLiteForCausalLM": {**_TWO_LATENT, **_TWO_ROUTED},
    "DeepseekV32ForCausalLM": {
        **_TWO_LATENT, **_TWO_ROUTED, "index_n_heads": 6, "index_head_dim": 40, "index_topk": 24,
    },
    **dict.fromkeys(("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), _TWO_EXAONE),
    "Cohere2MoeForCausalLM": {
        **_TWO_WINDOWS, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1,
        "intermediate_size": 176, "prefix_dense_intermediate_size": 144,
        "first_k_dense_replace": 1, "expert_selection_fn": "sigmoid", "rms_norm_eps": None,
    },
    "KimiLinearForCausalLM": {
        **{k: v for k, v in _TWO_LATENT.items() if k not in ("dim_model_base", "scale_depth")},
        "q_lora_rank": None, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 176, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
        "num_hidden_layers": 3, "layer_types": [LINEAR, FULL, LINEAR], "linear_num_heads": 3,
        "linear_head_dim": 40,
    },
    "Dots1ForCausalLM": {
        **_TWO_ROUTED, "sliding_window": 48, "max_window_layers": 1, "norm_topk_prob": True
    },
    "Ernie4_5_MoeForCausalLM": {
        "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 176, "moe_norm_min": 0.75,
    },
    "HunYuanMoEV1ForCausalLM": {
        "num_experts": 5, "moe_topk": 2, "intermediate_size": 160,
        "rope_scaling": {"type": "dynamic", "alpha": 1000.0},
    },
    **dict.fromkeys(("PhimoeForCausalLM", "PhiMoEForCausalLM"), _TWO_PHIMOE),
    **dict.fromkeys(("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), _TWO_LLAMA4),
    "MiniMaxM2ForCausalLM": {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 160,
        "rotary_dim": 32,
    },
    "Qwen3_5MoeForCausalLM": {**_TWO_HYBRID, **_TWO_EXPERTS, **_SHARED},
    "Qwen3NextForCausalLM": {**_TWO_HYBRID, **_TWO_EXPERTS, **_SHARED},
    "Qwen3_5MoeForConditionalGeneration": {
        "text_config": {**_TWO_HYBRID, **_TWO_EXPERTS, **_SHARED}
    },
    "SeedOssForCausalLM": {"attention_out_bias": True},
    "SmolLM3ForCausalLM": {"no_rope_layers": [1, 0]},
}  # fmt: skip
