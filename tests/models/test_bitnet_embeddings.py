"""BitNet's embeddings as they are published: a norm before each linear layer, which only names of
tensors tell. Names, types and keys are those of microsoft/BitNet's converter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checkpoint_factory as factory
import gguf_factory
import numpy as np
import pytest
from checkpoint_factory import RECIPES, Recipe
from gguf_factory import LINEARS, Tiny, i2s_bytes, raw_file
from helpers import assert_same_bits, failure
from safetensors.torch import load_file, save_file
from test_embeddings import MEAN, TEXTS, embedder
from test_gguf_families import FAMILIES

from sterna import LLM
from sterna.convert import convert
from sterna.errors import ModelFormatError, UnsupportedModelError

gguf = pytest.importorskip("gguf", reason="needs the gguf package")

SIZES = {"hidden": 128, "intermediate": 256, "config": {"rms_norm_eps": 1e-6}}
OF = {
    "qwen3": replace(RECIPES["qwen3"], weights="online", input_norms=True, **SIZES),
    "gemma3": replace(
        FAMILIES["gemma3"].recipe, weights="online", input_norms=True,
        **{**SIZES, "config": FAMILIES["gemma3"].recipe.config | SIZES["config"]},
    ),
}  # fmt: skip
KEYS: dict[str, dict[str, object]] = {"qwen3": {}, "gemma3": FAMILIES["gemma3"].keys}
I2_S = 36
TYPES = {np.dtype(np.float16): 1, np.dtype(np.float32): 0}


@pytest.fixture(params=OF)
def arch(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def halved(recipe: Recipe) -> dict[str, np.ndarray]:
    """The checkpoint's tensors, of which all but matrices of layers are those of f16."""
    found = {}
    for name, tensor in factory.tensors(recipe).items():
        w = tensor.float().numpy()
        added = plus_one(recipe, name)
        is_layer = name.endswith("_proj.weight")
        found[name] = w if is_layer else (w + added).astype(np.float16).astype(np.float32) - added
    return found


def plus_one(recipe: Recipe, name: str) -> int:
    """The offset of a tensor in a file: 1 for Gemma's norms, 0 for those of layers' inputs."""
    module = name.rpartition(".")[0]
    return int(recipe.is_gemma and "norm" in module and not module.endswith(".rms_norm"))


def published(folder: Path, recipe: Recipe) -> Path:
    """The safetensors: names without `model.`, a layer's norm as `norm`, nothing in config.json."""
    embedder(folder, MEAN, recipe=recipe)
    stored = load_file(folder / "model.safetensors")
    for name, w in halved(recipe).items():
        bare = name.removeprefix("model.")
        if bare in stored:
            stored[bare] = stored[bare].new_tensor(w)
    renamed = {name.replace("_proj.rms_norm.", "_proj.norm."): w for name, w in stored.items()}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def file_of(
    path: Path, arch: str, change: Callable[[dict[str, np.ndarray]], object] = lambda _: None
) -> Path:
    """The GGUF file: layers as I2_S, the rest F16, mean pooling."""
    recipe = OF[arch]
    kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == arch)
    names = gguf.get_tensor_name_map(kind, recipe.layers)
    norms_in = {hf: f"{ours}_norm_in" for ours, hf in LINEARS.items()}
    tensors = {}
    for name, w in halved(recipe).items():
        module = name.removesuffix(".weight")
        if module.endswith(".rms_norm"):
            layer, inside = module.removesuffix(".rms_norm").split(".", 3)[2:]
            tensors[f"blk.{layer}.{norms_in[inside]}.weight"] = w
        elif module != "lm_head":
            tensors[names.get_name(name, try_suffixes=(".weight",))] = w + plus_one(recipe, name)
    change(tensors)
    keys = {"attention.layer_norm_rms_epsilon": 1e-6, "pooling_type": 1, **KEYS[arch]}
    tiny = Tiny(
        arch=arch, hidden=recipe.hidden, wide=recipe.intermediate, layers=recipe.layers,
        heads=recipe.heads, kv_heads=recipe.kv_heads, head_dim=recipe.width,
        rope_theta=recipe.rope_theta, keys={f"{arch}.{key}": value for key, value in keys.items()},
    )  # fmt: skip
    raw = []
    for name, w in tensors.items():
        if w.ndim == 2 and not name.startswith("token_embd"):
            scale = np.abs(w).mean(dtype=np.float64)
            levels = np.clip(np.round(w / scale), -1, 1).astype(int)
            raw.append((name, w.shape, I2_S, i2s_bytes(levels, scale, "128")))
        else:
            half = w.astype(np.float16)
            raw.append((name, w.shape, TYPES[half.dtype], half.tobytes()))
    values = {"general.architecture": arch, **gguf_factory.metadata(tiny)}
    return raw_file(path, values, raw)


