"""Logits of every published checkpoint layout against `transformers` in float32.

How far two correct implementations may differ
----------------------------------------------
*Float weights.* Both compute the same sums in float32 in a different order. Each addition rounds by
at most 2^-24 of the sum, as often up as down, so after L additions the error is about 2^-24·√L;
`rounding_bound` takes L as the lengths of all the sums on a logit's way, and eight times that.

*Quantised activations.* Before each linear layer an activation x becomes round(x·s), with
s = 127/max|x|. A difference of one rounding in x is nothing by itself, but where x·s lies within
about 1e-5 of a half integer the two implementations round to neighbouring integers: one *activation
step*, 1/s. A run of 64 positions quantises some 60,000 activations, so a step or two of difference
is normal and no error. Its effect depends on the weights behind it and has no useful closed form,
so it is measured on the reference itself (`one_step_effect`): every token gets one activation moved
by one step in front of one linear layer, and the tolerance is the largest change of a logit over
all linear layers. It is generous, since in truth hardly one token in 64 has such a step at all, so
the sharp test is `test_without_a_step`: in sequences of four tokens a step is rare (about one
sequence in 25), and without one the quantised model must meet the bound of the float model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES, Recipe, active_shapes
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sterna import loading
from sterna.engine import Engine, Sequence

QUANTISED = [name for name, recipe in RECIPES.items() if recipe.weights != "float"]
FLOAT = [name for name, recipe in RECIPES.items() if recipe.weights == "float"]
#: Models whose route or state decides later tokens, too.
ROUTED = [name for name, recipe in RECIPES.items() if recipe.experts or recipe.is_hybrid]
POSITIONS = 64


@dataclass(frozen=True)
class Pair:
    """One checkpoint opened by both sides."""

    recipe: Recipe
    reference: PreTrainedModel
    engine: Engine

    def expected(self, sequences: list[list[int]]) -> np.ndarray:
        """Reference logits [sequences, n, vocab] of sequences of equal length."""
        with torch.no_grad():
            return self.reference(torch.tensor(sequences)).logits.numpy()

    def got(self, sequences: list[list[int]]) -> np.ndarray:
        """Sterna's logits [sequences, n, vocab]."""
        return np.stack(self.engine.logits(sequences))


def minicpm(folder: Path, config: dict[str, Any]) -> PreTrainedModel:
    """A MiniCPM, which transformers has not: the Llama whose weights have its factors."""
    known = {k: v for k, v in config.items() if k not in ("architectures", "model_type")}
    # Tables of their own: the embedding is scaled otherwise than the head.
    model = LlamaForCausalLM(LlamaConfig(**known | {"tie_word_embeddings": False})).eval()
    tensors = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
    if config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.embed_tokens.weight"] *= config["scale_emb"]
    tensors["lm_head.weight"] /= config["hidden_size"] / config["dim_model_base"]
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= config["scale_depth"] / config["num_hidden_layers"] ** 0.5
    model.load_state_dict(tensors)
    return model


def load_reference(folder: Path) -> PreTrainedModel:
    """The model in float32, whatever the file's dtype."""
    config = json.loads((folder / "config.json").read_text())
    if config["architectures"] == ["MiniCPMForCausalLM"]:
        return minicpm(folder, config)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # transformers 5.23 leaves norms and the embedding of an `autobitlinear` `offline` file in bf16
    # although float32 was asked for, and then fails on mixed types; PreTrainedModel.float refuses
    # quantised models. Widening changes no value, and torch's own method leaves packed uint8 alone.
    return torch.nn.Module.float(model)


@pytest.fixture(scope="module")
def pair(checkpoint: Callable[[str], Path]) -> Callable[[str], Pair]:
    @lru_cache
    def get(name: str) -> Pair:
        folder = checkpoint(name)
        # An f32 KV cache, the head as stored (the default) and float activations as they are: the
        # reference rounds none of them.
        engine = Engine(loading.load(folder), threads=2, kv_dtype="f32", deterministic=True)
        return Pair(RECIPES[name], load_reference(folder), engine)

    return get


def tokens(rows: int, columns: int, seed: int = 1) -> list[list[int]]:
    """Random token ids below 256, which every vocabulary here holds."""
    return np.random.default_rng(seed).integers(0, 256, (rows, columns)).tolist()


