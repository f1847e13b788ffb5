"""Qwen3.5 as GGUF files: the order of value heads, folded weights, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf_factory
import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_5, RECIPES, Recipe, tensors, write
from helpers import assert_same_bits
from test_hadamard import sylvester
from test_qwen3_5 import PROMPT, engine

from sterna import _native, loading
from sterna.errors import ModelFormatError, UnsupportedModelError


def tiled(w: np.ndarray, axis: int, k_heads: int, v_heads: int) -> np.ndarray:
    """Value heads in llama.cpp's order: 0 0 1 1 2 2 becomes 0 1 2 0 1 2."""
    w = np.moveaxis(w, axis, 0)
    order = np.arange(v_heads).reshape(k_heads, -1).T.reshape(-1)
    heads = w.reshape(v_heads, -1, *w.shape[1:])[order]
    return np.ascontiguousarray(np.moveaxis(heads.reshape(w.shape), 0, axis))


INSIDE = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
} | {f"{hf}.weight": f"{name}.weight" for name, hf in gguf_factory.LINEARS.items()}
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}  # fmt: skip


def as_gguf(recipe: Recipe, stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The recipe's tensors, float32, as llama.cpp's converter writes them."""
    sizes, r = recipe.config, recipe.recurrent
    heads = sizes["linear_num_key_heads"], sizes["linear_num_value_heads"]
    out = {}
    for name, tensor in stored.items():
        w = tensor
        if "norm.weight" in name and "linear_attn" not in name:
            w = w + np.float32(1)
        inside = name.split(".", 3)[-1]
        part = inside.removeprefix("linear_attn.").removesuffix(".weight")
        if part == "A_log":
            w = np.array([-math.exp(x) for x in w], np.float32)
        if part == "conv1d":
            w = w[:, 0]
        if part in ("in_proj_qkv", "conv1d"):
            keys = 2 * r["k"]
            w = np.concatenate([w[:keys], tiled(w[keys:], 0, *heads)])
        elif part in ("in_proj_z", "in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            w = tiled(w, 0, *heads)
        elif part == "out_proj":
            w = tiled(w, 1, *heads)
        out[OUTER.get(name) or f"blk.{name.split('.')[2]}.{INSIDE[inside]}"] = w
    return out


def write_gguf(
    path: Path, recipe: Recipe, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]
) -> Path:
    """The recipe as a GGUF file, whose keys and tensors `change` may change before."""
    sizes = recipe.config
    tiny = gguf_factory.Tiny(
        "qwen35", recipe.hidden, recipe.intermediate, recipe.layers, recipe.heads,
        recipe.kv_heads, recipe.width, recipe.tied, rope_theta=10000.0,
    )  # fmt: skip
    rope = sizes["rope_parameters"]
    values = gguf_factory.metadata(tiny) | {
        "qwen35.attention.layer_norm_rms_epsilon": sizes["rms_norm_eps"],
        "qwen35.rope.dimension_count": int(recipe.width * rope["partial_rotary_factor"]),
        "qwen35.rope.dimension_sections": [*rope["mrope_section"], 0],
        "qwen35.ssm.conv_kernel": sizes["linear_conv_kernel_dim"],
        "qwen35.ssm.state_size": sizes["linear_key_head_dim"],
        "qwen35.ssm.group_count": sizes["linear_num_key_heads"],
        "qwen35.ssm.time_step_rank": sizes["linear_num_value_heads"],
        "qwen35.ssm.inner_size": recipe.recurrent["v"],
        "qwen35.full_attention_interval": sizes.get("full_attention_interval", 4),
    }
    file = as_gguf(recipe, {name: w.float().numpy() for name, w in tensors(recipe).items()})
    change(values, file)
    writer = gguf.GGUFWriter(path, "qwen35")
    keys = {key: value for key, value in values.items() if value is not None}
    gguf_factory.add_metadata(writer, replace(tiny, keys=keys))
    for name, w in file.items():
        writer.add_tensor(name, w)
    gguf_factory.finish(writer)
    return path


GGUF_RECIPES = {
    "grouped": QWEN3_5,
    "alone": RECIPES["qwen3_5-interval"],
}
GGUF_RECIPES["alone"] = replace(
    GGUF_RECIPES["alone"], config={**GGUF_RECIPES["alone"].config, "attention_bias": False}
)


def named_parts(model: loading.Model) -> set[str]:
    """The linear layers that adapters may add to."""
    return {part.name for place in model.graph.places for part in place.parts}


@pytest.mark.parametrize("name", GGUF_RECIPES)
def test_gguf(name: str, tmp_path: Path) -> None:
    """llama.cpp's layout means the same model, with the same bits, and the same adapters fit."""
    recipe = replace(GGUF_RECIPES[name], dtype=torch.float32)
    path = write_gguf(tmp_path / "m.gguf", recipe, lambda keys, file: None)
    model = loading.load(path)
    got = engine(model).logits([PROMPT])[0]
    expected = engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0]
    assert_same_bits(got, expected)
    assert named_parts(model) == named_parts(loading.load(tmp_path / "hf"))
    loading.save(model, tmp_path / "packed")
    assert_same_bits(engine(loading.load(tmp_path / "packed")).logits([PROMPT])[0], got)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_folded_gguf(grouped: bool, tmp_path: Path) -> None:
    """Blocks of out_proj go over heads: grouped, as they were trained, or as the file has them."""
    recipe = replace(QWEN3_5, dtype=torch.float32)
    heads = [recipe.config[f"linear_num_{kind}_heads"] for kind in ("key", "value")]
    width, block = recipe.recurrent["v"], 32
    signs = np.where(np.random.default_rng(5).integers(0, 2, width) == 1, 1, -1)
    names = [f"blk.{i}.ssm_out.weight" for i in range(3)]  # the fourth layer attends

    def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        for name in names:
            w = file[name]
            if grouped:
                w = tiled(w, 1, heads[1] // heads[0], heads[1])
            blocks = (w * signs).reshape(-1, block).astype(np.float64)
            file[name] = (blocks @ sylvester(block) / block**0.5).reshape(w.shape).astype("f4")
        contract = {
            "version": 1, "block_size": block, "axis": "input-last-dimension",
            "transform": "normalized-sylvester-walsh-hadamard", "sign_mode": "explicit",
            "sign_widths": [width], "sign_values": signs.tolist(), "weight_names": names,
            "gdn_v_grouped": grouped,
        }  # fmt: skip
        keys.update({f"prism.hadamard.{key}": value for key, value in contract.items()})

    model = loading.load(write_gguf(tmp_path / "m.gguf", recipe, change))
    tiled_layers = [] if grouped else [f"model.layers.{i}.linear_attn.out_proj" for i in range(3)]
    assert model.json.get("tiled_out_proj", []) == tiled_layers
    assert named_parts(model).isdisjoint(tiled_layers)  # adapters have the columns in another order
    got = engine(model).logits([PROMPT])[0]
    expected = engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0]
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    loading.save(model, tmp_path / "packed")
    for isa in _native.isas():
        packed = engine(loading.load(tmp_path / "packed"), isa=isa)
        assert_same_bits(packed.logits([PROMPT])[0], got)


