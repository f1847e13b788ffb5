"""What config.json and the tensors say differently is refused by name, or told and used."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import torch
import transformers
from helpers import failure
from model_configs import MODELS
from saved_answers import TOKENS, change, edit, error, logits

from sterna import loading
from sterna.errors import ModelFormatError, UnsupportedModelError


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """A Llama with a head of its own."""
    saved_models.write(tmp_path, MODELS["llama"])
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_differs_is_used(dtype: str, untied: Path, tmp_path: Path) -> None:
    """With a warning, as transformers does; a packed folder has it, too."""

    change(untied, lm_head_weight=lambda t: t["lm_head.weight"].to(getattr(torch, dtype)))
    expected = logits(untied)
    edit(untied, tie_word_embeddings=True)
    with pytest.warns(RuntimeWarning, match="tie_word_embeddings is true, but lm_head.weight"):
        model = loading.load(untied, cached=False)
    with pytest.warns(RuntimeWarning):
        np.testing.assert_array_equal(logits(untied), expected)
    loading.save(model, tmp_path / "packed")
    np.testing.assert_array_equal(logits(tmp_path / "packed"), expected)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(untied, dtype=torch.float32)
    assert error(expected, saved_models.logits_of(theirs.eval(), TOKENS)) < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_is_the_embedding_is_tied(dtype: str, tmp_path: Path) -> None:
    """Silently, and once in memory, also in another type that holds the same values."""

    saved_models.write(tmp_path, MODELS["llama-tied"])

    def embedding(t: dict[str, Any]) -> Any:
        return t["model.embed_tokens.weight"].bfloat16()

    change(tmp_path, model_embed_tokens_weight=lambda t: embedding(t).float())
    expected = logits(tmp_path)
    change(tmp_path, **{"lm_head.weight": lambda t: embedding(t).to(getattr(torch, dtype))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = loading.load(tmp_path, cached=False)
    assert "lm_head" not in model.weights.modules
    np.testing.assert_array_equal(logits(tmp_path), expected)


CONTRADICTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no head": ("llama-tied", {"tie_word_embeddings": False}, "lm_head.weight"),
    "a bias that is said": ("llama", {"attention_bias": True}, "q_proj.bias"),
    "a bias that is not": ("llama-bias", {"attention_bias": False}, "q_proj.bias"),
    "a bias of the FFN": ("llama-bias", {"mlp_bias": False}, "_proj.bias"),
    "wider heads": ("llama", {"head_dim": 32}, "q_proj.weight"),
    "more KV heads": ("llama", {"num_key_value_heads": 4}, "k_proj.weight"),
    "fewer KV heads": ("llama", {"num_key_value_heads": 1}, "k_proj.weight"),
    "other heads": (
        "qwen3", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 48}, "q_norm",
    ),
    "a longer vocabulary": ("llama", {"vocab_size": 300}, "embed_tokens.weight"),
    "a shorter vocabulary": ("llama", {"vocab_size": 259}, "embed_tokens.weight"),
    "a wider FFN": ("llama", {"intermediate_size": 128}, "_proj.weight"),
    "fewer layers": ("llama", {"num_hidden_layers": 4}, "model.layers.4."),
    "more layers": ("llama", {"num_hidden_layers": 6}, "model.layers.5."),
    "no norms of heads": ("llama", {"architectures": ["Qwen3ForCausalLM"]}, "_norm.weight"),
    "norms of heads": ("qwen3", {"architectures": ["LlamaForCausalLM"]}, "_norm.weight"),
    "fewer experts": ("qwen3-moe", {"num_local_experts": 5}, "mlp."),
    "more experts": ("qwen3-moe", {"num_local_experts": 7}, "mlp."),
    "wider experts": ("qwen3-moe", {"moe_intermediate_size": 48}, "experts"),
    "wider values": ("minicpm3", {"v_head_dim": 13}, "kv_b_proj.weight"),
    "an odd latent": ("minicpm3", {"kv_lora_rank": 41}, "kv_lora_rank"),
    "no latent of q": ("minicpm3", {"q_lora_rank": None}, "q_proj.weight"),
    "groups of other sizes": ("deepseek-v3", {"n_group": 3}, "n_group"),
    "another choice of experts": ("deepseek-v2", {"topk_method": "best"}, "topk_method"),
    "dense layers behind": (
        "glm4-moe-lite", {"mlp_layer_types": ["sparse", "dense"] * 2 + ["dense"]},
        "mlp_layer_types",
    ),
    "more taps": ("lfm2", {"conv_L_cache": 4}, "conv.conv.weight"),
    "other groups": ("granite-hybrid", {"mamba_n_groups": 4}, "in_proj.weight"),
    "no divisor": ("granite-hybrid", {"mamba_n_groups": 3}, "mamba_n_groups"),
    "narrower heads": ("granite-hybrid", {"mamba_d_head": 8}, "mamba_d_head"),
    "limits that cross": ("falcon-h1", {"time_step_limit": [2.0, 1.0]}, "time_step_limit"),
    "a multiplier before a bias": ("falcon-h1", {"attention_bias": True}, "in_multiplier"),
    "other letters": ("nemotron-h", {"hybrid_override_pattern": "M-*-X"}, "override_pattern"),
    "fewer letters": ("nemotron-h", {"hybrid_override_pattern": "M-*-M-"}, "layers.5.norm"),
    "no layer that attends": ("bamba", {"attn_layer_indices": []}, "attn_layer_indices"),
    "a layer that is not": ("bamba", {"attn_layer_indices": [1, 5]}, "attn_layer_indices"),
    "attention in no layer": (
        "jamba", {"attn_layer_offset": 6, "attn_layer_period": 9}, "attn_layer_offset"
    ),
    "an offset behind the period": ("jamba", {"expert_layer_offset": 2}, "expert_layer_offset"),
    "other layers with experts": ("jamba", {"expert_layer_offset": 0}, "feed_forward"),
    "a wider step": ("mamba", {"time_step_rank": 5}, "x_proj.weight"),
    "longer states": ("falcon-mamba", {"state_size": 13}, "x_proj.weight"),
    "a step of no width": ("mamba", {"time_step_rank": 0}, "time_step_rank"),
    "a wider lru": ("recurrent-gemma", {"lru_width": 128}, "linear_x.weight"),
    "blocks of different widths": ("recurrent-gemma", {"lru_width": 66}, "lru_width"),
    "an odd FFN": ("recurrent-gemma", {"intermediate_size": 97}, "intermediate_size"),
    "recurrent blocks alone": ("recurrent-gemma", {"block_types": ["recurrent"]}, "block_types"),
    "no block": ("zamba2", {"layers_block_type": ["linear_attention"] * 5}, "layers_block_type"),
    "more blocks than uses": ("zamba2", {"num_mem_blocks": 4}, "num_mem_blocks"),
    "fewer blocks": ("zamba2", {"num_mem_blocks": 1}, "shared_transformer"),
    "a lower rank": ("zamba2", {"adapter_rank": 8}, "adapter_list"),
    "no adapters of q": ("zamba2", {"use_shared_attention_adapter": False}, "_adapter_list"),
    "a long context": ("zamba2", {"use_long_context": True}, "use_long_context"),
    "no attention": ("lfm2", {"layer_types": ["conv"] * 5}, "layer_types"),
    "fewer kinds of layers": ("olmo3", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    "more kinds of layers": ("olmo3", {"layer_types": ["full_attention"] * 6}, "layer_types"),
    "rotations of fewer layers": ("smollm3", {"no_rope_layers": [1, 1]}, "no_rope_layers"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_is_refused_by_name(case: str, tmp_path: Path) -> None:
    """The message names the field or the tensor."""
    name, fields, word = CONTRADICTIONS[case]
    saved_models.write(tmp_path, MODELS[name])
    edit(tmp_path, **fields)
    failure(
        lambda: loading.load(tmp_path, cached=False),
        (ModelFormatError, UnsupportedModelError),
        word,
    )


@pytest.mark.parametrize(
    "name",
    ["model.norm.bias", "lm_head.bias", "lm_head.qweight", "model.layers.2.input_layernorm.bias"],
)
def test_a_tensor_that_nothing_reads_is_refused(name: str, untied: Path) -> None:
    """Left out, it would change every answer."""
    change(untied, **{name: lambda t: t["model.norm.weight"]})
    failure(lambda: loading.load(untied), UnsupportedModelError, name)
