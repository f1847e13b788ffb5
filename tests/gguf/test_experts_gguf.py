"""Experts in GGUF files: all of a layer in one tensor, of every type; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import gguf_factory
import numpy as np
import pytest
import torch
from checkpoint_factory import QWEN3_MOE, RECIPES, Recipe, tensors, write
from helpers import assert_same_bits, failure
from safetensors.torch import save_file
from test_experts import PROMPT, engine
from test_qwen3_5_gguf import as_gguf

from sterna import loading
from sterna.convert import convert
from sterna.errors import (
    ModelFormatError,
    UnsupportedModelError,
)

INSIDE = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
} | {hf: name for name, hf in gguf_factory.LINEARS.items()}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
#: Sizes of whole super-blocks; two types in one model, as in Q4_K_M.
BIG = replace(
    QWEN3_MOE, hidden=256, dtype=torch.float32, head_dim=64, seed=80,
    config=QWEN3_MOE.config | {"moe_intermediate_size": 256},
)  # fmt: skip
TYPES = {
    "floats": {},
    "mixed": {"": "Q4_K", "attn_v": "Q6_K", "ffn_down_exps": "Q6_K"},
    "apart": {"": "Q8_0", "ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q6_K", "ffn_gate_inp": "F32"},
    "blocks": {"": "Q4_0", "ffn_gate_exps": "MXFP4", "ffn_up_exps": "MXFP4"},
    "halves": {"": "F16"},
}


def gguf_tensors(recipe: Recipe) -> dict[str, np.ndarray]:
    """The recipe's tensors by their names in a GGUF file, those of experts stacked."""
    stored = {name: w.float().numpy() for name, w in tensors(recipe).items()}
    others = {name: w for name, w in stored.items() if ".experts." not in name}
    if recipe.is_hybrid:
        out = as_gguf(recipe, others)
    else:
        out = dict(_gguf_tensor(recipe, name, w) for name, w in others.items())
    for name, w in stored.items():
        if ".experts." in name:
            block = f"blk.{name.split('.')[2]}.ffn_"
            for part, kind, of_part in _parts_of_experts(recipe, name.split(".experts.")[1], w):
                found = out.get(f"{block}{part}_exps.{kind}")
                stack = of_part if found is None else np.concatenate([found, of_part])
                out[f"{block}{part}_exps.{kind}"] = stack
    return {name: np.ascontiguousarray(w) for name, w in out.items()}


def _gguf_tensor(recipe: Recipe, name: str, w: np.ndarray) -> tuple[str, np.ndarray]:
    """A tensor of a dense layer: its name, and its rows as they lie there."""
    if name.endswith(".sinks"):
        return f"blk.{name.split('.')[2]}.attn_sinks.weight", w
    module, _, kind = name.rpartition(".")
    if module in OUTER:
        return f"{OUTER[module]}.{kind}", w
    _, _, layer, inside = module.split(".", 3)
    heads = {"self_attn.q_proj": recipe.heads, "self_attn.k_proj": recipe.kv_heads}.get(inside)
    if recipe.architecture == "MixtralForCausalLM" and heads:
        w = gguf_factory.interleaved(w, heads)
    to = INSIDE[inside]
    if recipe.architecture == "GptOssForCausalLM" and to == "ffn_norm":
        to = "post_attention_norm"
    return f"blk.{layer}.{to}.{kind}", w


def _parts_of_experts(
    recipe: Recipe, name: str, w: np.ndarray
) -> Iterator[tuple[str, str, np.ndarray]]:
    """(gate, up or down, weight or bias, those of one expert or all) of a tensor of experts."""
    if name[0].isdigit():
        part = name.split(".")[1].removesuffix("_proj")
        yield {"w1": "gate", "w3": "up", "w2": "down"}.get(part, part), "weight", w[None]
        return
    kind = "bias" if name.endswith("_bias") else "weight"
    alternating = recipe.architecture == "GptOssForCausalLM"
    if alternating and kind == "weight":
        w = w.transpose(0, 2, 1)
    if name.startswith("down"):
        yield "down", kind, w
        return
    half = w.shape[1] // 2
    yield "gate", kind, w[:, 0::2] if alternating else w[:, :half]
    yield "up", kind, w[:, 1::2] if alternating else w[:, half:]