def rounding_bound(recipe: Recipe, logits: np.ndarray) -> float:
    """8 · 2^-24 · √(lengths of all float32 sums on the way to a logit) · the largest logit."""
    positions = logits.shape[-2]
    norms = len(recipe.layer_norms) * recipe.hidden
    norms += sum(recipe.head_norms().values()) if recipe.architecture.startswith("Olmo") else 0
    norms += recipe.is_bitnet * (recipe.hidden + recipe.intermediate)
    length = recipe.layers * norms + 2 * recipe.hidden
    for layer in range(recipe.layers):
        length += sum(k for _, k in active_shapes(recipe, layer).values())
        if recipe.is_hybrid and recipe.is_recurrent(layer):  # sums over k, once for each position
            length += recipe.config["linear_key_head_dim"] * positions
        else:
            width = recipe.config.get("global_head_dim", recipe.width)  # of the widest layers
            length += width + positions
    return float(8 * 2.0**-24 * length**0.5 * np.abs(logits).max())


@contextmanager
def one_step(layer: torch.nn.Module, rng: torch.Generator) -> Iterator[None]:
    """While open, every token's input of `layer` has one activation moved one step towards 0.

    Towards 0 and never the largest, so that max|x| and with it the scale stay what they were.
    """

    def move(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (x,) = args
        size = x.abs()
        largest = size.amax(-1, keepdim=True)
        chance = torch.rand(x.shape, generator=rng).masked_fill(size == largest, -1)
        chosen = torch.zeros_like(x).scatter_(-1, chance.argmax(-1, keepdim=True), 1)
        return (x - chosen * x.sign() * largest / 127,)

    handle = layer.register_forward_pre_hook(move)
    try:
        yield
    finally:
        handle.remove()


def one_step_effect(pair: Pair, sequence: list[int], expected: np.ndarray) -> float:
    """The largest change of a logit when one activation per token is one step off."""
    rng = torch.Generator().manual_seed(0)
    worst = 0.0
    for name, layer in pair.reference.named_modules():
        if name.endswith("_proj"):
            with one_step(layer, rng):
                moved = pair.expected([sequence] * 4)  # four draws of the activations to move
            worst = max(worst, float(np.abs(moved - expected).max()))
    return worst


def check_choices(expected: np.ndarray, got: np.ndarray, tolerance: float) -> None:
    """The argmax is the reference's wherever the reference's margin exceeds twice the tolerance."""
    top = np.sort(expected, axis=-1)
    decided = top[..., -1] - top[..., -2] > 2 * tolerance
    assert decided.mean() > 0.2, "too few clear choices for this test to mean anything"
    np.testing.assert_array_equal(
        got.argmax(-1)[decided], expected.argmax(-1)[decided], "the most likely token"
    )


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised(name: str, pair: Callable[[str], Pair]) -> None:
    """64 teacher-forced positions, within the effect of one activation step."""
    both, sequences = pair(name), tokens(1, POSITIONS)
    expected, got = both.expected(sequences), both.got(sequences)
    tolerance = one_step_effect(both, sequences[0], expected)
    assert 0 < tolerance < 0.25 * expected.std(), "one step must be small compared with the logits"
    assert np.abs(got - expected).max() <= tolerance
    check_choices(expected, got, tolerance)


@pytest.mark.parametrize("name", QUANTISED)
def test_without_a_step(name: str, pair: Callable[[str], Pair]) -> None:
    """Most short sequences meet no rounding tie, and then only float rounding is left."""
    both, sequences = pair(name), tokens(32, 4)
    expected, got = both.expected(sequences), both.got(sequences)
    error = np.abs(got - expected).max((1, 2))
    assert np.median(error) <= rounding_bound(both.recipe, expected), np.sort(error)


@pytest.mark.parametrize("positions", [POSITIONS, 300])  # 300: more than one attention chunk
@pytest.mark.parametrize("name", FLOAT)
def test_float(name: str, positions: int, pair: Callable[[str], Pair]) -> None:
    """Float weights: float32 rounding only."""
    both, sequences = pair(name), tokens(1, positions)
    expected, got = both.expected(sequences), both.got(sequences)
    tolerance = rounding_bound(both.recipe, expected)
    assert np.abs(got - expected).max() <= tolerance
    check_choices(expected, got, tolerance)


@pytest.mark.parametrize("name", ROUTED)
def test_greedy_tokens(name: str, pair: Callable[[str], Pair]) -> None:
    """A prompt, and 24 tokens after it, each from the state that a step leaves to the next."""
    both, prompt = pair(name), tokens(1, 40, seed=3)
    answer = both.reference.generate(
        torch.tensor(prompt), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )
    sequence, got = Sequence(), []
    logits = both.engine.prefill(sequence, prompt[0]).copy()
    for _ in range(24):
        got.append(int(logits.argmax()))
        logits = both.engine.prefill(sequence, got[-1:]).copy()
    assert got == answer[0, 40:].tolist()
