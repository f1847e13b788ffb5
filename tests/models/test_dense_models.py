"""What dense checkpoints add to Llama's graph: biases, norms of heads, windows, rope factors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import LLAMA3_ROPE, RECIPES, config, tensors, write
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sterna import loading
from sterna.checkpoints.directory import Checkpoint
from sterna.engine import Engine
from sterna.errors import ModelFormatError, NonFiniteError, UnsupportedModelError
from sterna.graph import GraphBuilder
from sterna.llm import LLM
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.options import AttentionOptions
from sterna.weights.checkpoint_weights import CheckpointWeights

BIAS = "model.layers.1.self_attn.k_proj.bias"
Change = Callable[[dict[str, torch.Tensor]], None]


def spoiled(folder: Path, recipe: str, change: Change) -> Path:
    """A checkpoint of the recipe whose tensors were changed."""
    write(folder, RECIPES[recipe])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    return folder


#: An architecture that changes no field and has no defaults.
SILU = ModuleType("silu")
SILU.ACTIVATION = "silu"
SILU.DEFAULTS = {}


def parsed(recipe: str, defaults: dict[str, Any], **changes: Any) -> TransformerConfig:
    """The recipe's config with these fields, as an architecture with these defaults reads it."""
    fields = {**defaults, **config(RECIPES[recipe]), **changes}
    return TransformerConfig.of(SILU, fields, Path("config.json"))


@pytest.mark.parametrize(
    "recipe",
    [
        "llama-bias", "llama3-rope", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma4",
        "granite", "smollm3", "mistral-window", "phi3", "olmo2", "olmo3", "glm", "glm4", "hunyuan",
    ],
)  # fmt: skip
def test_greedy_tokens(recipe: str, checkpoint: Callable[[str], Path]) -> None:
    """Forty tokens as transformers generates them in float32."""
    folder = checkpoint(recipe)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = [17, 3, 250, 99, 8, 120]
    options = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        expected = reference.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
    llm = LLM(folder, kv_dtype="f32", deterministic=True, threads=1)
    got = llm.generate(prompt, max_tokens=40, temperature=0, ignore_eos=True)
    assert got.tokens == expected
    assert len(set(expected)) > 4, "a sequence that repeats itself shows little"


