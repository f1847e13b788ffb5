"""Fields of config.json for single layers, and fields that only one architecture reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from checkpoint_factory import RECIPES, config, write
from helpers import failure

from sterna.checkpoints.directory import Checkpoint
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.graph import Graph, GraphBuilder
from sterna.models import module_of
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.weights.checkpoint_weights import CheckpointWeights


def read(recipe: str, **changes: Any) -> TransformerConfig:
    """The recipe's config with these fields, as a model of its architecture is loaded."""
    fields = {**config(RECIPES[recipe]), "max_position_embeddings": 32768, **changes}
    fields = {k: v for k, v in fields.items() if v != "absent"}
    file = Path("config.json")
    return TransformerConfig.of(module_of(fields, file), fields, file)


def windows(c: TransformerConfig) -> list[int | None]:
    """Of each layer."""
    return [how.window for how in c.attention]


def test_windows() -> None:
    """Which layers have one, by the fields of each architecture."""
    assert windows(read("mistral")) == [None, None]  # the file says null
    assert windows(read("mistral", sliding_window="absent")) == [4096, 4096]
    assert windows(read("mistral", sliding_window=100)) == [100, 100]
    assert windows(read("mistral", sliding_window=32768)) == [None, None]
    assert windows(read("qwen2", sliding_window=100)) == [None, None]
    both = {"sliding_window": 100, "use_sliding_window": True}
    assert windows(read("qwen2", **both)) == [None, None]  # of 28 layers the first
    assert windows(read("qwen3", **both, max_window_layers=1)) == [None, 100]
    types = ["sliding_attention", "full_attention"]
    assert windows(read("qwen2", **both, layer_types=types)) == [100, None]
    assert windows(read("gemma2")) == [40, None, 40, None]
    assert windows(read("gemma3")) == [100, 100, None, 100]
    assert windows(read("gemma4")) == [40, None] * 3
    assert windows(read("smollm3", **both)) == [None, 100, None, 100]
    assert windows(read("olmo3")) == [70, 70, 70, None]
    assert windows(read("olmo3", sliding_window="absent", layer_types=types * 2)) == [
        4096, None, 4096, None
    ]  # fmt: skip
    assert windows(read("olmo2", sliding_window=100)) == [None, None]
    assert windows(read("phi3")) == [50, 50]
    assert windows(read("phi3", sliding_window="absent")) == [None, None]
    assert windows(read("phi3", sliding_window=262144)) == [None, None]
    assert read("gemma3").max_position == 32768
    # Llama's graph has none: within one, sliding attention is full attention.
    assert read("llama-f32", sliding_window=100).max_position == 100


def test_rotations_of_layers() -> None:
    """Gemma 3 has two kinds, in files of either spelling; SmolLM3's are absent in some layers."""
    local, _, full, _ = (how.rotary for how in read("gemma3").attention)
    assert local.inverse_frequencies[1] == pytest.approx(1000 ** (-2 / 48))
    assert full.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 48) / 8)
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    }
    gone = dict.fromkeys(("rope_theta", "rope_local_base_freq", "rope_scaling"), "absent")
    assert read("gemma3", **gone, rope_parameters=parameters) == read("gemma3")
    rotated = [how.rotary is not None for how in read("smollm3").attention]
    assert rotated == [True, False, True, False]


