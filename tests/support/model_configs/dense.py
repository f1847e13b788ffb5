"""Dense models of text."""

from __future__ import annotations

from model_configs.common import FULL, LATENT, LLAMA3, SLIDING, YARN, Saved, longrope, yarn

__all__ = ["MODELS"]

# As published: llama.cpp's converter writes as many heads of keys as of queries, a feed-forward
# length of four times the width, and no rope_theta.
_PHI = {"num_key_value_heads": 4, "intermediate_size": 256}
_FALCON = {"ffn_hidden_size": 256, "intermediate_size": 256}
_MPT = {"intermediate_size": 256, "num_key_value_heads": 4, "max_seq_len": 256}
_BLOOM = {"intermediate_size": 256, "num_key_value_heads": 4}
_EPSILON = {"attention.layer_norm_epsilon": 1e-5}  # of LayerNorms
MODELS: dict[str, Saved] = {
    "llama": Saved("LlamaForCausalLM"),
    "llama-bias": Saved("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-heads": Saved("LlamaForCausalLM", {"head_dim": 32, "num_key_value_heads": 4}),
    "llama-tied": Saved("LlamaForCausalLM", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama-llama3": Saved("LlamaForCausalLM", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    "llama-dynamic": Saved(
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
        converted=False,
    ),
    "llama-linear": Saved(
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    ),
    "llama-yarn": Saved("LlamaForCausalLM", yarn()),
    "llama-yarn-factor": Saved("LlamaForCausalLM", yarn(attention_factor=0.8, beta_fast=16.0)),
    "llama-yarn-within-pairs": Saved("LlamaForCausalLM", yarn(truncate=False), unsaid=True),
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
        {"head_dim": 24, **yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)},
    ),
    "qwen2": Saved("Qwen2ForCausalLM"),
    "qwen2-windows": Saved(
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 2},
        unsaid=True,
    ),
    "qwen3": Saved("Qwen3ForCausalLM", {"head_dim": 24}),
    "qwen3-bias": Saved("Qwen3ForCausalLM", {"head_dim": 24, "attention_bias": True}),
    "qwen3-yarn": Saved("Qwen3ForCausalLM", {"head_dim": 32, **yarn(beta_fast=8.0)}),
    "qwen3-layer-types": Saved(
        "Qwen3ForCausalLM",
        {
            "head_dim": 16, "use_sliding_window": True, "sliding_window": 20,
            "layer_types": [FULL, SLIDING, SLIDING, FULL, SLIDING],
        },
        unsaid=True,
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
    # transformers rounds biases to bf16, which is exact where slopes are powers of two.
    "falcon-rw": Saved(
        "FalconForCausalLM",
        {
            **_FALCON, "multi_query": False, "parallel_attn": False, "bias": True, "alibi": True,
            "num_kv_heads": 4, "num_key_value_heads": 4,
        },
        converted=False,
    ),
    "falcon-rw-grouped": Saved(
        "FalconForCausalLM",
        {
            **_FALCON, "new_decoder_architecture": True, "alibi": True, "num_kv_heads": 2,
            "num_attention_heads": 8,
        },
        unsaid=True,
    ),
    "bloom": Saved(
        "BloomForCausalLM", _BLOOM, gguf=("bloom", {**_EPSILON, "attention.head_count_kv": 4})
    ),
    "bloom-heads": Saved(
        "BloomForCausalLM",
        {
            **_BLOOM, "num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 96,
            "intermediate_size": 384, "apply_residual_connection_post_layernorm": True,
            "layer_norm_epsilon": 1e-2,
        },
        unsaid=True,
    ),
    "mpt": Saved(
        "MptForCausalLM",
        _MPT,
        gguf=(
            "mpt",
            {**_EPSILON, "attention.head_count_kv": 4, "attention.max_alibi_bias": 8.0},
        ),
        converted=False,  # the converter knows the older name, MPTForCausalLM
    ),
    "mpt-clip": Saved(
        "MptForCausalLM",
        {
            **_MPT, "num_attention_heads": 6, "num_key_value_heads": 6, "hidden_size": 96,
            "intermediate_size": 384, "layer_norm_epsilon": 1e-2,
            "attn_config": {"clip_qkv": 0.8},
        },
        gguf=(
            "mpt",
            {
                "attention.layer_norm_epsilon": 1e-2, "attention.head_count_kv": 6,
                "attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.8,
            },
        ),
        converted=False,
    ),
    "mpt-scale": Saved(
        "MptForCausalLM", {**_MPT, "attn_config": {"softmax_scale": 0.5}}, converted=False
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
    "hyperclovax": Saved(
        "HyperCLOVAXForCausalLM",
        {
            "embedding_multiplier": 5.0, "attention_multiplier": 0.11, "residual_multiplier": 0.5,
            "logits_scaling": 0.7,
        },
        converted=False,
    ),
    "hyperclovax-plain": Saved(
        "HyperCLOVAXForCausalLM",
        {"use_post_norm": False, "residual_multiplier": 0.3, "attention_bias": True,
         "head_dim": 24},
        converted=False,
    ),
    "hunyuan": Saved("HunYuanDenseV1ForCausalLM", {"head_dim": 24}),
    "olmo2": Saved("Olmo2ForCausalLM"),
    "olmo2-yarn": Saved("Olmo2ForCausalLM", yarn()),
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
    "minicpm3": Saved(
        "MiniCPM3ForCausalLM",
        {**LATENT, "v_head_dim": 16},  # hidden_size / heads, as files do not say it
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
            **LATENT, "attention_bias": True, "q_lora_rank": None,
            "scale_depth": None, "dim_model_base": None, "rms_norm_eps": 1e-2,
            **yarn(mscale=0.7, mscale_all_dim=0.7),
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
            "rope_parameters": longrope(12, partial_rotary_factor=0.75),
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
}  # fmt: skip
