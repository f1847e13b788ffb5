"""Values of fields that a config.json leaves out: the defaults of transformers' config classes.

One table for all architectures. `tests/models/test_saved_models.py` compares it with the installed
transformers, field by field. For classes that transformers lacks, the authors' code counts. A field
that is null is not left out: the class says what null means.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DEFAULTS"]

_LLAMA: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
_PLAIN = {name: value for name, value in _LLAMA.items() if name != "mlp_bias"}
_UNBIASED = {name: value for name, value in _PLAIN.items() if name != "attention_bias"}
_MISTRAL = {
    **_UNBIASED, "intermediate_size": 14336, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "sliding_window": 4096,
}  # fmt: skip
_QWEN2 = {
    **_UNBIASED, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096,
    "max_window_layers": 28,
}  # fmt: skip
_QWEN3 = {**_QWEN2, "head_dim": 128, "attention_bias": False}
_QWEN3_MOE = {
    **{name: value for name, value in _QWEN3.items() if name not in ("max_window_layers",
                                                                     "head_dim")},
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
    "num_key_value_heads": 4, "decoder_sparse_step": 1, "moe_intermediate_size": 768,
    "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": False,
}  # fmt: skip
_QWEN3_5 = {
    **_PLAIN, "vocab_size": 248320, "intermediate_size": 12288, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}  # fmt: skip
_QWEN3_5_MOE = {
    **{name: value for name, value in _QWEN3_5.items() if name != "intermediate_size"},
    "hidden_size": 2048, "num_hidden_layers": 40, "num_key_value_heads": 2,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 8, "num_experts": 256,
}  # fmt: skip
_GELU = "gelu_pytorch_tanh"
_GEMMA2 = {
    **_PLAIN, "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "hidden_act": _GELU, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}  # fmt: skip
_GEMMA3 = {
    **_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}  # fmt: skip
_GEMMA4 = {
    **_PLAIN, "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "global_head_dim": 512, "hidden_act": _GELU, "max_position_embeddings": 131072,
    "tie_word_embeddings": True, "sliding_window": 512, "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 0, "attention_k_eq_v": False,
    "enable_moe_block": False, "use_double_wide_mlp": False, "final_logit_softcapping": None,
}  # fmt: skip
del _GEMMA4["rope_theta"]  # each kind of layers has its own: models/gemma4.py
_GLM = {
    **_PLAIN, "vocab_size": 151552, "intermediate_size": 13696, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-7, "attention_bias": True, "partial_rotary_factor": 0.5,
}  # fmt: skip
_LAYER_NORM = {
    **{name: value for name, value in _UNBIASED.items() if name != "rms_norm_eps"},
    "layer_norm_eps": 1e-5,
}  # fmt: skip
_OLMO2 = {**_PLAIN, "vocab_size": 50304, "rms_norm_eps": 1e-5}

#: The fields of each architecture, by its name in config.json's `architectures`.
DEFAULTS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _LLAMA,
    "MobileLLMForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "MixtralForCausalLM": {
        **_MISTRAL, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None,
        "num_experts_per_tok": 2, "num_experts": 8,
    },
    "MiniCPMForCausalLM": {
        **_LLAMA, "tie_word_embeddings": True, "dim_model_base": 1, "scale_depth": 1.0,
        "scale_emb": 1.0,
    },
    "GraniteForCausalLM": {
        **_LLAMA, "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
    },
    "SmolLM3ForCausalLM": {
        **_LLAMA, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rope_theta": 2e6, "tie_word_embeddings": True, "use_sliding_window": False,
        "sliding_window": None, "no_rope_layer_interval": 4,
    },
    "HunYuanDenseV1ForCausalLM": {**_PLAIN, "vocab_size": 290943, "rms_norm_eps": 1e-5},
    "Phi3ForCausalLM": {
        **_UNBIASED, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "partial_rotary_factor": 1.0,
        "sliding_window": None,
    },
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3Model": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5_MOE,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5_MOE,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3TextModel": _GEMMA3,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": _GLM,
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": {**_OLMO2, "rope_theta": 500000.0, "sliding_window": 4096},
    "GptOssForCausalLM": {
        **_PLAIN, "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0, "attention_bias": True, "sliding_window": 128,
        "num_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    },
    "CohereForCausalLM": {
        **_LAYER_NORM, "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
        "logit_scale": 0.0625, "num_hidden_layers": 40, "num_attention_heads": 64,
        "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "attention_bias": False, "use_qk_norm": False,
    },
    "Starcoder2ForCausalLM": {
        **{name: value for name, value in _LAYER_NORM.items() if name != "layer_norm_eps"},
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
        "hidden_act": _GELU, "max_position_embeddings": 4096, "norm_epsilon": 1e-5,
        "sliding_window": None, "use_bias": True, "tie_word_embeddings": True,
    },
    "PhiForCausalLM": {
        **_LAYER_NORM, "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 24, "hidden_act": "gelu_new", "partial_rotary_factor": 0.5,
        "qk_layernorm": False,
    },
    "GPTNeoXForCausalLM": {
        **_LAYER_NORM, "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576,
        "num_hidden_layers": 44, "num_attention_heads": 64, "hidden_act": "gelu",
        "partial_rotary_factor": 0.25, "use_parallel_residual": True, "attention_bias": True,
    },
    "BitNetForCausalLM": {
        **_PLAIN, "vocab_size": 128256, "hidden_size": 2560, "intermediate_size": 6912,
        "num_hidden_layers": 30, "num_attention_heads": 20, "num_key_value_heads": 5,
        "hidden_act": "relu2", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    },
    "BitnetForCausalLM": _LLAMA,  # 1bitLLM's
}  # fmt: skip
