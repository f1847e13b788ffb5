"""Damaged, hostile and mistaken model folders: a typed error that names the file and the tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_factory import RECIPES, write
from helpers import failure
from safetensors.torch import load_file, save_file

from sterna import LLM
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)

PROMPT = "def read_lines(path):"


def edit_config(folder: Path, **values: Any) -> None:
    """Sets keys of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def edit_tensor(
    folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]
) -> None:
    """Replaces a stored tensor by what `change` makes of it; None removes it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, path, {"format": "pt"})


def test_missing_folder(tmp_path: Path) -> None:
    """Neither a folder nor a built-in name."""
    missing = tmp_path / "no" / "such" / "model"
    failure(lambda: LLM(missing), RequestError, str(missing))
    failure(lambda: LLM("nanoo"), RequestError, "nanoo")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file(folder: Path, name: str) -> None:
    """The message names the file."""
    (folder / name).unlink()
    failure(lambda: LLM(folder), SternaError, name)


def test_pickled_weights(folder: Path) -> None:
    """A folder with only pickles is refused with the reason: loading one runs its code."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    failure(lambda: LLM(folder), SternaError, "safetensors")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff" * 64, b"{" * 5000], ids=str)
def test_garbage(folder: Path, name: str, content: bytes) -> None:
    """Files that hold something else."""
    (folder / name).write_bytes(content)
    failure(lambda: LLM(folder), ModelFormatError, name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs(folder: Path, name: str) -> None:
    """Files of a clone without git-lfs are named as such; one that only begins like that is not."""
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'5' * 64}\nsize 4000000000\n"
    )
    (folder / name).write_text(pointer)
    failure(lambda: LLM(folder), ModelFormatError, name, "pointer of Git LFS", "git lfs pull")
    (folder / name).write_text(pointer + "x" * 1024)
    assert "LFS" not in failure(lambda: LLM(folder), ModelFormatError, name)


