"""GGUF models run as the same weights in a checkpoint do: every type, architecture and storage."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, command, failed, failure

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

from checkpoint_factory import EOS, EOT, pack_rows, tokenizer  # noqa: E402
from gguf_factory import (  # noqa: E402
    Tiny,
    build,
    checkpoint,
    i2s_bytes,
    interleaved,
    metadata,
    raw_file,
    write,
)
from safetensors.torch import save_file  # noqa: E402

from sterna import LLM, loading  # noqa: E402
from sterna.convert import convert  # noqa: E402
from sterna.errors import ModelFormatError, RequestError, UnsupportedModelError  # noqa: E402
from sterna.gguf.file import GgufModel  # noqa: E402

TEXT = "def read_lines(path): the meaning of life is 42, née"
#: Q4_K_M likewise gives more bits to what matters most.
MIXED = {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q6_K"}
MODELS = {
    **{
        kind: Tiny(types={"": kind}, seed=i)
        for i, kind in enumerate(
            ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
             "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "IQ4_NL", "IQ4_XS", "NVFP4")
        )
    },
    "mixed": Tiny(types=MIXED, table="Q6_K", seed=20),
    "untied": Tiny(types=MIXED, table="Q8_0", tied=False, seed=21),
    "biased": Tiny(types={"": "Q8_0"}, keys={"bias": True}, seed=22),
    "heads of 20": Tiny(types={"": "F16"}, head_dim=20, seed=29),
    "rope": Tiny(rope_factors=True, rope_theta=500000.0, seed=23),
    "qwen2": Tiny("qwen2", types={"": "Q4_0"}, tied=False, table="F16", seed=24),
    "qwen3": Tiny("qwen3", types=MIXED, head_dim=128, seed=25),
    "bitnet-b1.58": Tiny("bitnet-b1.58", types={"": "TQ2_0"}, table="F16", seed=26),
    "bitnet": Tiny("bitnet", types={"": "TQ2_0"}, table="F16", seed=28),
    "bitnet-25": Tiny("bitnet-25", types={"": "TQ1_0"}, table="F16", seed=27),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STERNA_I2S", raising=False)


def logits(llm: LLM) -> np.ndarray:
    return llm.logits(llm.tokenizer.encode(TEXT))


def margins(rows: np.ndarray) -> np.ndarray:
    """How much the likeliest token is ahead of the next."""
    top = np.sort(rows, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


@pytest.mark.parametrize("name", MODELS)
def test_same_as_the_dequantised_checkpoint(name: str, tmp_path: Path) -> None:
    """Read as floats, the file gives the bits of the weights that the gguf package reads; in its
    own types it differs by the rounding of activations."""
    tiny = MODELS[name]
    floats = write(tmp_path / "x.gguf", tiny)
    reference = floating(tmp_path / "hf", tiny, floats)
    expected = logits(reference)
    exact = LLM(tmp_path / "x.gguf", format="f32", head="f32")
    assert_same_bits(logits(exact), expected)

    packed = LLM(tmp_path / "x.gguf")
    rows = logits(packed)
    spread = float(np.std(expected))
    error = np.abs(rows - expected).max(axis=1)
    assert np.median(error) < 0.15 * spread
    sure = margins(expected) > 2 * error
    assert sure.any()
    np.testing.assert_array_equal(rows.argmax(axis=1)[sure], expected.argmax(axis=1)[sure])
    assert exact.tokenizer.encode(TEXT) == reference.tokenizer.encode(TEXT)


def test_formats_are_the_files_own(tmp_path: Path) -> None:
    """A mixed file keeps each tensor's type."""
    write(tmp_path / "x.gguf", MODELS["mixed"])
    model = loading.load(tmp_path / "x.gguf")
    assert model.format == "q4_k"
    assert model.head == "q6_k"
    assert {w.format for w in model.graph.weights()} == {"q4_k", "q6_k"}
    assert model.n_params == sum(w.size for w in build(MODELS["mixed"])[1].values() if w.ndim == 2)


# ---------------------------------------------------- types that the gguf package cannot write


