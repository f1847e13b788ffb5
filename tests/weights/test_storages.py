"""Storages of linear layers: what is damaged is refused by name, what is mixed runs as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES, write
from families import FAMILIES
from helpers import assert_same_bits, failure
from test_bad_checkpoints import edit_config, edit_tensor
from waits import HANGS_S

import sterna.ops as ops
from sterna import LLM, loading
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)
from sterna.weights.rounding import repacked

LAYER = "model.layers.1.mlp.up_proj"
Change = Callable[[torch.Tensor], torch.Tensor | None]


def filled(value: float, at: int = 7) -> Change:
    """Puts a value into one element."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[at] = value
        return tensor

    return change


BAD_TENSORS: list[tuple[str, str, Change, type[SternaError], str]] = [
    ("bitnet-unpacked", "weight", filled(2), ModelFormatError, "-1, 0 and 1"),
    ("bitnet-unpacked", "weight", filled(0.5), ModelFormatError, "0.5"),
    ("bitnet-unpacked", "weight", lambda t: t[:, :-1], ModelFormatError, "256, 127"),
    ("bitnet-unpacked", "weight_scale", lambda _: None, ModelFormatError, "a tensor"),
    ("bitnet-unpacked", "weight_scale", lambda t: t.repeat(2), ModelFormatError, "one float"),
    ("bitnet-unpacked", "weight_scale", lambda t: t.int(), ModelFormatError, "I32"),
    ("bitnet-unpacked", "weight_scale", filled(float("nan"), 0), NonFiniteError, "NaN"),
    ("bitnet_b1_58-large", "weight", filled(float("inf")), NonFiniteError, "finite"),
    ("bitnet_b1_58-large", "weight", lambda t: t.int(), ModelFormatError, "I32"),
    ("trilm-rows", "weight", filled(float("nan")), NonFiniteError, "NaN"),
    ("trilm-rows", "weight", lambda t: t[:-1], ModelFormatError, "255"),
    ("paretoq-2-latent", "weight_clip_val", lambda _: None, ModelFormatError, "no such tensor"),
    ("paretoq-2-latent", "weight_clip_val", lambda t: t[:-1], ModelFormatError, "255, 1"),
    ("paretoq-4-latent", "weight_clip_val", lambda t: t[0], ModelFormatError, "shape [1]"),
    ("paretoq-4-latent", "weight_clip_val", lambda t: t.int(), ModelFormatError, "I32"),
    ("paretoq-3-latent", "weight_clip_val", filled(float("nan")), NonFiniteError, "NaN"),
    ("paretoq-1-latent", "weight_clip_val", filled(float("inf")), NonFiniteError, "finite"),
    ("paretoq-1.58-latent", "weight", filled(float("nan")), NonFiniteError, "NaN"),
    ("paretoq-2-latent", "weight", lambda _: None, ModelFormatError, "none of this name"),
    ("paretoq-2-bf16", "weight", filled(-float("inf")), NonFiniteError, "finite"),
]


@pytest.mark.parametrize(("family", "suffix", "change", "kind", "words"), BAD_TENSORS)
def test_bad_tensors(
    family: str, suffix: str, change: Change, kind: type[SternaError], words: str, tmp_path: Path
) -> None:
    """The error names the file, the tensor and the value."""
    folder = FAMILIES[family].write(tmp_path / "model")
    edit_tensor(folder, f"{LAYER}.{suffix}", change)
    failure(lambda: LLM(folder), kind, "model.safetensors", f"{LAYER}.{suffix}", words)


@pytest.mark.parametrize("bits", [None, 5, -1, 8, "2", True, [2], 1.5])
def test_bits(bits: object, tmp_path: Path) -> None:
    """Clipping values mean nothing without the number of bits."""
    folder = FAMILIES["paretoq-2-latent"].write(tmp_path / "model")
    edit_config(folder, w_bits=bits)
    failure(lambda: LLM(folder), ModelFormatError, "config.json", "w_bits", "0, 1, 2, 3, 4 or 16")


def test_bits_that_are_not_quantised(tmp_path: Path) -> None:
    """16 bits: the latent weights are the weights."""
    folder = FAMILIES["paretoq-2-latent"].write(tmp_path / "model")
    edit_config(folder, w_bits=16)
    assert loading.load(folder, cached=False).format == "bf16"


def test_ranges_that_are_not_positive(tmp_path: Path) -> None:
    """A clipping value of 0, or below, counts as 1e-5, as in training."""
    folder = FAMILIES["paretoq-4-latent"].write(tmp_path / "model")
    for value in (0.0, -3.0):
        edit_tensor(folder, f"{LAYER}.weight_clip_val", lambda t, v=value: torch.full_like(t, v))
        module = loading.load(folder, cached=False).weights.modules[
            "model.layers.1.mlp.gate_up_proj"
        ]
        rows = np.abs(ops.dequantize(module)[256:])
        np.testing.assert_allclose(rows.max(), 8e-5, rtol=1e-6)


