"""Fields of `quantization_config` are read, change nothing, or are refused by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from helpers import failure
from transformers.utils import quantization_config as theirs

from sterna.errors import UnsupportedModelError
from sterna.weights.storages import quantization
from sterna.weights.storages.quantization_fields import METHODS

FILE = Path("config.json")
#: Of transformers: classes that write `quantization_config`, by the method that they write.
CLASSES = {
    "auto-round": theirs.AutoRoundConfig, "awq": theirs.AwqConfig,
    "bitnet": theirs.BitNetQuantConfig, "bitsandbytes": theirs.BitsAndBytesConfig,
    "compressed-tensors": theirs.CompressedTensorsConfig,
    "fbgemm_fp8": theirs.FbgemmFp8Config, "fp8": theirs.FineGrainedFP8Config,
    "gptq": theirs.GPTQConfig, "hqq": theirs.HqqConfig, "mxfp4": theirs.Mxfp4Config,
    "torchao": theirs.TorchAoConfig,
}  # fmt: skip
#: Methods that transformers has no class for.
OTHERS = {"power_of_two", "modelopt", "intel/auto-round"}


def read(settings: dict[str, Any]) -> None:
    quantization({"quantization_config": settings}, FILE)


@pytest.mark.parametrize("method", CLASSES)
def test_fields_of_transformers_are_known(method: str) -> None:
    """Arguments of the installed class, and what it saves of them."""
    kind = CLASSES[method]
    names = set(inspect.signature(kind).parameters) - {"kwargs"}
    if method in ("awq", "bitnet", "fbgemm_fp8", "fp8", "gptq", "mxfp4"):
        made = kind(4, tokenizer="t", dataset="c4") if method == "gptq" else kind()
        saved = {k: v for k, v in made.to_dict().items() if k not in ("dataset", "tokenizer")}
        names |= saved.keys()
        read({**saved, "quant_method": method})  # its defaults run
    assert names <= METHODS[method].names


def test_every_method_is_compared() -> None:
    assert METHODS.keys() == CLASSES.keys() | OTHERS


MODULE = "model.layers.0.mlp.up_proj"
INTEGERS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quant_method": "gptq", "rotation": "another"}, "rotation"),
    ({"quant_method": "awq", "rotation": "hadamard"}, "rotation"),
    ({"quant_method": "gptq", "checkpoint_format": "gptq_p"}, "checkpoint_format"),
    ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format"),
    ({"quant_method": "gptq", "not_yet_known": 0}, "not_yet_known"),
    ({"quant_method": "auto-round", "rotation_config": {"hadamard_type": "hadamard"}},
     "rotation_config"),
    ({"quant_method": "auto-round", "spinquant_config": {"r1": True}}, "spinquant_config"),
    ({"quant_method": "auto-round", "data_type": "mx_int"}, "data_type"),
    ({"quant_method": "auto-round", "packing_format": "auto_round:mlx"}, "packing_format"),
    ({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"u": {}}}},
     "transform_config"),
    ({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}},
     "sparsity_config"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": INTEGERS | {
        "rotated": 1}}}}, "config_groups.g.weights.rotated"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {
        "output_activations": INTEGERS}}}, "config_groups.g.output_activations"),
    ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype"),
    ({"quant_method": "awq", "zeros": True}, "zeros"),
    ({"quant_method": "bitnet", "scale": "row"}, "scale"),
    ({"group_size": 64, "bits": 4, "rotated": True}, "rotated"),
    ({"group_size": 64, "bits": 4, MODULE: {"group_size": 64, "bits": 4, "mode": "other"}},
     f"{MODULE}.mode"),
    ({"group_size": 64, "bits": 4, MODULE: 8}, MODULE),
    ({"quant_method": ["gptq"]}, "quant_method"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "name"), REFUSED)
def test_refused_by_name(settings: dict[str, Any], name: str) -> None:
    failure(lambda: read(settings), UnsupportedModelError, f"quantization_config.{name}")


RUN: list[dict[str, Any]] = [
    {"quant_method": "gptq", "rotation": None, "adapter": {}, "unknown": None, "other": False},
    {"quant_method": "gptq", "meta": {"quantizer": ["gptqmodel:7.7.0"]}, "activation": "w4afp8"},
    {"quant_method": "compressed-tensors", "sparsity_config": {"format": "dense"},
     "kv_cache_scheme": INTEGERS, "config_groups": {"g": {"targets": ["Linear"],
     "weights": INTEGERS | {"actorder": "static"}, "input_activations": None}}},
    {"quant_method": "fp8", "expert_dtype": "fp8", "scale_fmt": "ue8m0", "fmt": "e4m3"},
    {"group_size": 64, "bits": 4, MODULE: {"group_size": 32, "bits": 8}, "lm_head": True},
]  # fmt: skip


@pytest.mark.parametrize("settings", RUN)
def test_what_changes_nothing(settings: dict[str, Any]) -> None:
    read(settings)


def test_the_name_that_mlx_gives_it() -> None:
    """Older files of MLX have `quantization` alone."""
    settings = {"quantization": {"group_size": 64, "bits": 4, "mode": "other"}}
    failure(lambda: quantization(settings, FILE), UnsupportedModelError, "mode")