def write_gguf(
    path: Path, arch: str, recipe: Recipe, keys: dict[str, Any], types: dict[str, str],
    change: Callable[[dict[str, np.ndarray]], None] = lambda file: None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Writes the recipe's GGUF file; returns its tensors as the gguf package reads them."""
    tiny = gguf_factory.Tiny(
        arch, recipe.hidden, recipe.intermediate, recipe.layers, recipe.heads, recipe.kv_heads,
        recipe.width, recipe.tied, rope_theta=recipe.rope_theta,
        keys={
            f"{arch}.expert_count": recipe.experts,
            f"{arch}.expert_used_count": recipe.config["num_experts_per_tok"],
            f"{arch}.expert_feed_forward_length": recipe.expert_width,
            **keys,
        },
    )  # fmt: skip
    rng, floats, file = np.random.default_rng(0), {}, gguf_tensors(recipe)
    change(file)
    writer = gguf.GGUFWriter(path, arch)
    gguf_factory.add_metadata(writer, tiny)
    for name, w in file.items():
        part = name.split(".")[-2] if name.startswith("blk") else ""
        if part == "ffn_gate_inp_shexp":  # one row is a vector
            w = w.reshape(-1)
        matrix = w.ndim > 1 and part and name.endswith(".weight")
        kind = types.get(part, types.get("", "F32")) if matrix else "F32"
        kind = "F32" if part == "ffn_gate_inp" else kind
        raw, real = gguf_factory.stored(kind, w.reshape(-1, w.shape[-1]), rng)
        plain = kind in ("F32", "F16")
        shape = (*w.shape[:-1], raw.shape[-1])
        writer.add_tensor(name, raw.reshape(shape), raw_dtype=None if plain else _type(kind))
        floats[name] = real.reshape(w.shape)
    gguf_factory.finish(writer)
    return floats


def _type(kind: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind]


def as_checkpoint(folder: Path, recipe: Recipe, floats: dict[str, np.ndarray]) -> Path:
    """The tensors of a GGUF file as a checkpoint of the recipe."""
    write(folder, recipe)
    stored = {}
    for name in tensors(recipe):
        module = name.removesuffix(".weight")
        inside = module.split(".", 3)[-1]
        if module in OUTER:
            w = floats[f"{OUTER[module]}.weight"]
        elif ".experts." in inside:
            _, _, expert, part = inside.split(".")
            part = part.removesuffix("_proj")
            w = floats[f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight"][int(expert)]
        else:
            w = floats[f"blk.{name.split('.')[2]}.{INSIDE[inside]}.weight"]
        stored[name] = torch.from_numpy(w.copy())
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("types", TYPES)
def test_gguf(types: str, tmp_path: Path) -> None:
    """Read as floats, the file gives the bits of what the gguf package reads; its own types stay,
    also through a packed directory."""
    path = tmp_path / "m.gguf"
    floats = write_gguf(path, "qwen3moe", BIG, {}, TYPES[types])
    expected = engine(
        loading.load(as_checkpoint(tmp_path / "hf", BIG, floats), format="f32", head="f32"),
        deterministic=True,
    ).logits([PROMPT])[0]
    exact = engine(loading.load(path, format="f32", head="f32"), deterministic=True)
    assert_same_bits(exact.logits([PROMPT])[0], expected)
    model = loading.load(path)
    got = engine(model).logits([PROMPT])[0]
    assert np.median(np.abs(got - expected).max(1)) < 0.15 * expected.std()
    found = {w.format.name.upper() for n, w in model.weights.modules.items() if "expert" in n}
    wanted = {
        TYPES[types].get(f"ffn_{p}_exps", TYPES[types].get("", "F32"))
        for p in ("gate", "up", "down")
    }
    assert found == wanted
    loading.save(model, tmp_path / "packed")
    convert(path, tmp_path / "converted", None)
    for folder in ("packed", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)


def test_gpt_oss_without_a_scaling(tmp_path: Path) -> None:
    """A file without rope.scaling.* has none: YaRN is what config.json alone may leave to its
    class."""
    recipe = replace(
        RECIPES["gpt_oss"], rope_scaling=None,
        config={
            **RECIPES["gpt_oss"].config, "swiglu_limit": 7.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
        },
    )  # fmt: skip
    write_gguf(tmp_path / "m.gguf", "gpt-oss", recipe, {"gpt-oss.attention.sliding_window": 40}, {})
    got = engine(loading.load(tmp_path / "m.gguf")).logits([PROMPT])[0]
    assert_same_bits(got, engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0])


#: Without what no key says, or value heads that would change places.
OTHER_KINDS = {
    "llama": (RECIPES["mixtral"], {"llama.expert_feed_forward_length": None}),
    "gpt-oss": (
        replace(RECIPES["gpt_oss"], config={**RECIPES["gpt_oss"].config, "swiglu_limit": 7.0}),
        {
            "gpt-oss.attention.sliding_window": 40, "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 4.0,
            "gpt-oss.rope.scaling.original_context_length": 64,
        },
    ),
    "qwen35moe": (
        replace(
            RECIPES["qwen3_5_moe"], rope_theta=10000.0,
            config={**RECIPES["qwen3_5_moe"].config, "linear_num_value_heads": 2},
        ),
        {
            "qwen35moe.attention.layer_norm_rms_epsilon": 1e-6,
            "qwen35moe.rope.dimension_count": 8, "qwen35moe.rope.dimension_sections": [2, 1, 1, 0],
            "qwen35moe.ssm.conv_kernel": 4, "qwen35moe.ssm.state_size": 24,
            "qwen35moe.ssm.group_count": 2, "qwen35moe.ssm.time_step_rank": 2,
            "qwen35moe.ssm.inner_size": 32, "qwen35moe.feed_forward_length": None,
            "qwen35moe.expert_shared_feed_forward_length": 96,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", OTHER_KINDS)
def test_gguf_of_other_kinds(arch: str, tmp_path: Path) -> None:
    """llama.cpp's layout means the same model, to the bit."""
    recipe, keys = OTHER_KINDS[arch]
    write_gguf(tmp_path / "m.gguf", arch, recipe, keys, {})
    model = loading.load(tmp_path / "m.gguf")
    assert model.config.architecture == recipe.architecture
    got = engine(model).logits([PROMPT])[0]
    assert_same_bits(got, engine(loading.load(write(tmp_path / "hf", recipe))).logits([PROMPT])[0])
    loading.save(model, tmp_path / "packed")
    convert(tmp_path / "m.gguf", tmp_path / "converted", None)
    for folder in ("packed", "converted"):
        assert_same_bits(engine(loading.load(tmp_path / folder)).logits([PROMPT])[0], got)


def test_gguf_gate_and_up_as_one_tensor(tmp_path: Path) -> None:
    """The bits of two."""

    def join(file: dict[str, np.ndarray]) -> None:
        for i in range(BIG.layers):
            parts = [file.pop(f"blk.{i}.ffn_{part}_exps.weight") for part in ("gate", "up")]
            file[f"blk.{i}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)

    types = {"": "Q8_0"}
    write_gguf(tmp_path / "1.gguf", "qwen3moe", BIG, {}, types)
    write_gguf(tmp_path / "2.gguf", "qwen3moe", BIG, {}, types, join)
    one, two = (engine(loading.load(tmp_path / f"{i}.gguf")).logits([PROMPT])[0] for i in (1, 2))
    assert_same_bits(one, two)


@pytest.mark.parametrize(
    ("keys", "drop", "words"),
    [
        ({"qwen3moe.expert_used_count": 8}, "", ("num_experts_per_tok", "num_experts=7", "8")),
        ({"qwen3moe.expert_count": 6}, "", ("blk.0.ffn_gate_inp.weight", "[6, 256]", "[7, 256]")),
        ({"qwen3moe.expert_feed_forward_length": 128}, "", ("ffn_gate_exps", "[7, 128, 256]")),
        ({"qwen3moe.expert_weights_scale": 2.5}, "", ("expert_weights_scale", "2.5")),
        ({"qwen3moe.expert_gating_func": 2}, "", ("expert_gating_func", "2")),
        ({}, "blk.1.ffn_gate_inp.weight", ("blk.1.ffn_gate_inp.weight", "no such tensor")),
        ({}, "blk.1.ffn_up_exps.weight", ("blk.1.ffn_up_exps.weight", "no such tensor")),
        ({"qwen3moe.expert_count": 0}, "", ("num_experts", "0")),
    ],
)
def test_bad_gguf(keys: dict[str, Any], drop: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """One line that names the file, the key or tensor, the rule and the value."""
    path = tmp_path / "m.gguf"
    write_gguf(path, "qwen3moe", BIG, keys, {}, lambda file: file.pop(drop, None))
    with pytest.raises((ModelFormatError, UnsupportedModelError)) as caught:
        loading.load(path)
    message = str(caught.value)
    assert message.isprintable()
    assert all(word in message for word in ("m.gguf", *words)), message


def test_no_gguf_file_is_written(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Rather than one that no one has tried."""
    dst = tmp_path / "m.gguf"
    failure(
        lambda: convert(checkpoint("qwen3_moe"), dst, "gguf:Q8_0"),
        UnsupportedModelError,
        "Qwen3MoeFor",
    )
    assert not dst.exists()
