"""YaRN and LongRoPE: what files say of them, in folders and as GGUF.

That their logits are those of transformers is in `test_against_transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_factory import LLAMA, LONGROPE, RECIPES, YARN, config, write
from helpers import assert_same_bits, failure

from sterna import loading
from sterna.convert import convert
from sterna.engine import Engine
from sterna.errors import ModelFormatError, SternaError, UnsupportedModelError
from sterna.graph import Rotary
from sterna.models import llama
from sterna.models.config import TransformerConfig

gguf_factory: Any = pytest.importorskip("gguf_factory", reason="needs the gguf package")

LLAMA_YARN = {"rope_type": "yarn", **YARN}
LARGE = {"original_max_position_embeddings": 1 << 24}


def parsed(**changes: Any) -> TransformerConfig:
    """llama-f32's config.json with these fields: heads of 16, a context of 512."""
    fields = {**config(RECIPES["llama-f32"]), **changes}
    return TransformerConfig.of(llama, fields, Path("config.json"))


def rotary(c: TransformerConfig) -> Rotary:
    """That of the first layer."""
    found = c.attention[0].rotary
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("scaling", "word"),
    [
        ({**LLAMA_YARN, "factor": 0.5}, "factor"),
        ({**LLAMA_YARN, "factor": float("nan")}, "factor"),
        ({**LLAMA_YARN, "factor": "4"}, "factor"),
        ({**LLAMA_YARN, "beta_fast": 1.0}, "beta_fast"),
        ({**LLAMA_YARN, "beta_slow": -1.0}, "beta_slow"),
        ({**LLAMA_YARN, "attention_factor": 0.0}, "attention_factor"),
        ({**LLAMA_YARN, "mscale": "1", "mscale_all_dim": 1}, "mscale"),
        ({**LLAMA_YARN, "truncate": 1}, "truncate"),
        ({**LLAMA_YARN, "original_max_position_embeddings": 6}, "original_max_position"),
        ({**LLAMA_YARN, "rope_theta": 2.0, **LARGE}, "beta_fast"),
        ({**LLAMA_YARN, "original_max_position_embeddings": 64.0}, "original_max_position"),
        ({**LLAMA_YARN, "rope_theta": 1.0}, "rope_theta"),
        ({**LONGROPE, "long_factor": [1.0] * 7}, "long_factor"),
        ({**LONGROPE, "long_factor": None}, "long_factor"),
        ({**LONGROPE, "short_factor": [1.0] * 7 + [0.0]}, "short_factor"),
        ({**LONGROPE, "original_max_position_embeddings": 1}, "original_max_position"),
        ({**LONGROPE, "factor": 0.0}, "factor"),
    ],
)  # fmt: skip
def test_bad_fields(scaling: dict[str, Any], word: str) -> None:
    """Each is named, with what it must be."""
    failure(lambda: parsed(rope_scaling=scaling), ModelFormatError, "config.json", word)


def test_an_original_context_said_twice() -> None:
    """Files may have it in either place; two numbers are a contradiction."""
    field = "original_max_position_embeddings"
    twice = parsed(rope_scaling=LLAMA_YARN, **{field: 64})
    assert rotary(twice) == rotary(parsed(rope_scaling=LLAMA_YARN))
    failure(lambda: parsed(rope_scaling=LLAMA_YARN, **{field: 128}), ModelFormatError, field, "128")


def test_the_paper() -> None:
    """Pairs that turn 32 times keep their frequency, those that turn once are divided."""
    c = parsed(
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
    )
    plain = np.array(rotary(parsed()).inverse_frequencies)
    turns = 1000 * plain / (2 * math.pi)
    ratio = plain / np.array(rotary(c).inverse_frequencies)
    assert (turns > 32).any()
    np.testing.assert_array_equal(ratio[turns > 32], 1)
    np.testing.assert_allclose(ratio[turns < 0.3], 4, rtol=1e-6)
    assert ((ratio > 1.01) & (ratio < 3.99)).any()
    assert rotary(c).factor == pytest.approx(0.1 * math.log(4.0) + 1, rel=2**-50)
    assert c.max_position == 4000  # more than max_position_embeddings


