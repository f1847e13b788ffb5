"""Qwen3-Next as a GGUF file: what llama.cpp's converter does to its tensors, undone."""

from __future__ import annotations

from pathlib import Path

import gguf_factory
import numpy as np
import pytest
import saved_models
import torch
from gguf_factory import Tiny
from model_configs import MODELS, POSITIONS, SIZES

from sterna import loading
from sterna.engine import Engine

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

TOKENS = np.random.default_rng(1).integers(0, 256, POSITIONS).tolist()
SAVED = MODELS["qwen3-next"]
CONFIG = SIZES | SAVED.config


def converted(name: str, w: np.ndarray, first: bool) -> dict[str, np.ndarray]:
    """A tensor of the checkpoint as those of the file, by their names there.

    first: as the first files had q, k, v and z of recurrent layers, in the checkpoint's order.
    """
    c, recurrent = CONFIG, ".linear_attn." in name
    k_heads, each = c["linear_num_key_heads"], c["linear_num_value_heads"]
    each //= k_heads
    if "in_proj_qkvz" in name and not first:
        widths = [c["linear_key_head_dim"]] * 2 + [each * c["linear_value_head_dim"]]
        parts = np.split(w.reshape(k_heads, -1, w.shape[1]), np.cumsum(widths), axis=1)
        q, k, v, z = (part.reshape(-1, w.shape[1]) for part in parts)
        block = name.split(".")[2]
        return {
            f"blk.{block}.attn_qkv.weight": np.concatenate([q, k, v]),
            f"blk.{block}.attn_gate.weight": z,
        }
    if "experts.gate_up_proj" in name:
        gate, up = np.split(w, 2, axis=1)
        made = {name.replace("gate_up_proj", f"{p}_proj.weight"): x for p, x in
                (("gate", gate), ("up", up))}  # fmt: skip
    elif name.endswith("experts.down_proj"):
        made = {f"{name}.weight": w}
    elif name.endswith(".A_log"):
        made = {name: -torch.exp(torch.from_numpy(w)).numpy()}
    elif name.endswith(".dt_bias"):
        made = {name.replace("dt_bias", "dt_proj.bias"): w}
    elif "conv1d" in name:
        made = {name: w.squeeze(1)}
    else:
        made = {name: w + np.float32(1) if "norm" in name and not recurrent else w}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3NEXT, c["num_hidden_layers"])
    return {names.get_name(n, try_suffixes=(".weight", ".bias")): x for n, x in made.items()}


def write(path: Path, model: torch.nn.Module, first: bool = False) -> None:
    """The model as a file."""
    c = CONFIG
    inner = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    keys = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": c["head_dim"] // 4,
        "ssm.conv_kernel": 4, "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"], "ssm.inner_size": inner,
        "ssm.time_step_rank": c["linear_num_value_heads"], "expert_count": c["num_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"],
    }  # fmt: skip
    tiny = Tiny(
        arch="qwen3next", hidden=c["hidden_size"], wide=c["intermediate_size"],
        layers=c["num_hidden_layers"], heads=c["num_attention_heads"],
        kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"],
        keys={f"qwen3next.{key}": value for key, value in keys.items()},
    )  # fmt: skip
    writer = gguf.GGUFWriter(path, "qwen3next")
    gguf_factory.add_metadata(writer, tiny)
    for name, tensor in model.state_dict().items():
        for target, w in converted(name, tensor.float().numpy(), first).items():
            writer.add_tensor(target, np.ascontiguousarray(w, np.float32))
    gguf_factory.finish(writer)


def logits(path: Path) -> np.ndarray:
    """float32 [n, vocab]."""
    engine = Engine(loading.load(path, cached=False), threads=1, kv_dtype="f32", deterministic=True)
    return engine.logits([TOKENS])[0]


@pytest.mark.parametrize("first", [False, True])
def test_a_file_is_its_checkpoint(first: bool, tmp_path: Path) -> None:
    """The same logits, but for what 1 + w and -exp(A_log) round away."""
    model = saved_models.write(tmp_path / "m", SAVED)
    write(tmp_path / "m.gguf", model, first)
    got, expected = logits(tmp_path / "m.gguf"), logits(tmp_path / "m")
    assert np.linalg.norm(got - expected) < 1e-5 * np.linalg.norm(expected)
