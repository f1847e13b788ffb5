"""Every supported class as the installed transformers saves it, opened; and what files leave out.

The defaults of each model's module are those of the installed config classes, field by field.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import saved_models
import torch
import transformers
from helpers import failure
from model_configs import MODELS, POSITIONS
from safetensors.torch import load_file, save_file

from sterna import LLM, loading
from sterna.engine import Engine, classify
from sterna.errors import ModelFormatError, SternaError, UnsupportedModelError
from sterna.models import architectures, module_of
from sterna.models.config import TransformerConfig

TOKENS = np.random.default_rng(1).integers(0, 256, POSITIONS).tolist()
TEXTS = [TOKENS[n:] for n in range(10)]  # of a cross-encoder
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


def logits(path: Path) -> np.ndarray:
    """Sterna's, float32 [n, vocab], with float32 keys and the file's own weights."""
    model = loading.load(path, cached=False)
    return Engine(model, threads=1, kv_dtype="f32", deterministic=True).logits([TOKENS])[0]


def scores(path: Path, texts: list[list[int]]) -> np.ndarray:
    """Scores of Sterna's cross-encoder, float32 [texts]."""
    model = loading.load(path, cached=False)
    engine = Engine(model, threads=1, kv_dtype="f32", deterministic=True)
    return classify(engine, [(tokens, len(tokens)) for tokens in texts])[:, 0]


def error(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the spread of logits."""
    return float(np.abs(got - expected).max() / expected.std())


def mean_error(got: np.ndarray, expected: np.ndarray) -> float:
    """The root of the mean square, relative to the spread of logits."""
    return float(((got - expected) ** 2).mean() ** 0.5 / expected.std())


def answers(name: str, path: Path) -> np.ndarray:
    """Sterna's logits of a row of `MODELS`, or its scores."""
    return scores(path, TEXTS) if MODELS[name].scores else logits(path)


def expected_of(name: str, model: Any) -> np.ndarray:
    """Scores of transformers."""
    if MODELS[name].scores:
        return saved_models.scores_of(model, TEXTS)
    return saved_models.logits_of(model, TOKENS)


def error_of(name: str, folder: Path) -> float:
    """That of a row of `MODELS`, which is saved to the folder and opened."""
    model = saved_models.write(folder, MODELS[name])
    return error(answers(name, folder), expected_of(name, model))


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


def edit(folder: Path, **fields: Any) -> None:
    """Sets fields of config.json; "absent" removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


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


# ------------------------------------------------------------- contradictions of config and tensors


def change(folder: Path, **tensors: Any) -> None:
    """Replaces tensors, whose names have _ for each dot; None removes one."""
    path = folder / "model.safetensors"
    stored = load_file(path)
    names = {name.replace(".", "_"): name for name in stored}
    for key, make in tensors.items():
        name = names.get(key, key)
        value = make(stored)
        stored.pop(name, None)
        if value is not None:
            stored[name] = value.contiguous().clone()
    save_file(stored, path, {"format": "pt"})


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """A Llama with a head of its own."""
    saved_models.write(tmp_path, MODELS["llama"])
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_differs_is_used(dtype: str, untied: Path, tmp_path: Path) -> None:
    """With a warning, as transformers does; a packed folder has it, too."""
    import torch

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
    import torch

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


def test_texts_of_a_saved_model(moe: Path) -> None:
    """From the folder's own tokenizer to tokens."""
    assert len(LLM(moe, cache=False).generate("hi", max_tokens=4, ignore_eos=True).tokens) == 4


# --------------------------------------------------------------------- a context beyond the model's


LONG = np.random.default_rng(2).integers(0, 256, 150).tolist()


def longer(folder: Path, **options: Any) -> LLM:
    """With float32 keys."""
    return LLM(folder, cache=False, threads=1, kv_dtype="f32", deterministic=True, **options)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "olmo3", "gemma3"])
def test_more_positions_than_the_model_has(name: str, tmp_path: Path) -> None:
    """With a warning, and transformers' logits, which knows no bound; windows hold there, too."""
    saved = MODELS[name]
    saved = replace(saved, config=saved.config | {"max_position_embeddings": 20})
    model = saved_models.write(tmp_path, saved)
    failure(lambda: longer(tmp_path).logits(LONG), SternaError, "context of 20")
    with pytest.warns(RuntimeWarning, match="context: 160 positions are more than the 20"):
        llm = longer(tmp_path, context=160)
    assert error(llm.logits(LONG), saved_models.logits_of(model, LONG)) < 1e-3


@pytest.mark.parametrize(
    ("name", "scaling", "parameters"),
    [
        ("llama", "yarn:8", {"rope_type": "yarn", "factor": 8.0}),
        ("llama", "linear:8", {"rope_type": "linear", "factor": 8.0}),
        ("llama-llama3", "yarn:8", {"rope_type": "yarn", "factor": 8.0}),
        ("olmo3-layer-types", "linear:8", {"rope_type": "linear", "factor": 8.0}),
    ],
)
def test_a_scaling_that_is_asked_for(
    name: str, scaling: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    """Gives the context and the logits of a config.json that says it, and another digest."""
    saved = MODELS[name]
    saved = replace(saved, config=saved.config | {"max_position_embeddings": 20})
    saved_models.write(tmp_path, saved)
    plain = longer(tmp_path).engine.model.digest
    llm = longer(tmp_path, rope_scaling=scaling)
    assert llm.context == (512 if name == "llama-llama3" else 160)  # whose first context is 64
    assert llm.engine.model.digest != plain
    got = llm.logits(LONG)

    given = json.loads((tmp_path / "config.json").read_text())["rope_parameters"]
    full = given.get("full_attention", given)
    said = {"rope_theta": full["rope_theta"], **parameters}
    if parameters["rope_type"] == "yarn":
        said["original_max_position_embeddings"] = full.get("original_max_position_embeddings", 20)
    said = {**given, "full_attention": said} if "full_attention" in given else said
    edit(tmp_path, rope_parameters=said, max_position_embeddings=160)
    np.testing.assert_array_equal(got, longer(tmp_path).logits(LONG))


@pytest.mark.parametrize("scaling", ["yarn", "yarn:", "yarn:1", "ntk:4", "linear:x", 4, "yarn:nan"])
def test_scalings_that_are_none(scaling: object, untied: Path) -> None:
    """The message has the form."""
    failure(lambda: longer(untied, rope_scaling=scaling), SternaError, "rope_scaling", "FACTOR")