@pytest.mark.parametrize("recipe", ["llama-bias", "qwen2", "qwen3-bias"])
def test_every_bias_counts(recipe: str, tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Each bias and each norm of heads, changed by itself, changes the logits."""
    folder, tokens = checkpoint(recipe), [list(range(9))]

    def logits(path: Path) -> np.ndarray:
        return Engine(loading.load(path), threads=1, kv_dtype="f32").logits(tokens)[0]

    first = logits(folder)
    added = [n for n in tensors(RECIPES[recipe]) if n.endswith((".bias", "q_norm.weight"))]
    assert added
    for i, name in enumerate(added):

        def change(tensors: dict[str, torch.Tensor], name: str = name) -> None:
            tensors[name][3] += 1

        moved = np.abs(logits(spoiled(tmp_path / str(i), recipe, change)) - first).max()
        # Softmax does not see what all keys have in common, but for the rotation.
        assert moved > 1e-5, name


def test_fast_arithmetic(checkpoint: Callable[[str], Path]) -> None:
    """Sums of bf16 products get the same biases; the same bits for any threads and chunks."""
    model, tokens = loading.load(checkpoint("qwen2-bf16")), [list(range(40))]
    exact = Engine(model, threads=1, deterministic=True).logits(tokens)[0]
    fast = Engine(model, threads=1, deterministic=False).logits(tokens)[0]
    for threads, chunk in ((2, None), (3, 1), (1, 17)):
        engine = Engine(model, threads=threads, deterministic=False)
        assert_same_bits(engine.logits(tokens, chunk=chunk)[0], fast)
    # Activations are rounded to bf16, 2^-9 of them, before each of 14 layers and their sums.
    assert np.abs(fast - exact).max() < 14 * 2**-9 * np.abs(exact).max()


def test_packed_directory(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Biases and norms of heads are stored, and the architecture's defaults apply again."""
    model = loading.load(checkpoint("qwen3-bias"), format="q4_0", head="q8_0")
    loading.save(model, tmp_path / "packed")
    tokens = [list(range(20))]
    reread = loading.load(tmp_path / "packed")
    assert reread.format == "q4_0"
    assert_same_bits(Engine(reread).logits(tokens)[0], Engine(model).logits(tokens)[0])


def test_bad_tensors(tmp_path: Path) -> None:
    """A bias missing, of another shape, not finite, or that the architecture does not have."""
    cases: list[tuple[str, Change, type, str]] = [
        ("qwen2", lambda t: t.pop(BIAS), ModelFormatError, BIAS),
        ("qwen2", lambda t: t.update({BIAS: t[BIAS][1:]}), ModelFormatError, BIAS),
        ("qwen2", lambda t: t.update({BIAS: t[BIAS][None]}), ModelFormatError, BIAS),
        ("qwen2", lambda t: t[BIAS].fill_(float("nan")), NonFiniteError, BIAS),
        ("qwen2", lambda t: t[BIAS].fill_(float("inf")), NonFiniteError, BIAS),
        ("llama-f32", lambda t: t.update({BIAS: torch.ones(16)}), UnsupportedModelError, BIAS),
        (
            "qwen3",
            lambda t: t.pop("model.layers.0.self_attn.q_norm.weight"),
            ModelFormatError,
            "q_norm",
        ),
    ]
    for i, (recipe, change, kind, word) in enumerate(cases):
        folder = spoiled(tmp_path / str(i), recipe, change)
        failure(lambda folder=folder: loading.load(folder), kind, word)


def test_sinks_of_another_length(tmp_path: Path) -> None:
    """One for each query head, finite; what is wrong is said in one line."""
    name, p = "model.layers.0.self_attn.sinks", "model.layers.0.self_attn"
    for i, (value, kind, words) in enumerate(
        (
            (torch.ones(4), ModelFormatError, ("[5]", "[4]")),
            (torch.full((5,), torch.nan), NonFiniteError, ()),
            (None, ModelFormatError, ()),
        )
    ):
        folder = spoiled(
            tmp_path / str(i), "llama-f32", lambda t, v=value: v is None or t.update({name: v})
        )
        fields = {**config(RECIPES["llama-f32"])}
        c = TransformerConfig.of(SILU, fields, folder / "config.json")
        w = CheckpointWeights(Checkpoint.open(folder), None, None, 1, False)
        m, options = ModelBuilder(GraphBuilder(c.heads), c, w), AttentionOptions(sinks=True)
        x = m.embedding()
        failure(lambda m=m, x=x, o=options: m.attention(x, 0, p, o), kind, name, *words)


def test_an_overflowing_bias(tmp_path: Path) -> None:
    """Finite biases whose attention is not: an error, no token."""
    folder = spoiled(tmp_path / "m", "qwen2", lambda t: t[BIAS].fill_(3e38))
    with pytest.raises(NonFiniteError, match="self_attn"):
        LLM(folder, threads=1).generate([1, 2, 3], max_tokens=2)


def test_class_defaults(tmp_path: Path) -> None:
    """A missing field has the default of transformers' class: heads of 128."""
    write(tmp_path, replace(RECIPES["qwen3"], head_dim=128))
    stated = loading.load(tmp_path)
    fields = {k: v for k, v in stated.json.items() if k != "head_dim"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert loading.load(tmp_path).config == stated.config


def test_rope_factors() -> None:
    """GGUF's way to say Llama 3's scaling: the same frequencies, to a rounding."""
    scaled = (
        parsed("llama-f32", {}, rope_scaling=LLAMA3_ROPE).attention[0].rotary.inverse_frequencies
    )
    plain = parsed("llama-f32", {}).attention[0].rotary.inverse_frequencies
    factors = [p / s for p, s in zip(plain, scaled, strict=True)]
    assert max(factors) == pytest.approx(8.0)
    got = parsed("llama-f32", {}, rope_factors=factors).attention[0].rotary.inverse_frequencies
    np.testing.assert_allclose(got, scaled, rtol=2**-23)
    assert (
        parsed("llama-f32", {}, rope_factors=[1] * 8).attention[0].rotary.inverse_frequencies
        == plain
    )


@pytest.mark.parametrize(
    ("changes", "kind", "word"),
    [
        ({"rope_factors": [1.0] * 7}, ModelFormatError, "rope_factors"),
        ({"rope_factors": [1.0] * 7 + [0.0]}, ModelFormatError, "rope_factors"),
        ({"rope_factors": [1.0] * 7 + [float("nan")]}, ModelFormatError, "rope_factors"),
        ({"rope_factors": [1.0] * 7 + ["2"]}, ModelFormatError, "rope_factors"),
        ({"rope_factors": 8.0}, ModelFormatError, "rope_factors"),
        ({"attention_bias": 1}, ModelFormatError, "attention_bias"),
        ({"mlp_bias": "yes"}, ModelFormatError, "mlp_bias"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "ntk"}}, UnsupportedModelError, "ntk"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            UnsupportedModelError,
            "full_attention",
        ),
        ({"rope_scaling": {"type": "mscale", "factor": 4}}, UnsupportedModelError, "mscale"),
    ],
)
def test_bad_fields(changes: dict[str, Any], kind: type, word: str) -> None:
    """Each is named, with what it must be."""
    failure(lambda: parsed("llama-f32", {}, **changes), kind, word)


def test_the_kv_cache_of_qwen2(checkpoint: Callable[[str], Path]) -> None:
    """Floats, where nothing else is asked for: keys with large biases are too much for i16."""
    folder = checkpoint("qwen2")
    assert LLM(folder, threads=1).info()["kv_dtype"] == "f16"
    assert LLM(folder, threads=1, kv_dtype="i16").info()["kv_dtype"] == "i16"
    assert LLM(checkpoint("qwen3"), threads=1).info()["kv_dtype"] == "i16"