@pytest.mark.parametrize(
    "values",
    [
        {"linear_class": "other"},
        {"quantization_mode": "later"},
        {"modules_to_not_convert": "lm_head"},
        {"modules_to_not_convert": [1]},
        {"modules_to_not_convert": [""]},
        {"modules_to_not_convert": ["(a+)+$"]},
        {"quant_method": "aqlm"},
        {"use_rms_norm": 1},
        {"rms_norm_eps": "small", "use_rms_norm": True},
    ],
)
def test_bad_quantization_config(values: dict[str, Any], tmp_path: Path) -> None:
    """The error names the field."""
    folder = write(tmp_path / "model", RECIPES["bitnet-online"])
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=config | values)
    failure(lambda: LLM(folder), SternaError, "config.json", next(iter(values)))


def test_layers_that_are_not_converted(checkpoint: Callable[[str], Path]) -> None:
    """modules_to_not_convert: a layer's name, or the end of one; these stay floats."""
    modules = loading.load(checkpoint("bitnet-excluded"), cached=False).weights.modules
    kinds = {name: packed.format for name, packed in modules.items() if "_proj" in name}
    assert kinds["model.layers.0.self_attn.qkv_proj.0"] == "bf16"
    assert kinds["model.layers.0.self_attn.qkv_proj.1"] == "i2"
    assert kinds["model.layers.1.self_attn.qkv_proj"] == "i2"
    assert kinds["model.layers.1.mlp.gate_up_proj.1"] == "bf16"
    assert kinds["model.layers.1.mlp.down_proj"] == "i2"


def test_a_matrix_that_is_not_quite_ternary(tmp_path: Path) -> None:
    """One other value, and the matrix is left as it is; its neighbours are not."""
    folder = FAMILIES["trilm-rows"].write(tmp_path / "model")
    edit_tensor(folder, f"{LAYER}.weight", filled(0.123))
    modules = loading.load(folder, cached=False).weights.modules
    assert modules["model.layers.1.mlp.gate_up_proj.0"].format == "i2"
    assert modules["model.layers.1.mlp.gate_up_proj.1"].format == "f16"
    assert ops.dequantize(modules["model.layers.1.mlp.gate_up_proj.1"])[0, 7] == np.float16(0.123)
    assert LLM(folder, threads=1).generate("def", max_tokens=2).text is not None


@pytest.mark.parametrize("family", ["trilm-rows", "paretoq-2-bf16", "paretoq-4-bf16"])
def test_the_files_own_floats(family: str, tmp_path: Path) -> None:
    """A float format has the file's values, to the bit."""
    folder = FAMILIES[family].write(tmp_path / "model")
    modules = loading.load(folder, format="f32", cached=False).weights.modules
    expected = FAMILIES[family].tensors()[1][f"{LAYER}.weight"].numpy()
    assert_same_bits(ops.dequantize(modules["model.layers.1.mlp.gate_up_proj"])[256:], expected)


@pytest.mark.parametrize(
    ("family", "format", "stored"),
    [
        ("trilm-rows", "t5", "t5"),
        ("trilm-rows", "q8_0", "q8_0"),
        ("paretoq-1-bf16", "i2", "i2"),
        ("paretoq-2-latent", "i8", "i8"),
        ("paretoq-3-latent", "bf16", "bf16"),
    ],
)
def test_other_formats(family: str, format: str, stored: str, tmp_path: Path) -> None:
    """Levels go unchanged to a format that has them; to another only where one is asked for."""
    folder = FAMILIES[family].write(tmp_path / "model")
    stored_weight = loading.load(folder, cached=False).weights.modules[
        "model.layers.0.mlp.down_proj"
    ]
    model = loading.load(folder, format=format, cached=False)
    assert model.format == stored
    other = model.weights.modules["model.layers.0.mlp.down_proj"]
    real, got = ops.dequantize(stored_weight), ops.dequantize(other)
    if format in ("t5", "i2", "i8"):
        assert_same_bits(got + np.float32(0), real + np.float32(0))
    else:
        assert np.abs(got - real).max() <= 0.01 * np.abs(real).max()


def test_a_format_without_zero(tmp_path: Path) -> None:
    """A model of trits alone runs only in formats that have them."""
    folder = FAMILIES["bitnet-unpacked"].write(tmp_path / "model")
    for format in ("i1", "i2p", "mxfp4"):
        failure(lambda f=format: loading.load(folder, format=f, cached=False), RequestError, format)


OF_ANY_K = ("f32", "f16", "bf16", "i4")


