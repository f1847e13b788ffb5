"""GGUF types that the `gguf` package cannot write run as the same weights in a checkpoint do."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, failure

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

from checkpoint_factory import pack_rows  # noqa: E402
from few_bit_blocks import FEW_BITS, ternary_file  # noqa: E402
from gguf_factory import Tiny, build, checkpoint, metadata, raw_file  # noqa: E402
from gguf_models import floating, hf_name, logits  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from sterna import LLM, loading  # noqa: E402
from sterna.convert import convert  # noqa: E402
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError  # noqa: E402
from sterna.gguf.file import GgufModel  # noqa: E402


@pytest.fixture(autouse=True)
def no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STERNA_I2S", raising=False)


@pytest.mark.parametrize("kind", FEW_BITS)
@pytest.mark.parametrize("arch", ["llama", "bitnet-b1.58"])
@pytest.mark.filterwarnings("ignore:.*I2_S tensors")
def test_types_of_few_bits(kind: str, arch: str, tmp_path: Path) -> None:
    """Ids that several types share are told apart by the bytes; the weights are exact."""
    tiny = Tiny(arch, layers=1, wide=512 if kind == "STQ1_0" else 384, seed=31)
    floats = ternary_file(tmp_path / "x.gguf", tiny, kind)
    reference = floating(tmp_path / "hf", tiny, floats)
    expected = logits(reference)
    assert_same_bits(logits(LLM(tmp_path / "x.gguf", format="f32", head="f32")), expected)
    packed = LLM(tmp_path / "x.gguf")
    assert packed.info()["format"] == FEW_BITS[kind]
    assert np.median(np.abs(logits(packed) - expected)) < 0.1 * expected.std()


def test_ternary_blocks_in_another_format(tmp_path: Path) -> None:
    """Levels and scales of ternary groups stay what they are in every format that has them; four
    levels are refused there."""
    tiny = Tiny("qwen3", layers=1, wide=384, seed=32)
    ternary_file(tmp_path / "x.gguf", tiny, "PQ2_0, ternary")
    expected = logits(LLM(tmp_path / "x.gguf"))
    packed = LLM(tmp_path / "x.gguf", format="t5:g128")
    assert packed.info()["format"] == "t5:g128"
    assert_same_bits(logits(packed), expected)
    assert LLM(tmp_path / "x.gguf", format="pq2_0").info()["format"] == "pq2_0"
    ternary_file(tmp_path / "y.gguf", tiny, "PQ2_0")
    failure(lambda: LLM(tmp_path / "y.gguf", format="t5:g128"), RequestError, "PQ2_0", "t5:g128")


def of_one_type(path: Path, type_id: int, shape: tuple[int, int], nbytes: int, **keys: Any) -> Path:
    """A file with one matrix of so many bytes, and a vector behind it."""
    tensors = [("m", shape, type_id, bytes(nbytes)), ("v", (8,), 0, bytes(32))]
    raw_file(path, {"general.architecture": "qwen3", **keys}, tensors)
    return path


def test_ids_of_two_forks(tmp_path: Path) -> None:
    """142 and 143 are other types in another fork: bytes decide, else the keys of Prism's files."""
    open_ = partial(of_one_type, tmp_path / "x.gguf")
    assert GgufModel(open_(142, (32, 512), 4352)).tensors["m"].dtype == "PQ2_0"
    assert GgufModel(open_(143, (32, 512), 3584)).tensors["m"].dtype == "PTQ1_0"
    failure(lambda: GgufModel(open_(142, (32, 512), 4224)), UnsupportedModelError, "IQ2_TN")
    failure(lambda: GgufModel(open_(143, (32, 512), 3392)), UnsupportedModelError, "IQ1_TN")
    failure(lambda: GgufModel(open_(142, (32, 512), 4800)), ModelFormatError, "PQ2_0")
    for type_id in (42, 43):  # Tencent's earlier and later files
        stq = open_(type_id, (32, 512), 2688)
        assert GgufModel(stq).tensors["m"].dtype == "STQ1_0"
    assert GgufModel(open_(42, (32, 512), 4608)).tensors["m"].dtype == "Q2_0"
    failure(lambda: GgufModel(open_(42, (32, 512), 2816)), ModelFormatError, "STQ1_0")
    short = (32, 256), 2176
    failure(lambda: GgufModel(open_(142, *short)), UnsupportedModelError, "PQ2_0 or IQ2_TN")
    told = open_(142, *short, **{"prism.hadamard.version": 1})
    assert GgufModel(told).tensors["m"].dtype == "PQ2_0"


