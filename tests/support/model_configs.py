"""Fields of config.json of small random models, of every supported class.

`MODELS` has several rows for each class, so that what files say, and what they leave to a class,
both count: `saved_models` makes and saves them. `DIGESTED` is of the models of `digests`. This
module imports neither torch nor Sterna.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DIGESTED", "MODELS", "POSITIONS", "SIZES", "Saved"]

POSITIONS = 60  # past the windows and the first contexts below
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
#: Sizes that all have; an odd number of layers, which no period of windows divides.
SIZES: dict[str, Any] = {
    "vocab_size": 272, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": 257, "eos_token_id": 258, "pad_token_id": None,
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """A class of transformers and what its config is made with besides `SIZES`.

    ternary: its layers' weights are -s and s.
    converted: whether llama.cpp's converter makes a file of it that means the same.
    unsaid: whether it does make a file, but no key says what is special here, so that llama.cpp
    runs another model, too.
    gguf: its name in GGUF files and the keys that they have besides those of Llama;
    tests/gguf/test_saved_models_as_gguf.py makes such a file.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    ternary: bool = False
    converted: bool = True
    unsaid: bool = False
    gguf: tuple[str, dict[str, Any]] | None = None


def _yarn(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**YARN, "rope_theta": 10000.0, **more}}


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 16 for i in range(pairs)],
        "long_factor": [1.0 + i * i / 2 for i in range(pairs)], **more,
    }  # fmt: skip


_CONV_LAYERS = ["conv", FULL, "conv", "conv", FULL]
_LATENT = {
    "kv_lora_rank": 40, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "num_key_value_heads": 4,
}  # fmt: skip
_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_KIMI = {
    **_LATENT, "q_lora_rank": None, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "linear_head_dim": 16, "linear_num_heads": 4,
    "routed_scaling_factor": 2.5,
}  # fmt: skip
_LATENT_KEYS = {
    "attention.head_count_kv": 1, "attention.key_length": 48, "attention.value_length": 40,
    "attention.key_length_mla": 24, "attention.value_length_mla": 12,
    "attention.kv_lora_rank": 40, "rope.dimension_count": 8, "expert_count": 8,
    "expert_used_count": 2, "expert_feed_forward_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
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
    "mamba_num_heads": 6, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 24,
    "head_dim": 24, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
}  # fmt: skip
_NEMOTRON_KEYS = {
    **_SPACE_KEYS, "ssm.inner_size": 96, "ssm.time_step_rank": 6,
    "attention.head_count_kv": [0, 0, 2, 0, 0], "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_ERNIE = {"moe_num_experts": 6, "moe_k": 2}
_DELTA = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip
_CLIP = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 16}
_MISTRAL3 = {
    "head_dim": 24, "sliding_window": None,
    "vision_config": {**_TOWER, "head_dim": 16, "model_type": "pixtral"},
}  # fmt: skip
_QWEN2_VL = {"mrope_section": [4, 2, 2]}
_QWEN3_VL = {"mrope_section": [4, 3, 1], "mrope_interleaved": True}
_REGULAR = {**_DELTA, "layer_types": [LINEAR, LINEAR, LINEAR, FULL, LINEAR]}
_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
}  # fmt: skip
_GEMMA4 = {
    "head_dim": 24, "global_head_dim": 32, "sliding_window": 20, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 272, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
}  # fmt: skip
_GEMMA3N = {
    "head_dim": 24, "sliding_window": 20, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 250, "laurel_rank": 12, "num_kv_shared_layers": 2,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING], "pad_token_id": 0,
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.7],
}  # fmt: skip
_GEMMA4_SHARED = {
    **_GEMMA4, "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "num_hidden_layers": 6, "num_kv_shared_layers": 2,
}  # fmt: skip
# As published: llama.cpp's converter writes as many heads of keys as of queries, a feed-forward
# length of four times the width, and no rope_theta.
_PHI = {"num_key_value_heads": 4, "intermediate_size": 256}
_FALCON = {"ffn_hidden_size": 256, "intermediate_size": 256}
_EPSILON = {"attention.layer_norm_epsilon": 1e-5}  # of LayerNorms