def ternary_file(path: Path, tiny: Tiny, kind: str, layout: str = "128") -> dict[str, np.ndarray]:
    """A model whose layers are I2_S, Q1_0 or Q2_0; returns the checkpoint's floats."""
    rng = np.random.default_rng(3)
    file, floats = build(replace(tiny, types={}))
    tensors = []
    for name, (w, type_name) in file.items():
        type_id = {"F32": 0, "F16": 1}[type_name]
        raw = w.tobytes()
        if w.ndim == 2 and name.startswith("blk."):
            low, high = {"Q1_0": (0, 2), "Q2_0": (-1, 3), "PQ2_0": (-1, 3)}.get(kind, (-1, 2))
            levels = rng.integers(low, high, w.shape)
            levels = 2 * levels - 1 if kind == "Q1_0" else levels
            levels = three_of_four(levels, rng) if kind == "STQ1_0" else levels
            scale = float(np.float16(1.0 / w.shape[1] ** 0.5))
            raw, type_id = encoded(kind, levels, scale, layout)
            hf = hf_name(name)
            heads = {"attn_q": tiny.heads, "attn_k": tiny.kv_heads}.get(name.split(".")[2])
            real = (levels * np.float32(scale)).astype(np.float32)
            permuted = bool(heads) and tiny.arch == "llama"
            if permuted:  # the file has the rows as drawn; the checkpoint those before
                at = interleaved(np.arange(len(real))[:, None], heads)[:, 0]
                back = np.empty_like(real)
                back[at] = real
                real = back
            floats[hf] = real
        tensors.append((name, w.shape, type_id, raw))
    raw_file(path, {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    return floats


def hf_name(name: str) -> str:
    from gguf_factory import LINEARS

    _, layer, module, _ = name.split(".")
    return f"model.layers.{layer}.{LINEARS[module]}.weight"


def encoded(
    kind: str, levels: np.ndarray, scale: float | np.ndarray, layout: str
) -> tuple[bytes, int]:
    """A tensor's bytes and type id, weight by weight as the reference sheet has it; scale: of all
    weights or, but for I2_S, of each block."""
    if kind == "I2_S":
        return i2s_bytes(levels, float(scale), layout), 36
    if kind == "STQ1_0":
        return sherry_bytes(levels, scale), 42
    block = 64 if kind in ("Q2_0", "Q2_0 of 64, ternary") else 128
    blocks = levels.reshape(-1, block).astype(np.int64)
    half = np.broadcast_to(np.float16(scale), len(blocks))[:, None].copy().view(np.uint8)
    if kind == "PTQ1_0":
        return np.hstack([trits(blocks), half]).tobytes(), 143
    width, codes = (1, blocks > 0) if kind == "Q1_0" else (2, blocks + 1)
    places = width * np.arange(8 // width)  # the first weight is in a byte's lowest bits
    packed = (codes.astype(np.int64).reshape(len(blocks), -1, len(places)) << places).sum(-1)
    ids = {"Q1_0": 41, "PQ2_0": 142, "PQ2_0, ternary": 142}
    return np.hstack([half, packed.astype(np.uint8)]).tobytes(), ids.get(kind, 42)


def trits(blocks: np.ndarray) -> np.ndarray:
    """128 levels of each block as the digits of 26 bytes, as Prism's fork lays them out."""
    parts = []
    for first, count, digits in ((0, 16, 5), (80, 8, 5), (120, 2, 4)):
        codes = blocks[:, first : first + count * digits].reshape(-1, digits, count) + 1
        value = (codes * 3 ** (4 - np.arange(digits))[:, None]).sum(1)
        parts.append(-(-value * 256 // 243))
    return np.hstack(parts).astype(np.uint8)


def three_of_four(levels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Levels of which one of four that lie 16 apart is 0, as STQ1_0 holds them."""
    signs = np.where(levels < 0, -1, 1).reshape(-1, 4, 16)
    zero = rng.integers(0, 4, (len(signs), 1, 16))
    return np.where(np.arange(4)[:, None] == zero, 0, signs).reshape(levels.shape)


def sherry_bytes(levels: np.ndarray, scale: float | np.ndarray) -> bytes:
    """Blocks of STQ1_0: four bits for each four weights, a sign of all, an f16."""
    groups = levels.reshape(-1, 4, 16).transpose(0, 2, 1).reshape(-1, 64, 4)
    kept = groups[groups != 0].reshape(-1, 64, 3)
    same = kept * kept[..., :1]  # the signs, those of the first being +
    codes = (groups == 0).argmax(2) * 4 + (same[..., 1] < 0) + 2 * (same[..., 2] < 0)
    nibbles = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    signs = np.packbits(kept[..., 0] < 0, axis=1, bitorder="little")
    half = np.broadcast_to(np.float16(scale), len(codes))[:, None].copy().view(np.uint8)
    return np.hstack([nibbles, signs, half]).tobytes()


#: What a tensor runs as; "Q2_0 of 128" is an older file under the id of Q2_0.
FEW_BITS = {
    "I2_S": "i2", "Q1_0": "q1_0", "Q2_0": "q2_0", "Q2_0 of 64, ternary": "i2:g64",
    "Q2_0 of 128, ternary": "i2:g128", "PQ2_0": "pq2_0", "PQ2_0, ternary": "i2:g128",
    "PTQ1_0": "t5:g128", "STQ1_0": "stq1_0",
}  # fmt: skip


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


def floating(folder: Path, tiny: Tiny, floats: dict[str, np.ndarray]) -> LLM:
    """The float32 checkpoint; of BitNet a file of floats, since a checkpoint's would be taken for
    masters and rounded."""
    if not tiny.arch.startswith("bitnet"):
        return LLM(checkpoint(folder, tiny, floats), format="f32", head="f32")
    write_path = folder.with_suffix(".gguf")
    file, _ = build(replace(tiny, types={}))
    tensors = []
    for name, (w, _) in file.items():
        inside = w.ndim == 2 and name.startswith("blk.")
        data = floats[hf_name(name)] if inside else w.astype(np.float32)
        data = floats["model.embed_tokens.weight"] if name == "token_embd.weight" else data
        tensors.append((name, w.shape, 0, data.tobytes()))
    raw_file(write_path, {"general.architecture": tiny.arch, **metadata(tiny)}, tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LLM(write_path, head="f32")


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


def test_factors_beside_tensors(tmp_path: Path) -> None:
    """Older BitNet files have ternary weights of 1 and their scales beside them."""
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
    assert_same_bits(logits(packed), logits(reference))


# ----------------------------------------------------------------------------- around the model


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    write(tmp_path / "mixed.gguf", MODELS["mixed"])
    return tmp_path / "mixed.gguf"


def test_generate_and_chat(mixed: Path) -> None:
    """The command line and the class; the template and the ends are the file's."""
    llm = LLM(mixed)
    done = llm.generate("The meaning", max_tokens=6)
    assert len(done.tokens) == 6 or done.finish_reason == "stop"
    ids = tokenizer()
    assert llm.tokenizer.eos_ids == tuple(sorted((ids.token_to_id(EOS), ids.token_to_id(EOT))))
    assert llm.context == 512
    assert llm.chat([{"role": "user", "content": "Hello"}], max_tokens=2).tokens
    result = command("generate", "--model", str(mixed), "--max-tokens", "6", "The meaning")
    assert result.exit_code == 0
    assert done.text.strip() in result.stdout


def test_split_files(tmp_path: Path) -> None:
    """Any part opens all, and so does the folder; a missing or misnamed one is named."""
    write(tmp_path / "whole.gguf", MODELS["mixed"])
    expected = logits(LLM(tmp_path / "whole.gguf"))
    (folder := tmp_path / "parts").mkdir()
    write(folder / "m.gguf", MODELS["mixed"], split_max_tensors=10, small_first_shard=True)
    parts = sorted(folder.glob("m-*.gguf"))
    assert [len(gguf.GGUFReader(part).tensors) for part in parts][:2] == [0, 10]
    for named in (parts[0], parts[-1], folder):
        assert_same_bits(logits(LLM(named)), expected)
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"")
    failure(
        lambda: LLM(tmp_path), RequestError, "one GGUF model", "m-00001-of-00002.gguf, whole.gguf"
    )
    renamed = tmp_path / "other.gguf"
    renamed.write_bytes(parts[1].read_bytes())
    failure(lambda: LLM(renamed), ModelFormatError, "other.gguf", "split.count", "part 2 of 3")
    stored = [part.read_bytes() for part in parts]
    parts[1].write_bytes(stored[2])  # of the same split, but another part
    failure(lambda: LLM(folder), ModelFormatError, parts[1].name, "part 2 of 3", "part 3 of 3")
    write(tmp_path / "n.gguf", MODELS["F16"], split_max_tensors=8)  # of another model
    parts[1].write_bytes((tmp_path / "n-00003-of-00003.gguf").read_bytes())
    failure(lambda: LLM(folder), ModelFormatError, parts[1].name)
    parts[1].unlink()
    failure(lambda: LLM(parts[0]), ModelFormatError, parts[1].name, "part 2 of 3")
    parts[0].unlink()
    failure(lambda: LLM(folder), ModelFormatError, parts[0].name, "part 1 of 3")


def test_a_split_of_other_counts(tmp_path: Path) -> None:
    """A count that the parts do not add up to is refused, and tensors that two parts have."""
    write(tmp_path / "m.gguf", MODELS["mixed"], split_max_tensors=8)
    first, second, _ = sorted(tmp_path.glob("m-*.gguf"))
    whole = first.read_bytes()
    at = whole.index(b"split.tensors.count") + len("split.tensors.count") + 4
    first.write_bytes(whole[:at] + b"\x11" + whole[at + 1 :])
    failure(lambda: LLM(first), ModelFormatError, first.name, "split.tensors.count", "got 17")
    first.write_bytes(whole)
    names, others = ({t.name for t in gguf.GGUFReader(part).tensors} for part in (first, second))
    one, other = next((a, b) for a in sorted(names) for b in sorted(others) if len(a) == len(b))
    second.write_bytes(second.read_bytes().replace(other.encode(), one.encode()))
    failure(lambda: LLM(first), ModelFormatError, second.name, one, "each tensor in one file")


def test_the_cache(mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start reads the packed copy: the same bits, tokenizer and template."""
    monkeypatch.setenv("STERNA_CACHE", str(tmp_path / "cache"))
    first = LLM(mixed)
    store = first.engine.model.store
    assert store is not None
    entry = store.wait(60)
    assert entry is not None
    second = LLM(mixed)
    assert second.engine.model.path == entry
    assert_same_bits(logits(second), logits(first))
    message = [{"role": "user", "content": "Hello"}]
    assert second.chat_tokens(message) == first.chat_tokens(message)
    assert second.tokenizer.eos_ids == first.tokenizer.eos_ids
    assert second.tokenizer.bos_id == first.tokenizer.bos_id
    os.utime(mixed, (1, 1))
    assert LLM(mixed).engine.model.path == mixed


def test_formats_that_would_round_again(mixed: Path) -> None:
    """Quantised weights are kept, or made floats; anything else is refused with a reason."""
    for options in ({"format": "q8_0"}, {"format": "i2"}, {"head": "int8"}, {"head": "q8_0"}):
        failure(lambda o=options: LLM(mixed, **o), RequestError, next(iter(options)), "round")
    failure(lambda: LLM(mixed, head="exact"), RequestError, "exact", "token_embd")
    assert LLM(mixed, format="bf16", head="bf16").info()["format"] == "bf16"
    assert LLM(mixed, head="q6_k").info()["head"] == "q6_k"


def test_floats_take_any_format(tmp_path: Path) -> None:
    """They round as a float checkpoint's do."""
    write(tmp_path / "x.gguf", MODELS["F16"])
    for format in ("q4_k", "i8", "bf16"):
        assert LLM(tmp_path / "x.gguf", format=format, head="int8").info()["format"] == format


def test_defaults_of_sampling(tmp_path: Path) -> None:
    """What general.sampling says holds where a request says nothing."""
    keys = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    write(tmp_path / "x.gguf", Tiny(layers=1, keys=keys))
    params = LLM(tmp_path / "x.gguf").requests.make([1], {}).params
    assert (params.temperature, params.top_k) == (0.5, 7)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({}, "general.architecture"),
    "experts": ({"llama.expert_count": 8}, "ffn_gate"),
    "softcap": ({"llama.attn_logit_softcapping": 30.0}, "softcapping"),
    "partial rotation": ({"llama.rope.dimension_count": 32}, "rope.dimension_count"),
    "tokenizer": ({"tokenizer.ggml.model": "rwkv"}, "rwkv"),
    "pre": ({"tokenizer.ggml.pre": "chameleon"}, "chameleon"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sound_but_unsupported(case: str, tmp_path: Path) -> None:
    """What would change the answer is refused, not left out."""
    keys, word = REFUSED[case]
    tiny = Tiny("mamba" if case == "architecture" else "llama", layers=1, keys=keys)
    write(tmp_path / "x.gguf", tiny)
    failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, "x.gguf", word)


def test_the_nearest_architectures(tmp_path: Path) -> None:
    """Are named where a file has one that is not known."""
    write(tmp_path / "x.gguf", Tiny("gemma9", layers=1))
    known = "gemma,", "gemma2", "gemma3"
    failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, *known)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no eps": ({"llama.attention.layer_norm_rms_epsilon": None}, "rms_epsilon"),
    "text for a number": ({"llama.block_count": "2"}, "llama.block_count"),
    "other heads": ({"llama.attention.head_count": 8}, "attn_q"),
    "another width": ({"llama.embedding_length": 128}, "token_embd"),
    "one layer too many": ({"llama.block_count": 3}, "blk.2"),
    "layers that differ": ({"llama.attention.head_count_kv": [2, 1]}, "head_count_kv"),
    "bos beyond": ({"tokenizer.ggml.bos_token_id": 5000}, "bos_token_id"),
    "merges of one": ({"tokenizer.ggml.merges": ["ab"]}, "merges"),
    "types too few": ({"tokenizer.ggml.token_type": [1, 1]}, "token_type"),
    "no heads": ({"llama.attention.head_count": 0}, "head_count"),
}


@pytest.mark.parametrize("case", WRONG)
def test_metadata_that_does_not_fit(case: str, tmp_path: Path) -> None:
    """The key or the tensor is named."""
    keys, word = WRONG[case]
    write(tmp_path / "x.gguf", Tiny(keys=keys))
    failure(lambda: LLM(tmp_path / "x.gguf"), ModelFormatError, "x.gguf", word)


def test_a_tensor_that_no_graph_reads(tmp_path: Path) -> None:
    """One layer's worth of tensors more than the metadata says."""
    write(tmp_path / "x.gguf", Tiny(keys={"llama.block_count": 1}))
    failure(lambda: LLM(tmp_path / "x.gguf"), UnsupportedModelError, "blk.1.")


def test_bitnet_template(tmp_path: Path) -> None:
    """Files of BitNet hold another model's template."""
    keys = {"tokenizer.chat_template": "wrong", "tokenizer.ggml.pre": None}
    write(tmp_path / "x.gguf", replace(MODELS["bitnet-b1.58"], keys=keys))
    llm = LLM(tmp_path / "x.gguf")
    text = llm.tokenizer.decode(llm.chat_tokens([{"role": "user", "content": " Hi "}]))
    assert text == "User: HiAssistant: "


def test_floats_of_bitnet_are_doubted(tmp_path: Path) -> None:
    """Their converter divided by what it should have multiplied with."""
    write(tmp_path / "x.gguf", replace(MODELS["bitnet-b1.58"], types={"": "F16"}))
    with pytest.warns(RuntimeWarning, match="I2_S"):
        LLM(tmp_path / "x.gguf")


def test_a_folder_of_gguf_alone(mixed: Path) -> None:
    """It opens as the file; a file that is not there is named."""
    texts = [
        command("generate", "--model", str(path), "x", "--max-tokens", "4")
        for path in (mixed, mixed.parent)
    ]
    assert [text.exit_code for text in texts] == [0, 0]
    assert texts[0].output == texts[1].output
    failed(command("generate", "--model", str(mixed.with_name("no.gguf")), "x"), "no.gguf")
