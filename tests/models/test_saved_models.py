"""Every supported class as the installed transformers saves it, opened; and what files leave out.

The defaults of each model's module are those of the installed config classes, field by field.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import saved_models
import torch
import transformers
from helpers import failure
from model_configs import MODELS
from safetensors.torch import load_file, save_file
from saved_answers import (
    edit,
    error_of,
    logits,
)

from sterna import LLM, loading
from sterna.errors import ModelFormatError, SternaError
from sterna.models import architectures, module_of
from sterna.models.config import TransformerConfig

#: Classes that transformers has not: their authors' own code has.
OTHERS = {
    "BitnetForCausalLM", "ExaoneMoEForCausalLM", "JinaBertForMaskedLM",
    "JinaBertForSequenceClassification", "JinaBertModel", "MPTForCausalLM", "MapleForCausalLM",
    "MiniCPMForCausalLM",
    "MobileLLMForCausalLM", "PhiMoEForCausalLM",
}  # fmt: skip
#: Classes whose towers another package has; `test_gemma3n` nests their text.
TOWERS = {"Gemma3nForConditionalGeneration"}
#: Of the classes' fields, those that say nothing of how a text is computed.
SAYS_NOTHING = {
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "eod_token_id", "initializer_range",
    "attention_dropout", "resid_pdrop", "embd_pdrop", "router_jitter_noise", "pretraining_tp",
    "input_jitter_noise",
    "output_router_logits", "num_nextn_predict_layers", "sep_token_id",
    "router_aux_loss_coef", "output_attentions", "output_hidden_states",
    "return_dict", "chunk_size_feed_forward", "is_encoder_decoder", "id2label", "label2id",
    "problem_type", "_name_or_path", "residual_dropout", "embedding_dropout", "hidden_dropout",
    "classifier_dropout", "is_decoder", "attn_pdrop", "dropout", "layerdrop", "init_std",
    "summary_type", "summary_use_proj", "summary_proj_to_labels", "summary_first_dropout",
    "summary_activation", "reorder_and_upcast_attn", "attention_softmax_in_fp32",
    "scale_attention_softmax_in_fp32", "resid_dropout", "embed_dropout",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "num_logits_to_keep",
    "mamba_chunk_size", "chunk_size", "use_mamba_kernels", "mamba_ssm_cache_dtype",
    "time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "residual_in_fp32",
    "rescale_prenorm_residual", "moe_shared_expert_overlap", "mtp_layers_block_type",
    "mask_token_id",
    "initializer_cutoff_factor",
    "cls_token_id", "mlp_dropout", "decoder_bias", "sparse_prediction",
    "deterministic_flash_attn", "sparse_pred_ignore_index",
    "linear_a_log_min", "linear_a_log_max", "linear_dt_min", "linear_dt_max",
    "linear_dt_init_floor", "altup_coef_clip", "z_loss_coefficient",
    "time_step_scale", "time_step_init_scheme", "use_mambapy", "use_associative_scan",
    "w_init_variance_scale", "final_w_init_variance_scale",
    "use_mem_eff_path", "init_device", "emb_pdrop", "embedding_fraction", "learned_pos_emb",
}  # fmt: skip
#: Those that follow from others, which an architecture's `complete` fills in.
FOLLOWS = {
    "layer_types", "rope_parameters", "no_rope_layers", "per_layer_config", "mlp_only_layers",
    "use_bidirectional_attention", "original_max_position_embeddings", "full_attn_idxs",
    "qk_head_dim", "mlp_layer_types", "moe_layer_end_index", "moe_layers", "attention_layers",
    "layers_block_type", "mamba_d_head", "mamba_dt_rank", "lru_width",
    "attention_head_dim", "attention_hidden_size", "mamba_headdim", "kv_channels",
    "num_query_groups", "hybrid_layer_ids",
}  # fmt: skip
#: Fields that older files have, in the place of rope_parameters and layer_types.
OLDER = {
    "rope_theta", "partial_rotary_factor", "rope_local_base_freq", "full_attention_interval",
    "global_head_dim", "global_rope_theta", "local_rope_theta", "global_attn_every_n_layers",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*are skipped, a vision tower")
@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_saves_opens(name: str, tmp_path: Path) -> None:
    """Its logits, or scores, are those of the model that was saved."""
    # Ternary layers round their inputs to int8; floats differ by the order of sums alone.
    assert error_of(name, tmp_path) < (0.3 if MODELS[name].ternary else 1e-3)


def test_olmo_hybrid_as_its_makers_cut_it(tmp_path: Path) -> None:
    """The convolutions of q, k and v with their own widths, which transformers saves in thirds."""
    saved_models.write(tmp_path, MODELS["olmo-hybrid"])
    expected, file = logits(tmp_path), tmp_path / "model.safetensors"
    tensors, layer = load_file(file), "model.layers.0.linear_attn"
    names = [f"{layer}.{part}_conv1d.weight" for part in "qkv"]
    assert [len(tensors[name]) for name in names] == [75, 75, 74]
    cut = torch.cat([tensors[name] for name in names]).split((64, 64, 96))
    tensors |= {name: part.clone() for name, part in zip(names, cut, strict=True)}
    save_file(tensors, file, {"format": "pt"})
    assert (logits(tmp_path) == expected).all()
    tensors[names[0]] = tensors[names[0]][:-1]
    save_file(tensors, file, {"format": "pt"})
    failure(lambda: logits(tmp_path), ModelFormatError, names[0], "[64, 1, 4]")


def test_every_class_is_among_them() -> None:
    """That transformers has and Sterna runs."""
    assert {saved.name for saved in MODELS.values()} == set(architectures()) - OTHERS - TOWERS


@pytest.mark.parametrize("name", sorted(set(architectures()) - OTHERS))
def test_defaults_are_those_of_the_class(name: str) -> None:
    """Every field of the class is among them, with its value, and no other field is."""
    module = module_of({"architectures": [name]}, Path())
    kind = getattr(transformers, name).config_class
    text = kind().get_text_config()
    theirs = {k: v for k, v in text.to_dict().items() if k not in SAYS_NOTHING | FOLLOWS}
    if "attn_config" in theirs:  # MPT's
        nested = theirs["attn_config"].items()
        theirs["attn_config"] = {k: v for k, v in nested if k not in SAYS_NOTHING | {"attn_impl"}}
    theirs["num_experts"] = theirs.pop("num_local_experts", theirs.get("num_experts"))
    theirs["hidden_act"] = theirs.pop("hidden_activation", theirs.get("hidden_act"))
    if "mamba" in module.__name__ and "num_attention_heads" not in theirs:
        theirs.pop("intermediate_size", None)  # of the expansion
    if "_sliding_window_pattern" in theirs:
        theirs["sliding_window_pattern"] = theirs.pop("_sliding_window_pattern")
    for other, usual in getattr(module, "ALIASES", {}).items():
        if other in theirs:
            theirs[usual] = theirs.pop(other)
    if theirs.get("num_key_value_heads") is None and "num_attention_heads" in theirs:
        theirs["num_key_value_heads"] = theirs["num_attention_heads"]
    ours = {k: v for k, v in module.DEFAULTS.items() if k not in SAYS_NOTHING}
    if theirs.get("use_sliding_window") is False:  # which makes null of a window
        theirs.pop("sliding_window")
        ours.pop("sliding_window")
    heads = ours.get("num_attention_heads")  # none, where nothing attends
    if ours.get("num_key_value_heads") is None and heads:
        ours["num_key_value_heads"] = heads
    if heads and theirs.get("head_dim") == ours["hidden_size"] // heads:
        ours.setdefault("head_dim", theirs["head_dim"])
    wrong = {
        field: (ours.get(field), theirs.get(field))
        for field in (ours.keys() - OLDER) | theirs.keys()
        if ours.get(field) != theirs.get(field)
    }
    assert not wrong, f"DEFAULTS must have the class's values (second), but got {wrong}"
    rope = getattr(text, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    if "rope_theta" in ours:
        assert ours["rope_theta"] == full["rope_theta"]
    for field in {"partial_rotary_factor"} & ours.keys():
        assert ours[field] == full[field]


#: Classes whose defaults are no model (heads of GLM have 42 features, of which 21 are rotated), or
#: one without attention or ALiBi, or whose contexts end before theirs or have another name.
NO_DEFAULTS = {
    "BambaForCausalLM", "BloomForCausalLM", "DeepseekV32ForCausalLM", "JinaBertForMaskedLM",
    "JinaBertForSequenceClassification", "JinaBertModel", "MptForCausalLM",
    "Gemma4ForConditionalGeneration", "Glm4MoeForCausalLM",
    "GraniteMoeHybridForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration",
    "FalconMambaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "PhiMoEForCausalLM",
    "RecurrentGemmaForCausalLM",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(architectures()) - NO_DEFAULTS))
def test_a_config_may_say_nothing(name: str) -> None:
    """Heads, experts and the context are the class's; a cross-encoder says its labels."""
    fields, file = {"architectures": [name]}, Path("config.json")
    fields |= {"num_labels": 1} if name.endswith("ForSequenceClassification") else {}
    config = TransformerConfig.of(module_of(fields, file), fields, file)
    if name in OTHERS:
        module = module_of(fields, file)
        assert config.max_position == module.DEFAULTS.get("max_position_embeddings", 2048)
        return
    theirs = getattr(transformers, name).config_class().get_text_config()
    kv_heads = getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads
    kv_heads = 1 if getattr(theirs, "multi_query", False) else kv_heads
    assert (config.n_heads, config.n_kv_heads) == (theirs.num_attention_heads, kv_heads)
    windowed = name == "MistralForCausalLM"  # all of its layers, so the window is no bound
    behind = theirs.pad_token_id + 1 if "oberta" in name else 0  # RoBERTa's first position
    assert config.max_position == theirs.max_position_embeddings - behind or windowed
    experts = getattr(theirs, "num_experts", getattr(theirs, "num_local_experts", None))
    assert config.fields.config.get("num_experts") == experts