#: Encoders have as many heads for keys, and no pads among the tokens.
_ENCODER: dict[str, Any] = {"num_key_value_heads": None, "layer_norm_eps": 1e-5}
_MODERN: dict[str, Any] = {"num_key_value_heads": None, "pad_token_id": 0, "local_attention": 20}
_BEHIND_PADS = {**_ENCODER, "pad_token_id": 271, "max_position_embeddings": 400}
MODELS: dict[str, Saved] = {
    "llama": Saved("LlamaForCausalLM"),
    "llama-bias": Saved("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-heads": Saved("LlamaForCausalLM", {"head_dim": 32, "num_key_value_heads": 4}),
    "llama-tied": Saved("LlamaForCausalLM", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama-llama3": Saved("LlamaForCausalLM", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    "llama-linear": Saved(
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    ),
    "llama-yarn": Saved("LlamaForCausalLM", _yarn()),
    "llama-yarn-factor": Saved("LlamaForCausalLM", _yarn(attention_factor=0.8, beta_fast=16.0)),
    "llama-yarn-within-pairs": Saved("LlamaForCausalLM", _yarn(truncate=False), unsaid=True),
    "mistral": Saved("MistralForCausalLM", {"sliding_window": None, "head_dim": 24}),
    "mistral-window": Saved("MistralForCausalLM", {"sliding_window": 20}, unsaid=True),
    "ministral": Saved(
        "MinistralForCausalLM",
        {
            "head_dim": 16, "sliding_window": 20,
            "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
        },
        converted=False,
    ),
    "ministral-windows": Saved(
        "MinistralForCausalLM", {"head_dim": 24, "sliding_window": 20}, converted=False
    ),
    "ministral3": Saved(
        "Ministral3ForCausalLM",
        {"head_dim": 24, **_yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)},
    ),
    "mistral3": Saved("Mistral3ForConditionalGeneration", _MISTRAL3),
    "mistral3-ministral": Saved(
        "Mistral3ForConditionalGeneration",
        {
            **_MISTRAL3, "model_type": "ministral3", "tie_word_embeddings": True,
            **_yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
        },
    ),
    "mixtral": Saved("MixtralForCausalLM", {"num_local_experts": 6}),
    "mixtral-window": Saved(
        "MixtralForCausalLM",
        {"num_local_experts": 3, "num_experts_per_tok": 1, "sliding_window": 20, "head_dim": 24},
        unsaid=True,
    ),
    "qwen2": Saved("Qwen2ForCausalLM"),
    "qwen2-windows": Saved(
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
        unsaid=True,
    ),
    "qwen3": Saved("Qwen3ForCausalLM", {"head_dim": 24}),
    "qwen3-bias": Saved("Qwen3ForCausalLM", {"head_dim": 24, "attention_bias": True}),
    "qwen3-yarn": Saved("Qwen3ForCausalLM", {"head_dim": 32, **_yarn(beta_fast=8.0)}),
    "qwen3-layer-types": Saved(
        "Qwen3ForCausalLM",
        {
            "head_dim": 16, "use_sliding_window": True, "sliding_window": 20,
            "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
        },
        unsaid=True,
    ),
    "qwen3-moe": Saved("Qwen3MoeForCausalLM", {**_MOE, "head_dim": 24, "norm_topk_prob": True}),
    "qwen3-moe-shares": Saved("Qwen3MoeForCausalLM", {**_MOE, "head_dim": 24}, unsaid=True),
    "qwen3-moe-dense": Saved(
        "Qwen3MoeForCausalLM",
        {
            **_MOE, "head_dim": 16, "mlp_only_layers": [0], "decoder_sparse_step": 2,
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
        "Qwen2MoeForCausalLM", {**_MOE, "shared_expert_intermediate_size": 48}
    ),
    "qwen2-moe-dense": Saved(
        "Qwen2MoeForCausalLM",
        {
            **_MOE, "shared_expert_intermediate_size": 48, "qkv_bias": False,
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
            **_LATENT, **_ROUTED, "q_lora_rank": None, "first_k_dense_replace": 1,
            **_yarn(mscale=0.7, mscale_all_dim=0.7),
        },
        gguf=(
            "deepseek2",
            {
                **_LATENT_KEYS, "expert_shared_count": 2, "leading_dense_block_count": 1,
                "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32,
                "rope.scaling.yarn_log_multiplier": 0.07,
            },
        ),
    ),
    "deepseek-v2-groups": Saved(
        "DeepseekV2ForCausalLM",
        {
            **_LATENT, **_ROUTED, "topk_method": "group_limited_greedy", "n_group": 4,
            "topk_group": 2, "routed_scaling_factor": 2.5, "n_shared_experts": 1,
            "attention_bias": True,
        },
        converted=False,
    ),
    "deepseek-v3": Saved(
        "DeepseekV3ForCausalLM",
        {**_LATENT, **_ROUTED, "n_group": 4, "topk_group": 2},
        gguf=(
            "deepseek2",
            {
                **_LATENT_KEYS, "attention.q_lora_rank": 24, "expert_shared_count": 1,
                "leading_dense_block_count": 3, "expert_weights_scale": 2.5,
                "expert_weights_norm": True, "expert_group_count": 4, "expert_group_used_count": 2,
                "expert_gating_func": 2,
            },
        ),
    ),
    "deepseek-v3-halves": Saved(
        "DeepseekV3ForCausalLM",
        {
            **_LATENT, **_ROUTED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
            "norm_topk_prob": False, "rope_interleave": False, "rms_norm_eps": 1e-2,
            "n_shared_experts": 2,
        },
        unsaid=True,
    ),
    # As published; transformers saves the kinds of layers alone, which the converter does not read.
    "glm4-moe-lite": Saved(
        "Glm4MoeLiteForCausalLM", {**_LATENT, **_ROUTED, "first_k_dense_replace": 1}
    ),
    "glm4-moe-lite-dense": Saved(
        "Glm4MoeLiteForCausalLM",
        {
            **_LATENT, **_ROUTED, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
            "routed_scaling_factor": 1.0, "n_group": 4, "topk_group": 1,
        },
        converted=False,
    ),
    "kimi-linear": Saved(
        "KimiLinearForCausalLM",
        {**_KIMI, "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL]},
        converted=False,
        gguf=(
            "kimi-linear",
            {
                **_LATENT_KEYS, "attention.head_count_kv": [0, 1, 0, 0, 1], "expert_count": 6,
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
                **_longrope(8, long_factor=[1.0 + i / 16 for i in range(8)]),
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
    "llama4-vision": Saved(
        "Llama4ForConditionalGeneration",
        {
            "num_local_experts": 4, "head_dim": 16, "intermediate_size_mlp": 80, "pad_token_id": 0,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1,
                "num_attention_heads": 2, "vision_output_dim": 32, "projector_input_dim": 32,
                "projector_output_dim": 32, "image_size": 28,
            },
        },
        converted=False,
    ),
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
    "gemma4": Saved("Gemma4ForCausalLM", _GEMMA4),
    "gemma4-shared": Saved(
        "Gemma4ForCausalLM", {**_GEMMA4_SHARED, "use_double_wide_mlp": True}
    ),
    "gemma4-keys": Saved(
        "Gemma4ForCausalLM",
        {
            **_GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
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
            **_GEMMA4, "hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 6,
            "top_k_experts": 2, "moe_intermediate_size": 32,
        },
    ),
    # Layers' numbers of two digits, which transformers pads with zeros.
    "gemma4-twelve": Saved(
        "Gemma4ForCausalLM",
        {
            **_GEMMA4, "num_hidden_layers": 12, "layer_types": None,
            "hidden_size_per_layer_input": 0,
        },
    ),
    "gemma4-vision": Saved(
        "Gemma4ForConditionalGeneration",
        {
            **_GEMMA4, "pad_token_id": 0, "audio_config": None, "vision_config": {
                "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            },
        },
        converted=False,
    ),
    "gemma3n": Saved(
        "Gemma3nForCausalLM", {**_GEMMA3N, "altup_correct_scale": False}, converted=False
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
    "glm": Saved("GlmForCausalLM", {"head_dim": 24}, converted=False),
    "glm-plain": Saved(
        "GlmForCausalLM",
        {
            "head_dim": 16, "attention_bias": False,
            "rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 1.0},
        },
        converted=False,
    ),
    "glm4": Saved("Glm4ForCausalLM", {"head_dim": 24}),
    "glm4-quarter": Saved(
        "Glm4ForCausalLM",
        {
            "head_dim": 32, "attention_bias": False,
            "rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 0.25},
        },
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
    "cohere": Saved(
        "CohereForCausalLM",
        gguf=("command-r", {**_EPSILON, "logit_scale": 0.0625, "rope.freq_base": 500000.0}),
    ),
    "cohere-bias": Saved(
        "CohereForCausalLM",
        {"attention_bias": True, "logit_scale": 0.5, "tie_word_embeddings": False},
        converted=False,
    ),
    "cohere2": Saved(
        "Cohere2ForCausalLM",
        {"sliding_window": 20},
        gguf=(
            "cohere2", {**_EPSILON, "logit_scale": 0.0625, "attention.sliding_window": 20}
        ),
    ),
    "cohere2-layer-types": Saved(
        "Cohere2ForCausalLM",
        {
            "sliding_window": 20, "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
            "attention_bias": True, "tie_word_embeddings": False, "layer_norm_eps": 1e-2,
        },
        converted=False,
    ),
    "apertus": Saved(
        "ApertusForCausalLM",
        {"head_dim": 24, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ),
    "apertus-bias": Saved(
        "ApertusForCausalLM",
        {"attention_bias": True, "rms_norm_eps": 1e-2, "rope_parameters": {"rope_theta": 500.0}},
        unsaid=True,
    ),
    "cwm": Saved("CwmForCausalLM", {"head_dim": 24, "sliding_window": 20}, converted=False),
    "gpt-bigcode": Saved(
        "GPTBigCodeForCausalLM",
        {"num_key_value_heads": 1, "intermediate_size": 256},
        gguf=("starcoder", {**_EPSILON, "context_length": 256, "attention.head_count_kv": 1}),
    ),
    "gpt-bigcode-heads": Saved(
        "GPTBigCodeForCausalLM",
        {"multi_query": False, "n_inner": 96, "num_key_value_heads": 4},
        converted=False,
    ),
    "gpt-neo": Saved(
        "GPTNeoForCausalLM",
        {
            "num_layers": 5, "attention_types": [[["global", "local"], 2], [["local"], 1]],
            "num_heads": 4, "window_size": 20, "layer_norm_epsilon": 1e-2,
        },
        converted=False,
    ),
    "gptj": Saved(
        "GPTJForCausalLM", {"rotary_dim": 8, "intermediate_size": 256}, converted=False
    ),
    "opt": Saved(
        "OPTForCausalLM",
        {"ffn_dim": 96, "word_embed_proj_dim": 64, "pad_token_id": 1},
        converted=False,
    ),
    "opt-untied": Saved(
        "OPTForCausalLM",
        {
            "ffn_dim": 160, "intermediate_size": 160, "word_embed_proj_dim": 64, "pad_token_id": 1,
            "tie_word_embeddings": False,
        },
        converted=False,
    ),
    "arcee": Saved("ArceeForCausalLM"),
    "arcee-bias": Saved(
        "ArceeForCausalLM", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}
    ),
    "ernie4.5": Saved(
        "Ernie4_5ForCausalLM", {"head_dim": 24}, gguf=("ernie4_5", {"rope.freq_base": 500000.0})
    ),
    "ernie4.5-bias": Saved("Ernie4_5ForCausalLM", {"head_dim": 16, "use_bias": True}),
    "exaone4": Saved(
        "Exaone4ForCausalLM",
        {"sliding_window": 20, "rms_norm_eps": 1e-2},
        gguf=(
            "exaone4", {"attention.sliding_window": 20, "attention.layer_norm_rms_epsilon": 1e-2}
        ),
    ),
    "exaone4-whole": Saved(
        "Exaone4ForCausalLM", {"sliding_window": None, "head_dim": 24, "layer_types": [FULL] * 5}
    ),
    "falcon": Saved(
        "FalconForCausalLM",
        {**_FALCON, "num_kv_heads": 1, "num_key_value_heads": 1},
        gguf=("falcon", {**_EPSILON, "attention.head_count_kv": 1}),
    ),
    "falcon-new": Saved(
        "FalconForCausalLM",
        {
            **_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
            "layer_norm_epsilon": 1e-2,
        },
    ),
    "falcon-serial": Saved(
        "FalconForCausalLM",
        {
            **_FALCON, "multi_query": False, "parallel_attn": False, "bias": True,
            "num_kv_heads": 4, "num_key_value_heads": 4,
        },
        converted=False,
    ),
    "gpt2": Saved(
        "GPT2LMHeadModel",
        {"intermediate_size": 256},
        gguf=("gpt2", {**_EPSILON, "context_length": 256, "attention.head_count_kv": 4}),
    ),
    "gpt2-wide": Saved(
        "GPT2LMHeadModel",
        {"n_inner": 96, "tie_word_embeddings": False,
         "layer_norm_epsilon": 1e-2},
        converted=False,
    ),
    "gemma": Saved("GemmaForCausalLM", {"head_dim": 24}),
    "gemma-bias": Saved("GemmaForCausalLM", {"head_dim": 16, "attention_bias": True}, unsaid=True),
    "vaultgemma": Saved(
        "VaultGemmaForCausalLM",
        {
            "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
        },
        converted=False,
    ),
    "helium": Saved("HeliumForCausalLM", {"head_dim": 16}, converted=False),
    "helium-bias": Saved(
        "HeliumForCausalLM",
        {"head_dim": 16, "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2},
        converted=False,
    ),
    "jais2": Saved("Jais2ForCausalLM", gguf=("jais2", _EPSILON)),
    "jais2-plain": Saved(
        "Jais2ForCausalLM",
        {"attention_bias": False, "mlp_bias": False, "layer_norm_eps": 1e-2, "head_dim": 24},
    ),
    "nemotron": Saved("NemotronForCausalLM", {"head_dim": 16}),
    "nemotron-whole": Saved(
        "NemotronForCausalLM",
        {
            "head_dim": 16, "attention_bias": True, "mlp_bias": True, "norm_eps": 1e-2,
            "rope_parameters": {"rope_theta": 1000.0, "partial_rotary_factor": 1.0},
        },
    ),
    "olmo": Saved("OlmoForCausalLM"),
    "olmo-clip": Saved("OlmoForCausalLM", {"clip_qkv": 0.8, "attention_bias": True}, unsaid=True),
    "seed-oss": Saved(
        "SeedOssForCausalLM",
        {"head_dim": 24},
        gguf=("seed_oss", {"attention.layer_norm_rms_epsilon": 1e-6}),
    ),
    "seed-oss-bias": Saved(
        "SeedOssForCausalLM",
        {"head_dim": 16, "attention_out_bias": True, "mlp_bias": True},
    ),
    "stablelm": Saved(
        "StableLmForCausalLM",
        gguf=(
            "stablelm",
            {**_EPSILON, "rope.dimension_count": 4, "use_parallel_residual": False},
        ),
    ),
    "stablelm-parallel": Saved(
        "StableLmForCausalLM",
        {
            "use_parallel_residual": True, "use_qkv_bias": True, "layer_norm_eps": 1e-2,
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
    ),
    "starcoder2": Saved("Starcoder2ForCausalLM", gguf=("starcoder2", _EPSILON)),
    "starcoder2-plain": Saved(
        "Starcoder2ForCausalLM",
        {"use_bias": False, "sliding_window": 20, "norm_epsilon": 1e-2},
        unsaid=True,
    ),
    "phi": Saved("PhiForCausalLM", _PHI, gguf=("phi2", {**_EPSILON, "rope.dimension_count": 8})),
    "phi-grouped": Saved("PhiForCausalLM", converted=False),
    "phi-whole": Saved(
        "PhiForCausalLM",
        {**_PHI, "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
    ),
    "gpt-neox": Saved(
        "GPTNeoXForCausalLM",
        {"num_key_value_heads": 4},
        gguf=(
            "gptneox", {**_EPSILON, "rope.dimension_count": 4, "use_parallel_residual": True}
        ),
    ),
    "gpt-neox-serial": Saved(
        "GPTNeoXForCausalLM",
        {"num_key_value_heads": 4, "use_parallel_residual": False, "layer_norm_eps": 1e-2},
        gguf=(
            "gptneox",
            {
                "rope.dimension_count": 4, "use_parallel_residual": False,
                "attention.layer_norm_epsilon": 1e-2,
            },
        ),
    ),
    "granite": Saved(
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 5.0, "attention_multiplier": 0.11, "residual_multiplier": 0.3,
            "logits_scaling": 3.0,
        },
    ),
    "granite-plain": Saved("GraniteForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "hunyuan": Saved("HunYuanDenseV1ForCausalLM", {"head_dim": 24}),
    "olmo2": Saved("Olmo2ForCausalLM"),
    "olmo2-yarn": Saved("Olmo2ForCausalLM", _yarn()),
    "olmo3": Saved("Olmo3ForCausalLM", {"sliding_window": 20}),
    "olmo3-layer-types": Saved(
        "Olmo3ForCausalLM",
        {
            "sliding_window": 20, "layer_types": [FULL, SLIDING, FULL, FULL, SLIDING],
            "rope_parameters": {
                FULL: {**YARN, "rope_theta": 5e5},
                SLIDING: {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    # transformers splits the convolutions of q, k and v evenly when it saves them.
    "olmo-hybrid": Saved(
        "OlmoHybridForCausalLM",
        {
            "linear_num_key_heads": 4, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
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
    "lfm2-moe": Saved("Lfm2MoeForCausalLM", {**_MOE, "layer_types": _CONV_LAYERS}),
    "lfm2-moe-scaled": Saved(
        "Lfm2MoeForCausalLM",
        {
            **_MOE, "layer_types": _CONV_LAYERS, "use_expert_bias": False, "num_dense_layers": 0,
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
    "minicpm3": Saved(
        "MiniCPM3ForCausalLM",
        {**_LATENT, "v_head_dim": 16},  # hidden_size / heads, as files do not say it
        gguf=(
            "minicpm3",
            {
                "attention.key_length": 24, "attention.kv_lora_rank": 40,
                "attention.q_lora_rank": 24, "rope.dimension_count": 8,
            },
        ),
    ),
    "minicpm3-yarn": Saved(
        "MiniCPM3ForCausalLM",
        {
            **_LATENT, "attention_bias": True, "q_lora_rank": None,
            "scale_depth": None, "dim_model_base": None, "rms_norm_eps": 1e-2,
            **_yarn(mscale=0.7, mscale_all_dim=0.7),
        },
        converted=False,
    ),
    "phi3": Saved("Phi3ForCausalLM", {"sliding_window": None}),
    # llama.cpp leaves this window out.
    "phi3-window": Saved("Phi3ForCausalLM", {"sliding_window": 20}, converted=False),
    "phi3-longrope": Saved(
        "Phi3ForCausalLM",
        {
            "num_attention_heads": 2, "num_key_value_heads": 1,
            "original_max_position_embeddings": 32, "max_position_embeddings": 128,
            "rope_parameters": _longrope(12, partial_rotary_factor=0.75),
        },
    ),
    "smollm3": Saved("SmolLM3ForCausalLM"),
    "smollm3-some": Saved(
        "SmolLM3ForCausalLM",
        {
            "no_rope_layers": [0, 1, 1, 0, 1], "use_sliding_window": True, "sliding_window": 20,
            "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True,
        },
        unsaid=True,
    ),
    # llama.cpp's converter knows the names of 1bitLLM's models alone.
    "bitnet": Saved(
        "BitNetForCausalLM", {"tie_word_embeddings": True}, ternary=True, converted=False
    ),
    "qwen3.5": Saved("Qwen3_5ForCausalLM", _DELTA, converted=False),
    "qwen3.5-regular": Saved("Qwen3_5ForCausalLM", _REGULAR),
    "qwen3.5-vision": Saved(
        "Qwen3_5ForConditionalGeneration", {**_REGULAR, "vision_config": _VISION}, converted=False
    ),
    "llava": Saved("LlavaForConditionalGeneration", {"vision_config": _TOWER | _CLIP}),
    "idefics3": Saved("Idefics3ForConditionalGeneration", {"vision_config": _TOWER}),
    "smolvlm": Saved(
        "SmolVLMForConditionalGeneration", {"vision_config": _TOWER, "rms_norm_eps": 1e-2}
    ),
    "qwen3.5-moe": Saved(
        "Qwen3_5MoeForCausalLM", {**_REGULAR, **_MOE, "shared_expert_intermediate_size": 48}
    ),
    "qwen3-next": Saved(
        "Qwen3NextForCausalLM",
        {**_REGULAR, **_MOE, "shared_expert_intermediate_size": 48},
    ),
    "qwen3-next-of-all": Saved(
        "Qwen3NextForCausalLM",
        {
            **_DELTA, **_MOE, "shared_expert_intermediate_size": 48, "norm_topk_prob": False,
            "rms_norm_eps": 1e-2,
        },
        converted=False,
    ),
    "qwen3.5-moe-vision": Saved(
        "Qwen3_5MoeForConditionalGeneration",
        {**_DELTA, **_MOE, "shared_expert_intermediate_size": 48, "vision_config": _VISION},
        converted=False,
    ),
    "gemma3-vision": Saved(
        "Gemma3ForConditionalGeneration",
        {
            "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24, "pad_token_id": 0,
            "num_hidden_layers": 7, "vision_config": _TOWER,
        },
    ),
    "qwen2.5-vl": Saved(
        "Qwen2_5_VLForConditionalGeneration",
        {
            "vision_config": _VISION,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", **_QWEN2_VL},
        },
    ),
    "qwen2-vl": Saved(
        "Qwen2VLForConditionalGeneration",
        {
            "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 64},
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", **_QWEN2_VL},
        },
    ),
    "qwen3-vl": Saved(
        "Qwen3VLForConditionalGeneration",
        {
            "head_dim": 16, "vision_config": {**_VISION, "deepstack_visual_indexes": [0]},
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, **_QWEN3_VL},
        },
    ),
    "gemma3-base": Saved(
        "Gemma3TextModel",
        {"head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24},
        converted=False,
    ),
    "qwen3-base": Saved(
        "Qwen3Model", {"head_dim": 24, "tie_word_embeddings": True}, converted=False
    ),
    "qwen3-score": Saved("Qwen3ForSequenceClassification", {"head_dim": 24, "num_labels": 1}),
    "bert": Saved("BertModel", _ENCODER),
    "bert-eps": Saved("BertModel", {**_ENCODER, "layer_norm_eps": 1e-2, "type_vocab_size": 1}),
    "bert-score": Saved("BertForSequenceClassification", {**_ENCODER, "num_labels": 1}),
    "nomic-bert": Saved("NomicBertModel", {**_ENCODER, "pad_token_id": 0}),
    "nomic-bert-base": Saved(
        "NomicBertModel",
        {
            **_ENCODER, "pad_token_id": 0, "layer_norm_eps": 1e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "xlm-roberta": Saved("XLMRobertaModel", _BEHIND_PADS),
    "xlm-roberta-score": Saved(
        "XLMRobertaForSequenceClassification", {**_BEHIND_PADS, "num_labels": 1}
    ),
    "modernbert": Saved("ModernBertModel", _MODERN),
    "modernbert-biased": Saved(
        "ModernBertModel",
        {
            **_MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
            "norm_eps": 1e-2, "hidden_activation": "silu",
            "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "default", "rope_theta": 5000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "modernbert-score": Saved("ModernBertForSequenceClassification", {**_MODERN, "num_labels": 1}),
    "modernbert-score-mean": Saved(
        "ModernBertForSequenceClassification",
        {
            **_MODERN, "num_labels": 1, "classifier_pooling": "mean", "classifier_bias": True,
            "norm_bias": True,
        },
    ),
    "jina-v3": Saved("JinaEmbeddingsV3Model", _ENCODER),
    "jina-v3-types": Saved(
        "JinaEmbeddingsV3Model",
        {
            **_ENCODER, "layer_norm_eps": 1e-2, "type_vocab_size": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "jina-v3-score": Saved(
        "JinaEmbeddingsV3ForSequenceClassification", {**_ENCODER, "num_labels": 1}
    ),
    "gte": Saved("GteModel", _ENCODER),
    "gte-no-types": Saved("GteModel", {**_ENCODER, "type_vocab_size": 0, "layer_norm_eps": 1e-2}),
    "gte-score": Saved("GteForSequenceClassification", {**_ENCODER, "num_labels": 1}),
    "eurobert": Saved("EuroBertModel", {"num_key_value_heads": 2}),
    "eurobert-biased": Saved(
        "EuroBertModel", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-2}
    ),
    "embedding-gemma": Saved(
        "Gemma3TextModel",
        {
            "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 20,
            "use_bidirectional_attention": True,
        },
    ),
    "roberta": Saved("RobertaModel", _BEHIND_PADS),
    "roberta-score": Saved("RobertaForSequenceClassification", {**_BEHIND_PADS, "num_labels": 1}),
}  # fmt: skip

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
_SCORES = {**_ALL_KEYS, "num_labels": 1}
_TWO_MODERN = {**_ALL_KEYS, "local_attention": 48, "layer_types": [SLIDING, FULL]}
_TWO_WINDOWS = {"sliding_window": 48, "layer_types": [SLIDING, FULL]}
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
#: By class: fields without which two layers and few positions do not show what is special. Sizes
#: are those of `digests.CONFIG`.
DIGESTED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("BertModel", "XLMRobertaModel", "RobertaModel", "NomicBertModel"), _ALL_KEYS),
    **dict.fromkeys(("JinaEmbeddingsV3Model", "GteModel"), _ALL_KEYS),
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
