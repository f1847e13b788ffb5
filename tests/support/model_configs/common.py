"""Shared by rows of all kinds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DELTA",
    "FULL",
    "GEMMA4",
    "LATENT",
    "LATENT_KEYS",
    "LINEAR",
    "LLAMA3",
    "MOE",
    "POSITIONS",
    "REGULAR",
    "SIZES",
    "SLIDING",
    "YARN",
    "Saved",
    "longrope",
    "yarn",
]  # fmt: skip

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
LATENT = {
    "kv_lora_rank": 40, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "num_key_value_heads": 4,
}  # fmt: skip
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT_KEYS = {
    "attention.head_count_kv": 1, "attention.key_length": 48, "attention.value_length": 40,
    "attention.key_length_mla": 24, "attention.value_length_mla": 12,
    "attention.kv_lora_rank": 40, "rope.dimension_count": 8, "expert_count": 8,
    "expert_used_count": 2, "expert_feed_forward_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
}  # fmt: skip
DELTA = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
}  # fmt: skip
REGULAR = {**DELTA, "layer_types": [LINEAR, LINEAR, LINEAR, FULL, LINEAR]}
GEMMA4 = {
    "head_dim": 24, "global_head_dim": 32, "sliding_window": 20, "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 272, "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL],
}  # fmt: skip


@dataclass(frozen=True)
class Saved:
    """A class of transformers, and the arguments of its config in addition to `SIZES`.

    ternary: its layers' weights are -s and s.
    converted: whether llama.cpp's converter makes a file of it that means the same.
    unsaid: whether it does make a file, but no key says what is special here, so that llama.cpp
    runs another model, too.
    gguf: its name in GGUF files and the keys that they have in addition to those of Llama;
    tests/gguf/test_saved_models_as_gguf.py makes such a file.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    ternary: bool = False
    converted: bool = True
    unsaid: bool = False
    gguf: tuple[str, dict[str, Any]] | None = None

    @property
    def scores(self) -> bool:
        """Whether it is a cross-encoder, which has scores in the place of logits."""
        return self.name.endswith("ForSequenceClassification")


def yarn(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**YARN, "rope_theta": 10000.0, **more}}


def longrope(pairs: int, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "longrope", "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 16 for i in range(pairs)],
        "long_factor": [1.0 + i * i / 2 for i in range(pairs)], **more,
    }  # fmt: skip