def test_gguf_layers_that_predict_ahead_are_skipped(tmp_path: Path) -> None:
    """They are blocks behind the others, which block_count counts."""

    def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        keys["qwen35.nextn_predict_layers"] = 1
        keys["qwen35.block_count"] += 1
        file["blk.4.attn_q.weight"] = np.zeros((2, 2), np.float32)
        file["blk.4.nextn.eh_proj.weight"] = np.zeros((2, 2), np.float32)

    with pytest.warns(RuntimeWarning, match=r"2 tensors from blk.4 on .* skipped"):
        model = loading.load(write_gguf(tmp_path / "m.gguf", QWEN3_5, change))
    assert model.config.n_layers == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"qwen35.ssm.inner_size": 97}, ("ssm.inner_size", "multiple of time_step_rank=6", "97")),
        ({"qwen35.rope.dimension_sections": [1, 1, 1, 0]}, ("mrope_section", "sum is 4")),
        ({"qwen35.ssm.group_count": 4}, ("linear_num_value_heads", "linear_num_key_heads=4", "6")),
        ({"qwen35.nextn_predict_layers": 4}, ("nextn_predict_layers", "fewer than", "4")),
        ({"ssm_a": 1.0}, ("A_log", "negative rates")),
        ({"blk.0.ssm_x": 1.0}, ("blk.0.ssm_x", "this is another")),
        ({"ssm_dt.bias": None}, ("blk.0.ssm_dt.bias", "no such tensor")),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_gguf_bad_input(change: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    """One line that names the file, the key or tensor, the rule and the value."""

    def apply(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
        for key, value in change.items():
            name = key if key.startswith("blk") else f"blk.0.{key}"
            if key.startswith("qwen35"):
                keys[key] = value
            elif value is None:
                del file[name]
            else:
                file[name] = np.full(6, value, np.float32)

    path = write_gguf(tmp_path / "m.gguf", QWEN3_5, apply)
    kinds = (ModelFormatError, UnsupportedModelError)
    with pytest.raises(kinds) as caught:
        loading.load(path)
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in ("m.gguf", *words)), message


def test_the_tokenizer_of_its_files_keeps_marks_with_their_words(tmp_path: Path) -> None:
    """The split that tokenizer.ggml.pre calls qwen35; Qwen2's cuts before a mark."""

    def pieces(pre: str) -> list[str]:
        def change(keys: dict[str, Any], file: dict[str, np.ndarray]) -> None:
            keys["tokenizer.ggml.pre"] = pre

        model = loading.load(write_gguf(tmp_path / f"{pre}.gguf", QWEN3_5, change))
        assert model.assets is not None
        cutter = model.assets.tokenizer()._backend.pre_tokenizer
        return [text[slice(*span)] for _, span in cutter.pre_tokenize_str(text)]

    text = "कि it's 12"
    assert pieces("qwen35") == ["कि", " it", "'s", " ", "1", "2"]
    assert pieces("qwen2") == ["क", "ि", " it", "'s", " ", "1", "2"]
