"""Saved models as GGUF files, whose logits are those of their checkpoints.

Tensors' names are those of the `gguf` package's own table; the order of GPT-NeoX's rows and the
keys, which stand in `model_configs`, are those of llama.cpp's converters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf_factory
import numpy as np
import pytest
import saved_models
import torch
from gguf_factory import Tiny
from helpers import assert_same_bits
from model_configs import MODELS, POSITIONS, SIZES, Saved

from sterna import loading
from sterna.engine import Engine

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

TOKENS = np.random.default_rng(1).integers(0, 256, POSITIONS).tolist()


#: Architectures that the package does not know -> one with the same names of tensors.
ALIKE = {"deepseek32": "glm-dsa"}
PERMUTED = ("granitehybrid", "nemotron_h", "nemotron_h_moe")
FILES = {name: saved for name, saved in MODELS.items() if saved.gguf}


def parts_of(
    name: str, w: np.ndarray, heads: int, sizes: dict[str, Any]
) -> list[tuple[str, np.ndarray]]:
    """A tensor of the checkpoint as those of the file."""
    if name.endswith("mlp.experts.gate_up_proj"):
        gate, up = np.split(w, 2, axis=1)
        return [(f"{name[:-12]}{part}_proj.weight", x) for part, x in (("gate", gate), ("up", up))]
    if name.endswith("mlp.experts.down_proj"):
        return [(f"{name}.weight", w)]
    if name.endswith("mlp.gate.e_score_correction_bias"):
        return [(f"{name[:-5]}.bias", w)]
    if "linear_num_heads" in sizes and "kv_b_proj" not in name:
        return kimi_parts(name, w)
    if "kv_b_proj" in name and {"n_routed_experts", "linear_num_heads"} & sizes.keys():
        k, v = np.split(w.reshape(heads, -1, w.shape[1]), [sizes["qk_nope_head_dim"]], axis=1)
        return [(name.replace("kv_b", "k_b"), k.swapaxes(1, 2)), (name.replace("kv_b", "v_b"), v)]
    if ".mamba." in name or ".mixer." in name:
        return mamba_parts(name.replace("model.", "backbone."), w, sizes)
    if ".feed_forward.experts." in name:
        return jamba_parts(name, w)
    if ".shared_mlp." in name or "block_sparse_moe.experts" in name:
        return granite_parts(name, w, sizes["num_local_experts"] > 0)
    name = name.replace("moe.router.weight", "moe.router.layer.weight")
    return [(name.replace("model.norm_f", "backbone.norm_f"), w)]


def mamba_parts(name: str, w: np.ndarray, sizes: dict[str, Any]) -> list[tuple[str, np.ndarray]]:
    """As Mamba2Model of the converter stores it; a layer's names are those of two families."""
    name = name.replace(
        "backbone.layers", "model.layers" if ".mamba." in name else "backbone.layers"
    )
    groups = sizes.get("mamba_n_groups", sizes.get("n_groups"))
    if name.endswith(".e_score_correction_bias"):
        return [(f"{name[:-5]}.bias", w)]
    if ".mixer.experts." in name:
        part = name.rpartition(".")[2].removesuffix("_proj")
        return [(f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", w)]
    if name.endswith("A_log"):  # of each channel, or in Mamba-2 of each head
        rates = -np.exp(w.astype(np.float64)).astype(np.float32)
        return [(name, rates if w.ndim == 2 else rates.reshape(-1, 1))]
    if name.endswith(".D"):
        return [(name, w.reshape(-1, 1) if groups else w)]
    if name.endswith(".dt_bias"):
        return [(f"blk.{name.split('.')[2]}.ssm_dt.bias", w)]
    if name.endswith(".conv1d.weight"):
        return [(name, w.squeeze(1))]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return [(name, w.reshape(groups, -1))]
    return [(name, w)]


def jamba_parts(name: str, w: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """As JambaModel of the converter stores experts; transformers joins gate and up."""
    block = f"blk.{name.split('.')[2]}.ffn"
    if name.endswith("down_proj"):
        return [(f"{block}_down_exps.weight", w)]
    halves = np.split(w, 2, axis=1)
    parts = zip(("gate", "up"), halves, strict=True)
    return [(f"{block}_{part}_exps.weight", x) for part, x in parts]


def kimi_parts(name: str, w: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """As KimiLinearModel of the converter stores it; transformers joins what files have apart."""
    if ".layers." not in name:
        return [(name, w)]
    name, block = name.replace(".forget_gate.", "."), f"blk.{name.split('.')[2]}"
    if name.endswith(".conv1d.weight"):
        parts = zip("qkv", np.split(w, 3), strict=True)
        return [(f"{block}.ssm_conv1d_{p}.weight", x.reshape(1, len(x), 1, -1)) for p, x in parts]
    if name.endswith(".dt_bias"):
        return [(f"{block}.ssm_dt.bias", w)]
    if name.endswith(".A_log"):
        return [(name, -np.exp(w.astype(np.float64)).astype(np.float32))]
    if name.endswith("e_score_correction_bias"):
        return [(f"{block}.exp_probs_b.bias", w)]
    if name.endswith("mlp.experts.down_proj"):
        return [(f"{block}.ffn_down_exps.weight", w)]
    if name.endswith("mlp.experts.gate_up_proj"):
        parts = zip(("gate", "up"), np.split(w, 2, axis=1), strict=True)
        return [(f"{block}.ffn_{part}_exps.weight", x) for part, x in parts]
    return [(name, w)]


def granite_parts(name: str, w: np.ndarray, experts: bool) -> list[tuple[str, np.ndarray]]:
    """As GraniteMoeModel of the converter stores it: gate and up apart, a lone FFN as dense."""
    block, shared = f"blk.{name.split('.')[2]}.ffn", ".shared_mlp." in name
    kind = "_exps" if not shared else "_shexp" if experts else ""
    if name.endswith(("output_linear.weight", "down_proj")):
        return [(f"{block}_down{kind}.weight", w)]
    halves = np.split(w, 2, axis=-2)
    return [(f"{block}_{p}{kind}.weight", x) for p, x in zip(("gate", "up"), halves, strict=True)]


def stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """As Gemma3NModel of the converter: one tensor of the streams' projections, and a suffix."""
    found, stacks = dict[str, Any](), dict[str, list[Any]]()
    for name, tensor in tensors.items():
        if name.startswith(("model.altup_projections.", "model.altup_unembed_projections.")):
            stacks.setdefault(f"{name.rsplit('.', 2)[0]}.weight", []).append(tensor)
        else:
            found[f"{name}.weight" if name.endswith("_scale") else name] = tensor
    return found | {name: torch.stack(each) for name, each in stacks.items()}


def pairs_beside(w: np.ndarray, width: int) -> np.ndarray:
    """Rows of q or k in the order of interleaved rotations, as LlamaModel of the converter has."""
    return w.reshape(-1, 2, width // 2, w.shape[-1]).swapaxes(1, 2).reshape(w.shape)


def write(path: Path, saved: Saved, model: Any) -> Path:
    """The model as a GGUF file."""
    assert saved.gguf is not None
    arch, keys = saved.gguf
    sizes = SIZES | saved.config
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    tiny = Tiny(
        arch=arch, hidden=width, wide=sizes["intermediate_size"],
        layers=sizes["num_hidden_layers"], heads=heads, kv_heads=sizes["num_key_value_heads"],
        head_dim=sizes.get("head_dim", width // heads),
        keys={f"{arch}.{key}": v for key, v in keys.items()},
    )  # fmt: skip
    writer = gguf.GGUFWriter(path, arch)
    gguf_factory.add_metadata(writer, tiny)
    known = ALIKE.get(arch, arch)
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == known)
    names = gguf.get_tensor_name_map(kind, tiny.layers)
    for name, tensor in stacked(model.state_dict()).items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        w = tensor.float().numpy()
        if "query_key_value" in name:  # of each group in turn; there one part after the other
            d, kv = width // heads, sizes["num_key_value_heads"]
            groups = w.reshape(kv, heads // kv + 2, d, -1)
            parts = groups[:, :-2], groups[:, -2], groups[:, -1]
            w = np.concatenate([part.reshape(-1, *w.shape[1:]) for part in parts])
        if arch in PERMUTED and name.endswith((".q_proj.weight", ".k_proj.weight")):
            w = pairs_beside(w, tiny.head_dim)
        if ".conv.conv." in name:
            w = w.squeeze(1)
        if saved.name == "GPT2LMHeadModel" and ".c_" in name:  # [in, out] in the checkpoint
            w = w.T
        for part, tensor in parts_of(name, w, heads, sizes):
            given = part if part.startswith("blk.") else None
            outer = part.removeprefix("transformer.") if arch == "bloom" else part
            target = given or names.get_name(outer, try_suffixes=(".weight", ".bias"))
            assert target is not None, name
            writer.add_tensor(target, np.ascontiguousarray(tensor))
    gguf_factory.finish(writer)
    return path


def logits(path: Path) -> np.ndarray:
    """float32 [n, vocab], with float32 keys and the file's own weights."""
    engine = Engine(loading.load(path, cached=False), threads=1, kv_dtype="f32", deterministic=True)
    return engine.logits([TOKENS])[0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_its_checkpoint(name: str, tmp_path: Path) -> None:
    model = saved_models.write(tmp_path / "m", FILES[name])
    assert_same_bits(logits(write(tmp_path / "m.gguf", FILES[name], model)), logits(tmp_path / "m"))
