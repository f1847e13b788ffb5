"""Models that see images."""

from __future__ import annotations

from model_configs.common import DELTA, GEMMA4, MOE, REGULAR, Saved, yarn

__all__ = ["MODELS"]

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
_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
}  # fmt: skip
MODELS: dict[str, Saved] = {
    "mistral3": Saved("Mistral3ForConditionalGeneration", _MISTRAL3),
    "mistral3-ministral": Saved(
        "Mistral3ForConditionalGeneration",
        {
            **_MISTRAL3, "model_type": "ministral3", "tie_word_embeddings": True,
            **yarn(mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
        },
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
    "gemma4-vision": Saved(
        "Gemma4ForConditionalGeneration",
        {
            **GEMMA4, "pad_token_id": 0, "audio_config": None, "vision_config": {
                "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
            },
        },
        converted=False,
    ),
    "qwen3.5-vision": Saved(
        "Qwen3_5ForConditionalGeneration", {**REGULAR, "vision_config": _VISION}, converted=False
    ),
    "llava": Saved("LlavaForConditionalGeneration", {"vision_config": _TOWER | _CLIP}),
    "llava-next": Saved(
        "LlavaNextForConditionalGeneration",
        {"vision_config": _TOWER | _CLIP, "image_grid_pinpoints": [[32, 64], [64, 32]]},
        converted=False,
    ),
    "idefics3": Saved("Idefics3ForConditionalGeneration", {"vision_config": _TOWER}),
    "smolvlm": Saved(
        "SmolVLMForConditionalGeneration", {"vision_config": _TOWER, "rms_norm_eps": 1e-2}
    ),
    "qwen3.5-moe-vision": Saved(
        "Qwen3_5MoeForConditionalGeneration",
        {**DELTA, **MOE, "shared_expert_intermediate_size": 48, "vision_config": _VISION},
        converted=False,
    ),
    "gemma3-vision": Saved(
        "Gemma3ForConditionalGeneration",
        {
            "head_dim": 24, "sliding_window": 20, "query_pre_attn_scalar": 24, "pad_token_id": 0,
            "num_hidden_layers": 7, "vision_config": _TOWER,
        },
    ),
    "voxtral": Saved(
        "VoxtralForConditionalGeneration",
        {
            "head_dim": 24, "model_type": "llama", "audio_config": {
                "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1,
                "num_attention_heads": 2, "num_mel_bins": 8, "max_source_positions": 8,
            },
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
}  # fmt: skip