def vectors(model: Path) -> np.ndarray:
    return LLM(model, kv_dtype="f32", threads=2, i2s="128").embed(TEXTS)


def test_published_safetensors_are_bitnet(arch: str, tmp_path: Path) -> None:
    """The same bits as a checkpoint whose config.json says so in transformers' words."""
    said = embedder(tmp_path / "said", MEAN, recipe=OF[arch])
    unsaid = embedder(tmp_path / "unsaid", MEAN, recipe=OF[arch])
    stored = load_file(unsaid / "model.safetensors")
    renamed = {name.replace("_proj.rms_norm.", "_proj.norm."): w for name, w in stored.items()}
    assert renamed.keys() != stored.keys()
    save_file(renamed, unsaid / "model.safetensors", {"format": "pt"})
    config = json.loads((unsaid / "config.json").read_text())
    assert config.pop("quantization_config")["use_rms_norm"]
    (unsaid / "config.json").write_text(json.dumps(config))
    assert_same_bits(vectors(unsaid), vectors(said))
    packed = tmp_path / "packed"
    convert(unsaid, packed)
    assert_same_bits(vectors(packed), vectors(said))


def test_gguf_is_its_checkpoint(arch: str, tmp_path: Path) -> None:
    """Scales may differ by a rounding of the mean, and a few activations in int8 after it."""
    of_folder = vectors(published(tmp_path / "m", OF[arch]))
    of_file = vectors(file_of(tmp_path / "m.gguf", arch))
    assert ((of_folder * of_file).sum(axis=1) > 0.9999).all()
    info = LLM(tmp_path / "m.gguf", i2s="128").info()
    assert (info["format"], info["pooling"]) == ("i2", "mean")

    def other(tensors: dict[str, np.ndarray]) -> None:
        tensors["blk.1.attn_v_norm_in.weight"][::2] *= -1

    changed = vectors(file_of(tmp_path / "other.gguf", arch, other))
    assert ((of_folder * changed).sum(axis=1) < 0.999).any()


def test_a_norm_that_is_missing(arch: str, tmp_path: Path) -> None:
    """One line that names it, of a file and of a folder."""

    def without(tensors: dict[str, np.ndarray]) -> None:
        del tensors["blk.1.ffn_down_norm_in.weight"]

    path = file_of(tmp_path / "m.gguf", arch, without)
    failure(lambda: LLM(path, i2s="128"), ModelFormatError, "blk.1.ffn_down_norm_in.weight")
    folder = published(tmp_path / "m", OF[arch])
    stored = load_file(folder / "model.safetensors")
    del stored["layers.1.mlp.down_proj.norm.weight"]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    failure(lambda: LLM(folder), ModelFormatError, "layers.1.mlp.down_proj")


def test_no_gguf_is_written(tmp_path: Path) -> None:
    """llama.cpp knows no such norms."""
    folder, to = published(tmp_path / "m", OF["qwen3"]), tmp_path / "x.gguf"
    failure(lambda: convert(folder, to, "gguf:F16"), UnsupportedModelError, "norms of their own")