def test_rotations_of_olmo3() -> None:
    """Scaling for a longer context applies to layers without a window, in old and new files."""
    wanted = read("olmo3")
    local, _, _, full = (how.rotary for how in wanted.attention)
    assert local.factor == 1 < full.factor
    assert local.inverse_frequencies[-1] > 3.9 * full.inverse_frequencies[-1]
    scaling = config(RECIPES["olmo3"])["rope_scaling"]
    parameters = {
        "full_attention": {**scaling, "rope_theta": 500000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
    }
    gone = dict.fromkeys(("rope_theta", "rope_scaling"), "absent")
    assert read("olmo3", **gone, rope_parameters=parameters) == wanted
    assert read("olmo3", rope_theta="absent") == wanted


def test_rotations_of_glm() -> None:
    """Half of a head where nothing is said; neighbours together."""
    for name in ("glm", "glm4"):
        rotary = read(name).attention[0].rotary
        assert rotary is not None
        assert rotary.interleaved
        assert len(rotary.inverse_frequencies) == 10  # of 20 pairs
    wanted = read("glm4-part")
    moved = {"rope_theta": 10000.0, "partial_rotary_factor": 0.8, "rope_type": "default"}
    gone = dict.fromkeys(("rope_theta", "partial_rotary_factor"), "absent")
    assert read("glm4-part", **gone, rope_parameters=moved) == wanted


def test_the_base_of_hunyuan() -> None:
    """theta alpha^(d / (d - 2)), in files of either age; other dynamic scalings are refused."""
    wanted = read("hunyuan")
    rotary = wanted.attention[0].rotary
    assert rotary is not None
    base = 10000 * 50 ** (48 / 46)
    assert rotary.inverse_frequencies[1] == pytest.approx(base ** (-2 / 48), rel=1e-6)
    moved = config(RECIPES["hunyuan"])["rope_scaling"] | {"rope_theta": 10000.0}
    gone = dict.fromkeys(("rope_theta", "rope_scaling"), "absent")
    assert read("hunyuan", **gone, rope_parameters=moved) == wanted


def test_rotations_of_phi3() -> None:
    """The fields of either place and age say the same; without any, all of a head is rotated."""
    wanted = read("phi3-longrope")
    first = wanted.attention[0].rotary
    assert first is not None
    assert len(first.inverse_frequencies) == 9  # of 12 pairs
    assert first.short_context == 32
    scaling = config(RECIPES["phi3-longrope"])["rope_scaling"]
    for name in ("su", "yarn"):
        assert read("phi3-longrope", rope_scaling=scaling | {"type": name}) == wanted
    moved = scaling | {"rope_theta": 10000.0, "partial_rotary_factor": 0.75}
    gone = dict.fromkeys(("rope_theta", "rope_scaling", "partial_rotary_factor"), "absent")
    assert read("phi3-longrope", **gone, rope_parameters=moved) == wanted
    unsaid = read("phi3-longrope", original_max_position_embeddings="absent").attention[0].rotary
    assert unsaid is not None
    assert unsaid.short_context == 4096
    plain = read("phi3", rope_scaling=None).attention[0].rotary
    assert plain is not None
    assert len(plain.inverse_frequencies) == 8


BAD_OF_LAYERS = [
    ("gemma2", {"sliding_window": 0}, ModelFormatError, "sliding_window"),
    ("mistral", {"sliding_window": 0}, ModelFormatError, "sliding_window"),
    ("gemma2", {"sliding_window": None}, ModelFormatError, "sliding_window"),
    ("gemma2", {"layer_types": ["full_attention"] * 3}, ModelFormatError, "layer_types"),
    ("gemma3", {"layer_types": "full_attention"}, ModelFormatError, "layer_types"),
    ("gemma3", {"layer_types": ["linear_attention"] * 4}, UnsupportedModelError, "linear_att"),
    ("gemma2", {"hidden_activation": "mish"}, UnsupportedModelError, "hidden_activation"),
    ("gemma3", {"attn_logit_softcapping": 5.0}, UnsupportedModelError, "attn_logit_softcapping"),
    ("gemma3", {"rope_scaling": "linear"}, ModelFormatError, "rope_scaling"),
    ("gemma3", {"rope_parameters": {"full_attention": 3}}, ModelFormatError, "full_attention"),
    ("gemma3", {"sliding_window_pattern": 0}, ModelFormatError, "sliding_window_pattern"),
    ("gemma4", {"enable_moe_block": 1}, ModelFormatError, "enable_moe_block"),
    ("gemma4", {"layer_types": ["full_attention"] * 5}, ModelFormatError, "layer_types"),
    ("gemma4", {"num_kv_shared_layers": 7}, ModelFormatError, "num_kv_shared_layers"),
    ("gemma4", {"num_kv_shared_layers": 5}, ModelFormatError, "num_kv_shared_layers"),
    ("gemma4", {"num_global_key_value_heads": 3}, ModelFormatError, "num_global_key_value"),
    ("gemma4", {"use_bidirectional_attention": "all"}, UnsupportedModelError, "bidirectional"),
    ("gemma4", {"per_layer_config": {"0": {"head_dim": 64}}}, ModelFormatError, "per_layer_config"),
    ("gemma4", {"hidden_size_per_layer_input": 20}, ModelFormatError, "per_layer_input"),
    ("gemma4", {"vocab_size_per_layer_input": 7}, UnsupportedModelError, "per_layer_input"),
    ("gemma4", {"sliding_window": 0}, ModelFormatError, "sliding_window"),
    ("smollm3", {"no_rope_layers": [1, 0, 1]}, ModelFormatError, "no_rope_layers"),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 2]}, UnsupportedModelError, "no_rope_layers"),
    ("smollm3", {"no_rope_layer_interval": 0}, ModelFormatError, "no_rope_layer_interval"),
    ("phi3", {"partial_rotary_factor": 0.6}, ModelFormatError, "partial_rotary_factor"),
    ("phi3", {"partial_rotary_factor": 1.5}, ModelFormatError, "partial_rotary_factor"),
    ("phi3", {"partial_rotary_factor": "1"}, ModelFormatError, "partial_rotary_factor"),
    ("phi3", {"rope_scaling": {"type": "ntk"}}, UnsupportedModelError, "rope_type"),
    ("olmo3", {"sliding_window": 0}, ModelFormatError, "sliding_window"),
    ("olmo3", {"layer_types": ["full_attention"] * 3}, ModelFormatError, "layer_types"),
    ("olmo3", {"rope_parameters": {"full_attention": 3}}, ModelFormatError, "full_attention"),
    ("glm4", {"partial_rotary_factor": 0.33}, ModelFormatError, "partial_rotary_factor"),
    ("glm4", {"attention_bias": 1}, ModelFormatError, "attention_bias"),
    ("hunyuan", {"rope_scaling": {"type": "dynamic"}}, ModelFormatError, "factor"),
    ("hunyuan", {"rope_scaling": {"type": "dynamic", "alpha": 0}}, ModelFormatError, "alpha"),
    ("hunyuan", {"rope_scaling": {"type": "dynamic", "alpha": "9"}}, ModelFormatError, "alpha"),
    ("hunyuan", {"head_dim": 2}, ModelFormatError, "head_dim"),
    ("hunyuan", {"use_cla": True}, UnsupportedModelError, "use_cla"),
    ("hunyuan", {"use_qk_norm": False}, UnsupportedModelError, "use_qk_norm"),
    ("minicpm", {"num_experts": 8}, UnsupportedModelError, "num_experts"),
    ("minicpm", {"sparse_config": {"topk": 64}}, UnsupportedModelError, "sparse_config"),
    ("qwen2", {"rotary_dim": 7}, ModelFormatError, "rotary_dim"),
    ("qwen2", {"rotary_dim": 18}, ModelFormatError, "rotary_dim"),
]