def test_the_context_chooses_the_factors(tmp_path: Path) -> None:
    """Short factors hold where no sequence can be longer than the original context, long ones
    elsewhere, for all sequences: keys in the cache keep their rotation."""
    folder = write(tmp_path, replace(LLAMA, rope_scaling=LONGROPE))
    model = loading.load(folder, cached=False)
    tokens = [list(range(40, 60))]

    def logits(context: int) -> np.ndarray:
        return Engine(model, context=context, kv_dtype="f32", threads=1).logits(tokens)[0]

    def alone(kind: str) -> np.ndarray:
        """The same model with one set of factors for any length."""
        both = {f"{n}_factor": LONGROPE[f"{kind}_factor"] for n in ("short", "long")}
        one = write(tmp_path / kind, replace(LLAMA, rope_scaling={**LONGROPE, **both}))
        other = loading.load(one, cached=False)
        return Engine(other, kv_dtype="f32", threads=1).logits(tokens)[0]

    assert_same_bits(logits(32), alone("short"))
    assert_same_bits(logits(33), alone("long"))
    assert np.abs(logits(32) - logits(33)).max() > 0.01


# ------------------------------------------------------------------------------------------ GGUF


GGUF_YARN = {"type": "yarn", "factor": 4.0}


def tiny(arch: str, **keys: Any) -> Any:
    """A small GGUF model with keys below `rope.scaling`."""
    return gguf_factory.Tiny(
        arch, types={"": "F32"}, keys={f"{arch}.rope.scaling.{k}": v for k, v in keys.items()}
    )


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 128},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
        (
            {
                "type": "yarn", "factor": 2.0, "original_context_length": 256,
                "yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0, "attn_factor": 0.5,
                "yarn_log_multiplier": 0.0, "yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0,
            },
            {
                "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256,
                "beta_fast": 8, "beta_slow": 2, "attention_factor": 0.5 * (0.1 * math.log(2) + 1),
            },
        ),
        (  # as the converter writes an attention_factor
            {"type": "yarn", "factor": 4.0, "original_context_length": 128,
             "yarn_attn_factor": 1.25},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
             "attention_factor": 1.25},
        ),
    ],
)  # fmt: skip
def test_yarn_in_gguf(
    arch: str, keys: dict[str, Any], scaling: dict[str, Any], tmp_path: Path
) -> None:
    """The keys give the rotations of the same config.json."""
    gguf_factory.write(tmp_path / "x.gguf", tiny(arch, **keys))
    got = rotary(loading.load(tmp_path / "x.gguf", cached=False).config)
    expected = rotary(parsed(rope_scaling=scaling, head_dim=64, num_attention_heads=4))
    assert got.inverse_frequencies == expected.inverse_frequencies
    assert got.factor == pytest.approx(expected.factor, rel=2**-50)


def with_factors(path: Path, model: Any, tensors: dict[str, np.ndarray]) -> Path:
    """The file of a model with these tensors added to its own."""
    build = gguf_factory.build

    def more(t: Any) -> Any:
        file, floats = build(t)
        return {**file, **{n: (v.astype(np.float32), "F32") for n, v in tensors.items()}}, floats

    gguf_factory.build = more
    try:
        gguf_factory.write(path, model)
    finally:
        gguf_factory.build = build
    return path


