"""The recipes of all families, by name."""

from __future__ import annotations

from dataclasses import replace

import torch

from checkpoint_factory.recipe import Recipe

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    # Small enough that a head_dim of 16 has rotations in all three bands (kept, blended, divided).
    "original_max_position_embeddings": 64,
}
#: In an original context of 64, heads of 16 have pairs before, on and after the ramp.
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
#: Its context is longer than the original one, so that long factors hold.
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0 + i / 16 for i in range(8)],
    "long_factor": [1.0 + i * i / 2 for i in range(8)], "original_max_position_embeddings": 32,
}  # fmt: skip

BITNET = Recipe()
LLAMA = Recipe("LlamaForCausalLM", "float", torch.float32, tied=False)
FALCON = replace(LLAMA, weights="divide", dtype=torch.bfloat16)
# Sizes that formats with groups of 32 divide; Qwen3's heads are wider than hidden / heads.
QWEN2 = replace(
    LLAMA, architecture="Qwen2ForCausalLM", hidden=96, intermediate=160, heads=6, kv_heads=2,
    rope_theta=1e6, seed=19,
)  # fmt: skip
QWEN3 = replace(QWEN2, architecture="Qwen3ForCausalLM", heads=4, kv_heads=2, head_dim=48, seed=21)
# Windows of less than a page and of more; four layers, so that either kind follows the other. Caps
# that scores and logits come near.
GEMMA2 = replace(
    QWEN2, architecture="Gemma2ForCausalLM", heads=4, kv_heads=2, head_dim=48, layers=4, tied=True,
    rope_theta=10000.0, seed=40,
    config={
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40, "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0, "final_logit_softcapping": 0.7,
    },
)  # fmt: skip
GEMMA3 = replace(
    GEMMA2, architecture="Gemma3ForCausalLM", seed=40, rope_theta=1e6,
    config={
        "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 100, "sliding_window_pattern": 3, "query_pre_attn_scalar": 64,
        "rope_local_base_freq": 1000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
)  # fmt: skip
# Heads of 48 in layers with a window, of 64, and one, in the others; the last layers of either kind
# read the keys of others, and have FFNs twice as wide.
GEMMA4 = replace(
    GEMMA2, architecture="Gemma4ForCausalLM", layers=6, seed=80,
    config={
        "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 40,
        "layer_types": ["sliding_attention", "full_attention"] * 3, "global_head_dim": 64,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
        "final_logit_softcapping": 0.7, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
            },
        },
    },
)  # fmt: skip
GRANITE = replace(
    QWEN2, architecture="GraniteForCausalLM", seed=27,
    config={
        "embedding_multiplier": 5.0, "attention_multiplier": 0.11, "residual_multiplier": 0.3,
        "logits_scaling": 3.0, "attention_bias": True,
    },
)  # fmt: skip
SMOLLM3 = replace(
    QWEN2, architecture="SmolLM3ForCausalLM", seed=28, layers=4,
    config={"no_rope_layer_interval": 2, "pad_token_id": None},
)  # fmt: skip
# q, k, v and gate, up are stored as one matrix each; a window of less than a page.
PHI3 = replace(
    QWEN2, architecture="Phi3ForCausalLM", rope_theta=10000.0, seed=60,
    config={"sliding_window": 50, "pad_token_id": None},
)  # fmt: skip
# Two, and then three value heads to a key head; heads and widths that are no multiples of 16; a
# rotation of a quarter of a head, in sections.
QWEN3_5 = replace(
    QWEN2, architecture="Qwen3_5ForCausalLM", heads=4, kv_heads=2, head_dim=32, layers=4, seed=50,
    config={
        "model_type": "qwen3_5_text", "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 24,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1], "mrope_interleaved": True,
        },
    },
)  # fmt: skip
OLMO2 = replace(
    QWEN2, architecture="Olmo2ForCausalLM", rope_theta=10000.0, seed=62,
    config={"pad_token_id": None},
)  # fmt: skip
# The published base: another one, transformers 5.23 takes for layers without a window alone.
OLMO3 = replace(
    OLMO2, architecture="Olmo3ForCausalLM", layers=4, seed=64, rope_theta=500000.0,
    rope_scaling={"rope_type": "yarn", **YARN}, config={"sliding_window": 70, "pad_token_id": None},
)  # fmt: skip
GLM = replace(
    QWEN2, architecture="GlmForCausalLM", heads=4, head_dim=40, rope_theta=10000.0, seed=66,
    config={"pad_token_id": None},
)  # fmt: skip
GLM4 = replace(GLM, architecture="Glm4ForCausalLM", seed=67)
HUNYUAN = replace(
    QWEN2, architecture="HunYuanDenseV1ForCausalLM", heads=4, kv_heads=2, head_dim=48,
    rope_theta=10000.0, tied=True, seed=70,
    rope_scaling={
        "type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    config={"model_type": "hunyuan_v1_dense", "pad_token_id": None, "use_cla": False},
)  # fmt: skip
# Nothing of transformers' own: test_against_transformers makes a Llama of it.
MINICPM = replace(
    QWEN2, architecture="MiniCPMForCausalLM", layers=3, rope_theta=10000.0, seed=72,
    config={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 24},
)  # fmt: skip
# Of 7 experts, whose rows fill no tile, each token takes 3; a file for each.
QWEN3_MOE = replace(
    QWEN3, architecture="Qwen3MoeForCausalLM", seed=70,
    config={
        "model_type": "qwen3_moe", "num_experts": 7, "num_experts_per_tok": 3,
        "moe_intermediate_size": 96, "norm_topk_prob": True,
    },
)  # fmt: skip
MIXTRAL = replace(
    QWEN2, architecture="MixtralForCausalLM", rope_theta=1e6, seed=73,
    config={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
)  # fmt: skip
# Experts of all layers are one tensor each; another one is shared.
QWEN3_5_MOE = replace(
    QWEN3_5, architecture="Qwen3_5MoeForCausalLM", seed=74,
    config=QWEN3_5.config | {
        "model_type": "qwen3_5_moe_text", "num_experts": 9, "num_experts_per_tok": 4,
        "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
    },
)  # fmt: skip
# As published, but for the experts' floats, which are those of a dequantised file.
GPT_OSS = replace(
    QWEN2, architecture="GptOssForCausalLM", heads=4, kv_heads=2, head_dim=32, layers=4, seed=75,
    rope_theta=150000.0, intermediate=64,
    rope_scaling={
        **YARN, "rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
    config={
        "model_type": "gpt_oss", "num_local_experts": 5, "num_experts_per_tok": 2,
        "attention_bias": True, "sliding_window": 40, "swiglu_limit": 1.5, "pad_token_id": None,
    },
)  # fmt: skip
RECIPES: dict[str, Recipe] = {
    "bitnet-multiply": BITNET,
    "bitnet-divide": replace(BITNET, weights="divide", seed=1),
    "bitnet-online": replace(BITNET, weights="online", seed=2),
    "bitnet-excluded": replace(
        BITNET,
        weights="online",
        seed=16,
        config={
            "quantization_config": {
                "quant_method": "bitnet",
                "linear_class": "autobitlinear",
                "quantization_mode": "online",
                "modules_to_not_convert": [
                    "lm_head",
                    "model.layers.0.self_attn.q_proj",
                    "mlp.up_proj",
                ],
            }
        },
    ),
    "bitnet-input-norms": replace(BITNET, input_norms=True, seed=30),
    "falcon-input-norms": replace(FALCON, input_norms=True, seed=31),
    "bitnet-untied": replace(BITNET, tied=False, kv_heads=5, seed=3),
    "bitnet-large-eps": replace(BITNET, config={"rms_norm_eps": 0.01}, seed=12),
    "llama-f32": replace(LLAMA, seed=4),
    "llama-bf16": replace(
        LLAMA, dtype=torch.bfloat16, tied=True, heads=4, kv_heads=2, head_dim=32, seed=5
    ),
    "llama-f16": replace(LLAMA, dtype=torch.float16, heads=8, kv_heads=4, head_dim=48, seed=6),
    "llama-large-eps": replace(LLAMA, config={"rms_norm_eps": 0.01}, seed=11),
    "llama3-rope": replace(LLAMA, rope_scaling=LLAMA3_ROPE, rope_theta=500000.0, seed=7),
    "llama-96": replace(LLAMA, hidden=96, intermediate=160, heads=6, kv_heads=2, seed=14),
    "llama-256": replace(LLAMA, hidden=256, intermediate=512, heads=4, kv_heads=2, seed=15),
    "llama-bias": replace(LLAMA, config={"attention_bias": True, "mlp_bias": True}, seed=16),
    "llama-linear-rope": replace(
        LLAMA, rope_scaling={"rope_type": "linear", "factor": 3.0}, seed=17
    ),
    "llama-yarn": replace(LLAMA, rope_scaling={"type": "yarn", **YARN}, seed=41),
    "llama-yarn-mscale": replace(
        LLAMA,
        seed=42,
        rope_scaling={"rope_type": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1},
    ),
    # The new place of the fields; ends of the ramp within a pair.
    "qwen3-yarn": replace(
        QWEN3,
        seed=43,
        config={
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                **YARN,
                "truncate": False,
                "beta_fast": 16,
                "beta_slow": 2.0,
                "attention_factor": 0.9,
            }
        },
    ),
    "llama-longrope": replace(LLAMA, rope_scaling=LONGROPE, seed=44),
    "qwen3-longrope-short": replace(
        QWEN3,
        seed=45,
        config={
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1 + i / 8 for i in range(24)],
                "long_factor": [9.0] * 24,
                "factor": 2.0,
            },
            "original_max_position_embeddings": 512,
        },
    ),
    "mistral": replace(
        LLAMA, architecture="MistralForCausalLM", config={"sliding_window": None}, seed=18
    ),
    # The heads of bitnet_b1_58-3B, 100 wide, are no multiple of 16 either.
    "llama-heads-of-20": replace(LLAMA, hidden=100, kv_heads=5, seed=23),
    "qwen3-heads-of-36": replace(QWEN3, head_dim=36, config={"attention_bias": True}, seed=24),
    "qwen2": QWEN2,
    "qwen2-bf16": replace(QWEN2, dtype=torch.bfloat16, tied=True, seed=20),
    "qwen3": QWEN3,
    "qwen3-bias": replace(QWEN3, config={"attention_bias": True}, kv_heads=4, seed=22),
    "mistral-window": replace(
        LLAMA, architecture="MistralForCausalLM", config={"sliding_window": 70}, seed=32
    ),
    "qwen2-windows": replace(
        QWEN2,
        config={"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
        seed=33,
    ),
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    # As the large models: no rows of layers, no shared keys; and heads that are no multiples of 16.
    "gemma4-plain": replace(
        GEMMA4,
        dtype=torch.bfloat16,
        head_dim=36,
        layers=3,
        seed=81,
        config=GEMMA4.config
        | {
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "global_head_dim": 40,
            "num_global_key_value_heads": None,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": None,
        },
    ),
    "gemma4-experts": replace(
        GEMMA4,
        layers=4,
        seed=82,
        config=GEMMA4.config
        | {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 64,
        },
    ),
    "granite": GRANITE,
    "smollm3": SMOLLM3,
    "phi3": PHI3,
    # Three quarters of a head are rotated, as in Phi-4-mini.
    "phi3-longrope": replace(
        PHI3,
        tied=True,
        dtype=torch.bfloat16,
        heads=4,
        seed=61,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0 + i / 16 for i in range(9)],
            "long_factor": [1.0 + i * i / 2 for i in range(9)],
        },
        config={
            "sliding_window": 262144,
            "pad_token_id": None,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
        },
    ),
    "olmo2": OLMO2,
    "olmo2-heads-of-36": replace(OLMO2, head_dim=36, kv_heads=1, tied=True, seed=63),
    "olmo3": OLMO3,
    "glm": GLM,
    "glm4": GLM4,
    "glm4-part": replace(
        GLM4,
        dtype=torch.bfloat16,
        seed=68,
        config={"pad_token_id": None, "partial_rotary_factor": 0.8, "attention_bias": False},
    ),
    "hunyuan": HUNYUAN,
    "hunyuan-plain": replace(HUNYUAN, rope_scaling=None, head_dim=36, seed=71),
    "minicpm": MINICPM,
    "minicpm-longrope": replace(MINICPM, tied=True, rope_scaling=LONGROPE, seed=73),
    "qwen3_5": QWEN3_5,
    "qwen3_5-interval": replace(
        QWEN3_5,
        tied=True,
        dtype=torch.bfloat16,
        layers=5,
        seed=51,
        config=QWEN3_5.config
        | {
            "full_attention_interval": 2,
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
        },
    ),
    "qwen3_5-types": replace(
        QWEN3_5,
        layers=3,
        seed=52,
        heads=2,
        head_dim=36,
        config=QWEN3_5.config
        | {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 20,
            "rope_parameters": QWEN3_5.config["rope_parameters"]
            | {
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 3],
            },
        },
    ),
    "qwen3_moe": QWEN3_MOE,
    "mixtral": MIXTRAL,
    "qwen3_5_moe": QWEN3_5_MOE,
    "gpt_oss": GPT_OSS,
    # Shares that do not add up to 1; the second layer's FFN is dense.
    "qwen3_moe-mixed": replace(
        QWEN3_MOE,
        tied=True,
        dtype=torch.bfloat16,
        layers=3,
        seed=71,
        config=QWEN3_MOE.config | {"norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "llama-sharded": replace(LLAMA, dtype=torch.bfloat16, shards=3, seed=8),
    "falcon-e": replace(FALCON, tied=True, heads=8, kv_heads=2, head_dim=16, seed=9),
    "falcon3-untied": replace(FALCON, kv_heads=5, seed=13),
}