@pytest.mark.parametrize(("recipe", "changes", "kind", "word"), BAD_OF_LAYERS)
def test_bad_fields_of_layers(recipe: str, changes: dict[str, Any], kind: type, word: str) -> None:
    """Each is named, in one line, with what it must be."""
    failure(lambda: read(recipe, **changes), kind, word)


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        ("gemma2", "attn_logit_softcapping"), ("gemma2", "final_logit_softcapping"),
        ("gemma3", "query_pre_attn_scalar"), ("granite", "embedding_multiplier"),
        ("granite", "attention_multiplier"), ("granite", "residual_multiplier"),
        ("granite", "logits_scaling"), ("minicpm", "scale_emb"), ("minicpm", "scale_depth"),
        ("minicpm", "dim_model_base"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [0, -1.0, 1e-20, 1e9, float("nan"), "2", [2.0]])
def test_bad_numbers_of_an_architecture(
    recipe: str, field: str, value: object, tmp_path: Path
) -> None:
    """Fields that only its own file reads are checked as well."""
    file = write(tmp_path / "m", RECIPES[recipe]) / "config.json"
    fields = json.loads(file.read_text()) | {field: value}
    failure(lambda: build_of(fields, file), ModelFormatError, field)


def build_of(fields: dict[str, Any], file: Path) -> Graph:
    """The graph of a config.json whose weights are in the folder of `file`."""
    module = module_of(fields, file)
    c = TransformerConfig.of(module, fields, file)
    weights = CheckpointWeights(Checkpoint.open(file.parent), None, None, 1, False)
    m = ModelBuilder(GraphBuilder(c.heads), c, weights)
    module.build(m)
    return m.graph.graph