@pytest.mark.filterwarnings("ignore:.*I2_S tensors")
def test_bitnet_is_that_of_the_packed_checkpoint(tmp_path: Path) -> None:
    """I2_S and packed safetensors are the same model, bit for bit."""
    tiny = Tiny("bitnet-b1.58", layers=1, seed=34)
    floats = ternary_file(tmp_path / "x.gguf", tiny, "I2_S")
    folder = checkpoint(tmp_path / "hf", tiny, floats)
    packed: dict[str, torch.Tensor] = {}
    for name, w in floats.items():
        if w.ndim == 1 or "embed" in name:
            packed[name] = torch.from_numpy(w.copy())
            continue
        packed[name] = pack_rows(torch.from_numpy(np.sign(w)))
        packed[name.replace("weight", "weight_scale")] = torch.tensor([float(np.abs(w).max())])
    save_file(packed, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
    (folder / "config.json").write_text(json.dumps(config))
    assert_same_bits(logits(LLM(tmp_path / "x.gguf")), logits(LLM(folder)))


@pytest.mark.parametrize("layout", ["128", "64", "rows"])
def test_layouts_of_i2_s(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in a file tells them apart: the usual one is taken aloud, the others by a setting."""
    tiny = Tiny("bitnet-b1.58", layers=1, seed=32)
    floats = ternary_file(tmp_path / "x.gguf", tiny, "I2_S", layout)
    expected = logits(floating(tmp_path / "hf", tiny, floats))
    with pytest.warns(RuntimeWarning, match="STERNA_I2S"):
        usual = logits(LLM(tmp_path / "x.gguf", format="f32", head="f32"))
    assert (np.abs(usual - expected).max() == 0) == (layout == "128")
    monkeypatch.setenv("STERNA_I2S", layout)
    assert_same_bits(logits(LLM(tmp_path / "x.gguf", format="f32", head="f32")), expected)
    t5, i2 = (logits(LLM(tmp_path / "x.gguf", format=f)) for f in ("t5", None))
    assert_same_bits(t5, i2)
    monkeypatch.setenv("STERNA_I2S", "32")
    failure(lambda: LLM(tmp_path / "x.gguf"), RequestError, "STERNA_I2S", "rows", "32")
    asked = LLM(tmp_path / "x.gguf", format="f32", head="f32", i2s=layout)  # before the setting
    assert_same_bits(logits(asked), expected)
    failure(lambda: LLM(tmp_path / "x.gguf", i2s="32"), RequestError, "i2s", "rows", "32")
    convert(tmp_path / "x.gguf", tmp_path / "packed", i2s=layout)
    assert_same_bits(logits(LLM(tmp_path / "packed")), i2)


def test_scales_in_tensors_of_their_own(tmp_path: Path) -> None:
    """Older BitNet files store ternary weights of size 1, and their scales as separate tensors."""
    tiny = Tiny("bitnet-b1.58", layers=1, types={"": "TQ2_0"}, seed=33)
    file, floats = build(tiny)
    tensors, plain = [], []
    for name, (raw, kind) in file.items():
        type_id = int(gguf.GGMLQuantizationType[kind])
        shape = raw.shape
        if kind == "TQ2_0":
            w = floats[hf_name(name)]
            shape, scale = w.shape, float(np.abs(w).max())
            unit = gguf.quants.quantize(np.sign(w), gguf.GGMLQuantizationType.TQ2_0)
            tensors.append((name, shape, type_id, unit.tobytes()))
            tensors.append((name.replace("weight", "scale"), (1,), 0, np.float32(scale).tobytes()))
        else:
            tensors.append((name, shape, type_id, raw.tobytes()))
        plain.append((name, shape, type_id, raw.tobytes()))
    values = {"general.architecture": tiny.arch, **metadata(tiny)}
    raw_file(tmp_path / "plain.gguf", values, plain)
    raw_file(tmp_path / "scaled.gguf", values, tensors)
    expected, got = (logits(LLM(tmp_path / f"{n}.gguf", format="f32")) for n in ("plain", "scaled"))
    np.testing.assert_allclose(got, expected, atol=1e-3)
    assert loading.load(tmp_path / "scaled.gguf").format == "i2"


def test_nvfp4_with_scales_beside_it(tmp_path: Path) -> None:
    """A factor of the tensor multiplies; a scale of four-bit activations has no effect."""
    tiny = Tiny("qwen3", layers=1, types={"": "NVFP4"}, seed=35)
    file, floats = build(tiny)
    tensors = []
    for name, (raw, kind) in file.items():
        shape = floats[hf_name(name)].shape if kind == "NVFP4" else raw.shape
        tensors.append((name, shape, int(gguf.GGMLQuantizationType[kind]), raw.tobytes()))
    factors = {"attn_q.scale": 0.375, "ffn_up.scale": 1.0, "attn_q.input_scale": 0.01}
    for name, value in factors.items():
        tensors.append((f"blk.0.{name}", (1,), 0, np.float32(value).tobytes()))
    raw_file(tmp_path / "x.gguf", {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    q = hf_name("blk.0.attn_q.weight")
    reference = floating(tmp_path / "hf", tiny, floats | {q: floats[q] * np.float32(0.375)})
    packed = LLM(tmp_path / "x.gguf", head="f32")
    assert packed.info()["format"] == "nvfp4"
    expected = logits(reference)
    assert_same_bits(logits(LLM(tmp_path / "x.gguf", format="f32", head="f32")), expected)
    assert np.abs(logits(packed) - expected).max() < 0.1 * expected.std()  # inputs are rounded