@pytest.fixture
def moe(tmp_path: Path) -> Path:
    """Qwen3 with experts."""
    saved_models.write(tmp_path, MODELS["qwen3-moe"])
    return tmp_path


def test_two_names_of_one_field(moe: Path) -> None:
    """May both be there, and may not differ; an error names the file's own."""
    expected = logits(moe)
    edit(moe, num_experts=6)
    np.testing.assert_array_equal(logits(moe), expected)
    edit(moe, num_experts=5)
    failure(lambda: loading.load(moe), ModelFormatError, "num_local_experts", "num_experts", "6")
    edit(moe, num_experts="absent", num_local_experts=0)
    failure(lambda: loading.load(moe), ModelFormatError, "num_local_experts", "whole number")


def test_gpt2_as_published(tmp_path: Path) -> None:
    """Names have no `transformer.`, and masks are tensors."""
    saved_models.write(tmp_path, MODELS["gpt2"])
    expected, path = logits(tmp_path), tmp_path / "model.safetensors"
    stored = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    masks = {f"h.{i}.attn.bias": stored["ln_f.bias"].reshape(1, 1, 8, 8).clone() for i in range(5)}
    save_file({**stored, **masks}, path, {"format": "pt"})
    np.testing.assert_array_equal(logits(tmp_path), expected)


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_learned_positions_end(name: str, tmp_path: Path) -> None:
    """No context is longer than the table of positions."""
    saved_models.write(tmp_path, MODELS[name])
    assert LLM(tmp_path, cache=False).context == 256
    failure(lambda: LLM(tmp_path, cache=False, context=300), SternaError, "context", "256")


def test_scaling_that_was_added_by_hand(tmp_path: Path) -> None:
    """rope_scaling overrides rope_parameters: guides to longer contexts tell users to add it."""
    saved_models.write(tmp_path, MODELS["qwen3"])
    edit(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0,
                                 "original_max_position_embeddings": 32})  # fmt: skip
    with pytest.warns(RuntimeWarning, match="rope_parameters and rope_scaling differ"):
        got = loading.load(tmp_path, cached=False).config
    assert got.attention[0].rotary is not None
    assert got.attention[0].rotary.factor > 1.1
    edit(tmp_path, rope_scaling="absent", rope_theta=5.0)
    with pytest.warns(RuntimeWarning, match="rope_theta is 5.0, but 10000.0 within"):
        loading.load(tmp_path, cached=False)


def test_texts_of_a_saved_model(moe: Path) -> None:
    """From the folder's own tokenizer to tokens."""
    assert len(LLM(moe, cache=False).generate("hi", max_tokens=4, ignore_eos=True).tokens) == 4