@pytest.mark.parametrize(
    ("model", "format"),
    [
        *(("bitnet-unpacked", format) for format in (*OF_ANY_K, "q4_0", "q8_0")),
        *(("bitnet_b1_58-large", format) for format in (*OF_ANY_K, "q4_0", "q8_0")),
        *(("bitnet-divide", format) for format in OF_ANY_K),  # K is 80
    ],
)
def test_trits_in_other_formats(
    model: str, format: str, tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
    """Of ternary weights only the scale is rounded, and packed ones have the same bits."""
    folder = checkpoint(model) if model in RECIPES else FAMILIES[model].write(tmp_path / "model")
    own = loading.load(folder, cached=False).weights.modules
    made = loading.load(folder, format=format, cached=False).weights.modules
    most = 0 if format in ("f32", "i4") else 2**-8 if format == "bf16" else 2**-11
    for name in (n for n in own if "_proj" in n):
        real, got = ops.dequantize(own[name]), ops.dequantize(made[name])
        assert np.array_equal(np.sign(got), np.sign(real))
        assert (np.abs(got - real) <= most * np.abs(real)).all()
        again = repacked(own[name], format, 1, name)
        assert again.format == made[name].format
        assert_same_bits(ops.dequantize(again), got)


@pytest.mark.parametrize(
    ("recipe", "architecture", "name"),
    [
        ("bitnet-multiply", "LlamaForCausalLM", "sub_norm"),
        ("bitnet-multiply", "BitnetForCausalLM", "inner_attn_ln"),
    ],
)
def test_another_architecture(recipe: str, architecture: str, name: str, tmp_path: Path) -> None:
    """Norms that the named architecture does not have, or has under other names."""
    folder = write(tmp_path / "model", RECIPES[recipe])
    edit_config(folder, architectures=[architecture], hidden_act="silu")
    failure(lambda: LLM(folder), SternaError, name)


def test_tensors_that_can_be_computed(tmp_path: Path) -> None:
    """Old files hold the rotary frequencies, and a head in addition to a tied embedding."""
    recipe = replace(RECIPES["falcon-e"], seed=70)
    folder = write(tmp_path / "model", recipe)
    ids = [1, 2, 3, 4]
    expected = LLM(folder, threads=1).logits(ids)

    def add(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(path)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, path, {"format": "pt"})

    add(folder / "model.safetensors")
    assert_same_bits(LLM(folder, threads=1).logits(ids), expected)


def test_a_nested_head(tmp_path: Path) -> None:
    """Some ternary Llamas name their head model.lm_head.weight."""
    folder = write(tmp_path / "model", RECIPES["falcon3-untied"])
    expected = LLM(folder, threads=1).logits([1, 2, 3])
    path = folder / "model.safetensors"
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    tensors["model.lm_head.weight"] = tensors.pop("lm_head.weight")
    save_file(tensors, path, {"format": "pt"})
    assert_same_bits(LLM(folder, threads=1).logits([1, 2, 3]), expected)


def test_mobilellm(tmp_path: Path) -> None:
    """MobileLLM's own names: share_embedding for a tied head; shared layers are refused."""
    family = FAMILIES["paretoq-2-bf16"]
    folder = family.write(tmp_path / "model")
    expected = LLM(folder, threads=1).logits([1, 2, 3])
    edit_config(
        folder, architectures=["MobileLLMForCausalLM"], model_type="mobilellm",
        tie_word_embeddings=False, share_embedding=True, layer_sharing=False,
    )  # fmt: skip
    assert_same_bits(LLM(folder, threads=1).logits([1, 2, 3]), expected)
    edit_config(folder, layer_sharing=True)
    failure(lambda: LLM(folder), UnsupportedModelError, "layer_sharing")


def test_norms_before_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """use_rms_norm: the packed form keeps it; a norm that is missing, or not declared, is named."""
    folder = write(tmp_path / "model", RECIPES["bitnet-input-norms"])
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = LLM(folder, threads=1)
    assert first.engine.model.store is not None
    assert first.engine.model.store.wait(HANGS_S) is not None
    second = LLM(folder, threads=1)
    assert second.engine.model.store is None
    assert_same_bits(second.logits([1, 2, 3]), first.logits([1, 2, 3]))
    monkeypatch.setenv("STERNA_CACHE", "off")
    name = "model.layers.1.mlp.up_proj.rms_norm.weight"
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config=config | {"use_rms_norm": False})
    failure(lambda: LLM(folder), UnsupportedModelError, "rms_norm.weight")
    edit_config(folder, quantization_config=config)
    edit_tensor(folder, name, lambda _: None)
    failure(lambda: LLM(folder), ModelFormatError, name)


def test_rows_of_sixteen_levels(tmp_path: Path) -> None:
    """A row of zeros has no scale to find; +8 is a level too many."""
    folder = FAMILIES["paretoq-4-bf16"].write(tmp_path / "model")
    name = "model.layers.0.mlp.down_proj"

    def zero(tensor: torch.Tensor) -> torch.Tensor:
        tensor[5] = 0
        return tensor

    edit_tensor(folder, f"{name}.weight", zero)
    module = loading.load(folder, cached=False).weights.modules[name]
    assert module.format == "i4"
    assert not ops.dequantize(module)[5].any()

    def eights(tensor: torch.Tensor) -> torch.Tensor:
        tensor[7] = torch.arange(tensor.shape[1]) % 17 - 8
        return tensor

    edit_tensor(folder, f"{name}.weight", eights)
    assert loading.load(folder, cached=False).weights.modules[name].format == "bf16"