def test_truncated_weights(folder: Path) -> None:
    """A download that stopped: any shorter file is refused."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:length])
        failure(lambda: LLM(folder), ModelFormatError, "model.safetensors")


def test_config_of_a_wrong_type(folder: Path) -> None:
    """File, field, what it must be and what it is: a number in quotes looks like the number."""
    edit_config(folder, hidden_size="256")
    failure(
        lambda: LLM(folder), ModelFormatError,
        "config.json", "hidden_size", "expected a whole number", "got a string, '256'",
    )  # fmt: skip
    for value, got in ((True, "a boolean, True"), ([256], "an array, [256]"), (2.5, "got 2.5")):
        edit_config(folder, hidden_size=value)
        failure(lambda: LLM(folder), ModelFormatError, "hidden_size", got)
    edit_config(folder, hidden_size=None)  # left out, it is the class's own, 2,560
    failure(lambda: LLM(folder), ModelFormatError, "embed_tokens", "2560", "got BF16 shape [320, 8")


def test_missing_tensor(folder: Path) -> None:
    """The message names the tensor that is not there."""
    name = "model.layers.1.self_attn.k_proj.weight"
    edit_tensor(folder, name, lambda _: None)
    failure(lambda: LLM(folder), ModelFormatError, name)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.attn_sub_norm.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.mlp.ffn_sub_norm.weight",
    ],
)
def test_misshapen_tensor(folder: Path, name: str) -> None:
    """The message names tensor, expected and got."""
    edit_tensor(folder, name, lambda tensor: tensor[:-1])
    error = failure(lambda: LLM(folder), ModelFormatError, name, "expected", "got")
    assert "model.safetensors" in error


def test_missing_scale(folder: Path) -> None:
    """Packed codes mean nothing without their scale."""
    name = "model.layers.0.mlp.up_proj.weight_scale"
    edit_tensor(folder, name, lambda _: None)
    failure(lambda: LLM(folder), ModelFormatError, name)


def test_a_code_that_is_no_trit(folder: Path) -> None:
    """Two bits hold four values and a trit has three: 3 would be the weight 2."""
    name = "model.layers.0.mlp.up_proj.weight"

    def spoil(codes: torch.Tensor) -> torch.Tensor:
        codes[5, 7] |= 3
        return codes

    edit_tensor(folder, name, spoil)
    failure(lambda: LLM(folder), ModelFormatError, name)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("bitnet-multiply", "model.layers.0.mlp.up_proj.weight_scale"),
        ("bitnet-divide", "model.layers.1.self_attn.q_proj.weight_scale"),
        ("bitnet-online", "model.layers.1.mlp.down_proj.weight"),
        ("bitnet-multiply", "model.layers.0.input_layernorm.weight"),
        ("bitnet-multiply", "model.layers.1.mlp.ffn_sub_norm.weight"),
        ("bitnet-multiply", "model.embed_tokens.weight"),
        ("llama-f32", "model.layers.0.self_attn.v_proj.weight"),
        ("llama-bf16", "model.norm.weight"),
        ("llama-f16", "lm_head.weight"),
    ],
)
def test_non_finite_weights(tmp_path: Path, recipe: str, name: str, bad: float) -> None:
    """NaN or infinity in a weight or scale is found at loading, and the tensor is named."""
    folder = write(tmp_path / "model", RECIPES[recipe])

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[tensor.numel() // 2] = bad
        return tensor

    edit_tensor(folder, name, spoil)
    failure(lambda: LLM(folder), NonFiniteError, name)


def test_a_scale_of_zero(tmp_path: Path) -> None:
    """In the dividing convention a stored 0 is an infinite scale."""
    folder = write(tmp_path / "model", RECIPES["bitnet-divide"])
    name = "model.layers.0.mlp.up_proj.weight_scale"
    edit_tensor(folder, name, torch.zeros_like)
    failure(lambda: LLM(folder), SternaError, name)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.mlp.up_proj.weight_scale",  # the product itself overflows
        "model.embed_tokens.weight",  # its square does, inside a norm
    ],
)
def test_activations_that_overflow(folder: Path, name: str) -> None:
    """Finite weights whose products are not: an error, never a garbage token."""
    edit_tensor(folder, name, lambda t: torch.full_like(t, 3e38))
    model = LLM(folder, threads=1)
    failure(lambda: model.generate(PROMPT, max_tokens=1), NonFiniteError)


def test_denormal_weights_are_normal_input(tmp_path: Path) -> None:
    """Norms of 1e-34 and masters of 1e-39 load and generate."""
    folder = write(tmp_path / "model", RECIPES["bitnet-online"])
    name = "model.layers.0.mlp.ffn_sub_norm.weight"
    edit_tensor(folder, name, lambda t: torch.full_like(t, 1e-34))
    model = LLM(folder, threads=1)
    assert np.isfinite(model.logits(model.tokenizer.encode(PROMPT))).all()


def test_tokenizer_of_another_model(folder: Path) -> None:
    """More tokens than the model has embeddings."""
    edit_config(folder, vocab_size=256)
    edit_tensor(folder, "model.embed_tokens.weight", lambda t: t[:256])
    failure(lambda: LLM(folder), ModelFormatError, "256")


def test_unsupported_architecture(folder: Path) -> None:
    """Names the architecture, and the three that are nearest to it."""
    edit_config(folder, architectures=["Olmo9ForCausalLM"], model_type="olmo9")
    nearest = "nearest by its fields: ", "Olmo2ForCausalLM"
    failure(lambda: LLM(folder), UnsupportedModelError, "Olmo9ForCausalLM", *nearest)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -80),
        ("hidden_size", 2**63),
        ("hidden_size", "80"),
        ("hidden_size", None),
        ("head_dim", 1 << 24),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 10**9),
        ("num_hidden_layers", 3),
        ("num_attention_heads", 7),
        ("num_attention_heads", 0),
        ("num_key_value_heads", 2),
        ("num_key_value_heads", 0),
        ("intermediate_size", 1.5),
        ("vocab_size", 2**31),
        ("rms_norm_eps", -1.0),
        ("rms_norm_eps", "small"),
        ("rope_theta", 0),
        ("rope_theta", -1.0),
        ("rope_scaling", {"rope_type": "magic", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "llama3"}),
        ("rope_scaling", "llama3"),
        ("hidden_act", "tanh"),
        ("attention_bias", True),
        ("max_position_embeddings", 0),
        ("quantization_config", {"quant_method": "aqlm"}),
        ("quantization_config", {"quant_method": "bitnet", "linear_class": "other"}),
        ("quantization_config", []),
        ("architectures", "BitNetForCausalLM"),
        ("architectures", []),
        ("architectures", None),
    ],
)
def test_config_values(folder: Path, key: str, value: object) -> None:
    """A config that contradicts itself or the tensors; nothing is allocated on its word."""
    edit_config(folder, **{key: value})
    failure(lambda: LLM(folder), SternaError)


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 200 + "]" * 200]
)
def test_json_beyond_the_standard(folder: Path, text: str) -> None:
    """NaN, infinity, duplicate keys and deep nesting are refused, not interpreted."""
    config = (folder / "config.json").read_text().rstrip().removesuffix("}")
    (folder / "config.json").write_text(f'{config}, "extra": {text}}}')
    failure(lambda: LLM(folder), ModelFormatError, "config.json")