def test_longrope_in_gguf(tmp_path: Path) -> None:
    """Factors are tensors; the attention factor is a key."""
    short, long = np.linspace(1, 2, 32), np.linspace(1, 30, 32)
    names = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    keys = {"type": "longrope", "original_context_length": 128, "attn_factor": 1.25}
    path = with_factors(tmp_path / "x.gguf", tiny("llama", **keys), names)
    got = rotary(loading.load(path, cached=False).config)
    scaling = {
        "rope_type": "longrope", "original_max_position_embeddings": 128, "attention_factor": 1.25,
        "short_factor": short.astype(np.float32).tolist(),
        "long_factor": long.astype(np.float32).tolist(),
    }  # fmt: skip
    assert got == rotary(parsed(rope_scaling=scaling, head_dim=64, num_attention_heads=4))
    half = dict(list(names.items())[:1])
    incomplete = with_factors(tmp_path / "half.gguf", tiny("llama", **keys), half)
    failure(lambda: loading.load(incomplete), ModelFormatError, "rope_factors_long")
    alone = with_factors(tmp_path / "alone.gguf", tiny("llama"), names)
    failure(lambda: loading.load(alone), UnsupportedModelError, "rope_factors_short")


@pytest.mark.parametrize(
    ("keys", "kind", "word"),
    [
        ({"type": "ntk"}, UnsupportedModelError, "ntk"),
        ({"type": "yarn"}, ModelFormatError, "rope.scaling.factor"),
        (
            {**GGUF_YARN, "yarn_attn_factor": 1.2, "attn_factor": 0.5},
            UnsupportedModelError,
            "attn_factor",
        ),
        ({**GGUF_YARN, "yarn_log_multiplier": 0.1}, UnsupportedModelError, "yarn_log"),
        ({**GGUF_YARN, "yarn_ext_factor": 0.5}, UnsupportedModelError, "yarn_ext"),
        ({**GGUF_YARN, "type": "linear", "attn_factor": 1.5}, UnsupportedModelError, "attn_factor"),
    ],
)
def test_refused_in_gguf(
    keys: dict[str, Any], kind: type[SternaError], word: str, tmp_path: Path
) -> None:
    """A field that readers interpret differently is refused."""
    gguf_factory.write(tmp_path / "x.gguf", tiny("llama", **keys))
    failure(lambda: loading.load(tmp_path / "x.gguf"), kind, "x.gguf", word)


@pytest.mark.parametrize("recipe", ["llama-yarn", "llama-longrope"])
def test_written_as_gguf(recipe: str, checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A GGUF file of ours has the rotations of the folder, to the last bit of a frequency."""
    convert(checkpoint(recipe), tmp_path / "x.gguf", "gguf:F16")
    got = rotary(loading.load(tmp_path / "x.gguf", cached=False).config)
    expected = rotary(loading.load(checkpoint(recipe)).config)
    assert got.short_context == expected.short_context
    np.testing.assert_allclose(got.factor, expected.factor, rtol=2**-23)
    for a, b in (
        (got.inverse_frequencies, expected.inverse_frequencies),
        (got.long, expected.long),
    ):
        np.testing.assert_allclose(a, b, rtol=2**-23)


def test_a_yarn_that_gguf_has_no_word_for(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Refused before anything is written."""
    assert RECIPES["qwen3-yarn"].config["rope_parameters"]["truncate"] is False
    failure(
        lambda: convert(checkpoint("qwen3-yarn"), tmp_path / "x.gguf", "gguf:F16"),
        UnsupportedModelError, "truncate",
    )  # fmt: skip
    assert not (tmp_path / "x.gguf").exists()


def test_dynamic_scaling_ends_with_the_first_context(tmp_path: Path) -> None:
    """Within it rotations are plain; beyond, transformers would rotate all keys anew."""
    scaling = {"rope_type": "dynamic", "factor": 4.0}
    c, plain = parsed(rope_scaling=scaling), parsed()
    assert rotary(c) == rotary(plain)
    assert (c.max_position, c.most_positions) == (512, 512)
    assert plain.most_positions > 512
    failure(
        lambda: parsed(rope_scaling={**scaling, "alpha": 1000.0}), UnsupportedModelError, "alpha"
    )
    write(tmp_path / "m", replace(RECIPES["llama-f32"], config={"rope_scaling": scaling}))
    model = loading.load(tmp_path / "m", cached=False)
    failure(lambda: Engine(model, threads=1, context=1024), SternaError, "512")
