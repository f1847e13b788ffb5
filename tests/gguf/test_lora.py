"""GGUF adapters that the package gguf writes by the rule of llama.cpp: read, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_folders
import gguf
import numpy as np
import pytest
from adapter_folders import parts_of
from gguf_factory import interleaved
from helpers import command, failure

from sterna import LLM, loading
from sterna.checkpoints.lora import open_lora_folder
from sterna.engine import Adapter, Engine
from sterna.errors import (
    ModelFormatError,
    NonFiniteError,
    RequestError,
    SternaError,
    UnsupportedModelError,
)
from sterna.gguf.lora import BaseLayers, open_lora
from sterna.gguf.tensor_names import gguf_name
from sterna.loading import Model

TOKENS = np.random.default_rng(3).integers(3, 250, 20).tolist()
F32 = np.float32


def write(
    path: Path, tensors: dict[str, np.ndarray], kind: Any = gguf.GGMLQuantizationType.F32,
    **keys: Any,
) -> Path:  # fmt: skip
    """A file of an adapter; keys: in place of those of an adapter of LoRA, None for none."""
    writer = gguf.GGUFWriter(path, "llama")
    own = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    for key, value in (own | {n.replace("__", "."): v for n, v in keys.items()}).items():
        if isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, values in tensors.items():
        data = gguf.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(folder: Path, model: Model) -> dict[str, np.ndarray]:
    """The matrices of a folder as a file of the architecture llama has them."""
    found, config = {}, model.config
    for name, layer in open_lora_folder(folder).layers.items():
        base, up = gguf_name("llama", f"{name}.weight"), layer.up
        heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}.get(name.split(".")[-1])
        found[f"{base}.lora_a"] = layer.down
        found[f"{base}.lora_b"] = up if heads is None else interleaved(up, heads)
    return found


@pytest.fixture
def base(checkpoint: Callable[[str], Path], tmp_path: Path) -> tuple[Model, Path]:
    """A model, and an adapter's folder of it."""
    model = loading.load(checkpoint("llama-256"))
    path = adapter_folders.write(
        tmp_path / "adapter", parts_of(model), r=32, rank_pattern={"o_proj": 64}, lora_alpha=8,
        size=2.0,
    )  # fmt: skip
    return model, path


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_a_file_is_its_folder(base: tuple[Model, Path], tmp_path: Path, kind: str) -> None:
    """The same bits from float32; scales are alpha over each layer's own rank."""
    model, folder = base
    tensors = tensors_of(folder, model)
    file = write(tmp_path / "a.gguf", tensors, gguf.GGMLQuantizationType[kind])
    engine = Engine(model, threads=1)
    adapter = Adapter.open(file, model)
    assert adapter.rank == 64
    (plain,), (expected,), (got,) = (
        engine.logits([TOKENS], adapter=one) for one in (None, Adapter.open(folder, model), adapter)
    )
    if kind == "F32":
        assert got.tobytes() == expected.tobytes()
    off = np.abs(got - expected).max() / np.abs(expected - plain).max()
    assert off < {"F32": 1e-9, "F16": 1e-2, "BF16": 3e-2, "Q8_0": 1e-1}[kind]


def test_by_name_and_on_the_command_line(tmp_path: Path) -> None:
    """Wherever a folder may be given; the name of a file is that without its suffix."""
    llm = LLM("nano", threads=1)
    folder = adapter_folders.write(tmp_path / "poet", parts_of(llm.engine.model)[:3], size=2.0)
    file = write(tmp_path / "verse.gguf", tensors_of(folder, llm.engine.model))
    llm.load_adapter("folder", folder)
    llm.load_adapter("file", file)
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    texts = [llm.generate("def f(x):", adapter=name, **asked).text for name in ("folder", "file")]
    assert texts[0] == texts[1] != llm.generate("def f(x):", **asked).text
    options = ("--max-tokens", "8", "--temperature", "0", "--threads", "1", "--adapter", str(file))
    assert command("generate", *options, "def f(x):").stdout == texts[0]


Q = "blk.0.attn_q.weight"
RANDOM = np.random.default_rng(1)
DOWN = RANDOM.standard_normal((4, 64)).astype(F32)
UP = RANDOM.standard_normal((64, 4)).astype(F32)
GOOD = {f"{Q}.lora_a": DOWN, f"{Q}.lora_b": UP}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], type[SternaError], list[str]]] = [
    ({}, {"general__type": "model"}, RequestError, ["adapter", "of a model"]),
    ({}, {"adapter__type": "control_vector"}, UnsupportedModelError, ["control_vector"]),
    ({}, {"adapter__lora__alpha": None}, ModelFormatError, ["adapter.lora.alpha"]),
    ({}, {"adapter__lora__alpha": 1e30}, ModelFormatError, ["adapter.lora.alpha"]),
    ({}, {"adapter__alora__invocation_tokens": [1, 2]}, UnsupportedModelError, ["aLoRA"]),
    ({"blk.0.attn_norm.weight": np.ones(64, F32)}, {}, UnsupportedModelError, ["attn_norm"]),
    ({"token_embd.weight.lora_a": DOWN}, {}, UnsupportedModelError, ["token_embd"]),
    ({"blk.9.attn_q.weight.lora_a": DOWN}, {}, UnsupportedModelError, ["blk.9"]),
    ({f"{Q}.lora_b": None}, {}, ModelFormatError, [f"{Q}.lora_b"]),
    ({f"{Q}.lora_a": DOWN[:3]}, {}, ModelFormatError, ["lora_a", "4 rows", "3"]),
    ({f"{Q}.lora_a": DOWN[0]}, {}, ModelFormatError, ["lora_a", "a matrix"]),
    ({f"{Q}.lora_a": DOWN * np.nan}, {}, NonFiniteError, ["lora_a", "NaN"]),
    ({f"{Q}.lora_a": None, f"{Q}.lora_b": None}, {}, ModelFormatError, ["no tensor"]),
]


@pytest.mark.parametrize(("tensors", "keys", "error", "words"), REFUSED)
def test_refused_files(
    tmp_path: Path, tensors: dict[str, Any], keys: dict[str, Any], error: type[SternaError],
    words: list[str],
) -> None:  # fmt: skip
    known = BaseLayers(["model.layers.0.self_attn.q_proj"], 16, 4)
    kept = {name: value for name, value in (GOOD | tensors).items() if value is not None}
    file = write(tmp_path / "a.gguf", kept, **keys)
    failure(lambda: open_lora(file, known), error, *words)


def test_cut_files(tmp_path: Path) -> None:
    """A file that ends anywhere is an error of Sterna's."""
    known = BaseLayers(["model.layers.0.self_attn.q_proj"], 16, 4)
    file = write(tmp_path / "a.gguf", GOOD)
    assert list(open_lora(file, known).layers) == ["model.layers.0.self_attn.q_proj"]
    data = file.read_bytes()
    for size in range(0, len(data) - 1, 37):
        file.write_bytes(data[:size])
        with pytest.raises(SternaError):
            open_lora(file, known)


def test_shapes_of_another_model(base: tuple[Model, Path], tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", {f"{Q}.lora_a": DOWN[:, :32], f"{Q}.lora_b": UP[:7]})
    failure(lambda: Adapter.open(file, base[0]), RequestError, f"{Q}.lora_a", "shape")
