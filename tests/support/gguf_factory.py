"""Small random models as GGUF files, written by the `gguf` package, and the same as checkpoints.

Nothing here imports Sterna but where a test needs it: a reader's mistake cannot cancel itself out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from checkpoint_factory import BOS, CHAT_TEMPLATE, EOS, EOT, tokenizer
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

LINEARS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
HF = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "bitnet-b1.58": "BitNetForCausalLM", "bitnet-25": "BitNetForCausalLM",
}  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """A model's sizes, and the types of its tensors by the end of their names."""

    arch: str = "llama"
    hidden: int = 256
    wide: int = 512
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    tied: bool = True
    types: dict[str, str] = field(default_factory=dict)  # "attn_v": "Q6_K"; "": of the others
    table: str = "F32"
    rope_theta: float = 10000.0
    rope_factors: bool = False
    seed: int = 0
    keys: dict[str, Any] = field(default_factory=dict)  # further metadata, or None to leave out

    def type_of(self, name: str) -> str:
        """The type of a linear layer's tensor."""
        return self.types.get(name, self.types.get("", "F32"))


# ------------------------------------------------------------------------------------ tensors


def sized(kind: str, shape: tuple[int, int], rng: np.random.Generator, std: float) -> np.ndarray:
    """Raw rows of a block type: random codes, and scales that make weights of about this size."""
    K, nbytes = gguf.GGML_QUANT_SIZES[Type[kind]]
    M, count = shape[0], shape[1] // K
    raw = rng.integers(0, 256, (M * count, nbytes), np.uint8)
    halves = {
        "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
        "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,),
        "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    }  # fmt: skip
    if kind == "NVFP4":  # E4M3 scales from 0.012 to 0.023
        raw[:, :4] = rng.integers(6, 13, (len(raw), 4))
        return raw.reshape(M, count * nbytes)
    if kind not in halves:
        raise KeyError(kind)

    def put(at: int, value: float) -> None:
        raw[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    for at in halves[kind]:
        put(at, 0.0)
    put(halves[kind][0], 1.0)
    alone = gguf.quants.dequantize(raw, Type[kind])
    if len(halves[kind]) == 1:
        put(halves[kind][0], std / alone.std())
        return raw.reshape(M, count * nbytes)
    put(halves[kind][0], 0.0)
    put(halves[kind][1], 1.0)
    minima = gguf.quants.dequantize(raw, Type[kind])
    balance = -alone.mean() / minima.mean()  # what makes the mean 0
    scale = std / (alone + balance * minima).std()
    put(halves[kind][0], scale)
    put(halves[kind][1], scale * balance)
    return raw.reshape(M, count * nbytes)


def stored(kind: str, w: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(raw rows, the weights they stand for); K-quants are random, not those of `w`."""
    if kind == "F32":
        return w, w
    if kind == "F16":
        return w.astype(np.float16), w.astype(np.float16).astype(np.float32)
    try:
        raw = gguf.quants.quantize(w, Type[kind])
    except NotImplementedError:  # a type that the gguf package reads and does not make
        raw = sized(kind, w.shape, rng, float(w.std()))
    return raw, gguf.quants.dequantize(raw, Type[kind])


def interleaved(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders those of q and k."""
    return (
        w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
    )


def halves(w: np.ndarray, heads: int) -> np.ndarray:
    """The inverse, row by row."""
    half = w.shape[0] // heads // 2
    out = np.empty_like(w)
    for h in range(heads):
        for j in range(2):
            for i in range(half):
                out[(2 * h + j) * half + i] = w[2 * h * half + 2 * i + j]
    return out


def build(tiny: Tiny) -> tuple[dict[str, tuple[np.ndarray, str]], dict[str, np.ndarray]]:
    """(GGUF tensors with their types, the same as float32 of a checkpoint)."""
    rng = np.random.default_rng(tiny.seed)
    vocab, d, q = tokenizer().get_vocab_size(), tiny.hidden, tiny.heads * tiny.head_dim
    kv = tiny.kv_heads * tiny.head_dim
    shapes = {
        "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q),
        "ffn_gate": (tiny.wide, d), "ffn_up": (tiny.wide, d), "ffn_down": (d, tiny.wide),
    }  # fmt: skip
    file: dict[str, tuple[np.ndarray, str]] = {}
    floats: dict[str, np.ndarray] = {}

    def vector(name: str, hf: str, size: int, mean: float = 1.0) -> None:
        w = (mean + 0.2 * rng.standard_normal(size)).astype(np.float32)
        heads = {"attn_q.bias": tiny.heads, "attn_k.bias": tiny.kv_heads}.get(name[6:])
        file[name] = (interleaved(w, heads) if heads and tiny.arch == "llama" else w), "F32"
        floats[hf] = w

    def table(name: str, hf: str) -> None:
        w = (0.25 * rng.standard_normal((vocab, d))).astype(np.float32)
        raw, floats[hf] = stored(tiny.table, w, rng)
        file[name] = raw, tiny.table

    table("token_embd.weight", "model.embed_tokens.weight")
    vector("output_norm.weight", "model.norm.weight", d)
    if not tiny.tied:
        table("output.weight", "lm_head.weight")
    if tiny.rope_factors:
        factors = np.linspace(1, 8, tiny.head_dim // 2).astype(np.float32)
        file["rope_freqs.weight"] = factors, "F32"
    bitnet = tiny.arch.startswith("bitnet")
    for i in range(tiny.layers):
        block, layer = f"blk.{i}.", f"model.layers.{i}."
        vector(block + "attn_norm.weight", layer + "input_layernorm.weight", d)
        vector(block + "ffn_norm.weight", layer + "post_attention_layernorm.weight", d)
        if bitnet:
            vector(block + "attn_sub_norm.weight", layer + "self_attn.attn_sub_norm.weight", q)
            vector(block + "ffn_sub_norm.weight", layer + "mlp.ffn_sub_norm.weight", tiny.wide)
        if tiny.arch == "qwen3":
            for n in "qk":
                vector(
                    f"{block}attn_{n}_norm.weight", f"{layer}self_attn.{n}_norm.weight",
                    tiny.head_dim,
                )  # fmt: skip
        if tiny.arch == "qwen2" or tiny.keys.get("bias"):
            for n, size in (("q", q), ("k", kv), ("v", kv)):
                vector(f"{block}attn_{n}.bias", f"{layer}self_attn.{n}_proj.bias", size, 0.0)
        if tiny.keys.get("bias"):
            vector(f"{block}attn_output.bias", f"{layer}self_attn.o_proj.bias", d, 0.0)
        for name, shape in shapes.items():
            kind = tiny.type_of(name)
            w = (1.5 / shape[1]) ** 0.5 * rng.standard_normal(shape).astype(np.float32)
            if bitnet or kind.startswith("TQ"):
                w = (rng.integers(-1, 2, shape) * np.float16(np.abs(w).mean())).astype(np.float32)
            heads = {"attn_q": tiny.heads, "attn_k": tiny.kv_heads}.get(name)
            permuted = bool(heads) and tiny.arch == "llama"
            raw, real = stored(kind, interleaved(w, heads) if permuted else w, rng)
            file[f"{block}{name}.weight"] = raw, kind
            floats[f"{layer}{LINEARS[name]}.weight"] = halves(real, heads) if permuted else real
    return file, floats


# -------------------------------------------------------------------------------------- files


def metadata(tiny: Tiny) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for such a model."""
    tok = tokenizer()
    vocab = tok.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    state = json.loads(tok.to_str())["model"]
    arch = tiny.arch
    values: dict[str, Any] = {
        f"{arch}.block_count": tiny.layers,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": tiny.hidden,
        f"{arch}.feed_forward_length": tiny.wide,
        f"{arch}.attention.head_count": tiny.heads,
        f"{arch}.attention.head_count_kv": tiny.kv_heads,
        f"{arch}.attention.key_length": tiny.head_dim,
        f"{arch}.attention.value_length": tiny.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": tiny.rope_theta,
        f"{arch}.rope.dimension_count": tiny.head_dim,
        f"{arch}.vocab_size": len(tokens),
        "general.file_type": 0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in (BOS, EOS, EOT) else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(m) for m in state["merges"]],
        "tokenizer.ggml.bos_token_id": vocab[BOS],
        "tokenizer.ggml.eos_token_id": vocab[EOS],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    return {k: v for k, v in {**values, **tiny.keys}.items() if v is not None and k != "bias"}


def add_metadata(writer: gguf.GGUFWriter, tiny: Tiny) -> None:
    """Writes the metadata through the gguf package."""
    for key, value in metadata(tiny).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes header, metadata and tensors, and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path: Path, tiny: Tiny, **options: Any) -> dict[str, np.ndarray]:
    """Writes the GGUF file; returns the checkpoint's float32 tensors. options: GGUFWriter's."""
    file, floats = build(tiny)
    writer = gguf.GGUFWriter(path, tiny.arch, **options)
    add_metadata(writer, tiny)
    for name, (raw, kind) in file.items():
        plain = kind in ("F32", "F16")
        writer.add_tensor(name, raw, raw_dtype=None if plain else Type[kind])
    finish(writer)
    return floats


def checkpoint(folder: Path, tiny: Tiny, floats: dict[str, np.ndarray]) -> Path:
    """The model as float32 safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {n: torch.from_numpy(w.copy()) for n, w in floats.items()}, folder / "model.safetensors"
    )
    tok = tokenizer()
    tok.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": [HF[tiny.arch]], "hidden_size": tiny.hidden, "head_dim": tiny.head_dim,
        "intermediate_size": tiny.wide, "num_hidden_layers": tiny.layers, "rms_norm_eps": 1e-5,
        "num_attention_heads": tiny.heads, "num_key_value_heads": tiny.kv_heads,
        "vocab_size": tok.get_vocab_size(), "max_position_embeddings": 512,
        "rope_theta": tiny.rope_theta, "tie_word_embeddings": tiny.tied,
        "attention_bias": bool(tiny.keys.get("bias")),
        "hidden_act": "relu2" if tiny.arch.startswith("bitnet") else "silu",
    }  # fmt: skip
    if tiny.rope_factors:
        config["rope_factors"] = np.linspace(1, 8, tiny.head_dim // 2).astype(np.float32).tolist()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# ------------------------------------------------------------------- files byte by byte

KINDS = {"u8": 0, "u16": 2, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9, "u64": 10}
PACK = {"u8": "<B", "u16": "<H", "u32": "<I", "i32": "<i", "f32": "<f", "bool": "<?", "u64": "<Q"}
RawTensor = tuple[str, tuple[int, ...], int, bytes]  # name, shape (rows first), type id, bytes


def text(value: str) -> bytes:
    """A GGUF string."""
    return struct.pack("<Q", len(value.encode())) + value.encode()


def scalar(kind: str, value: Any) -> bytes:
    """A GGUF value of this type."""
    return text(value) if kind == "str" else struct.pack(PACK[kind], value)


def entry(key: str, value: Any) -> bytes:
    """A metadata entry; the type follows from Python's."""
    kinds = {bool: "bool", int: "u32", float: "f32", str: "str"}
    if isinstance(value, list):
        kind = kinds[type(value[0])] if value else "u32"
        body = b"".join(scalar(kind, v) for v in value)
        return text(key) + struct.pack("<IIQ", KINDS["arr"], KINDS[kind], len(value)) + body
    kind = kinds[type(value)]
    return text(key) + struct.pack("<I", KINDS[kind]) + scalar(kind, value)


def raw_file(
    path: Path, values: dict[str, Any], tensors: Sequence[RawTensor], *, version: int = 3
) -> Path:
    """A GGUF file with any types, without the package's help."""
    alignment = int(values.get("general.alignment", 32))
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    head += b"".join(entry(key, value) for key, value in values.items())
    offset, data = 0, b""
    for name, shape, type_id, raw in tensors:
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += text(name) + struct.pack("<I", len(shape)) + sizes
        head += struct.pack("<IQ", type_id, offset)
        data += raw + bytes(-len(raw) % alignment)
        offset = len(data)
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


def i2s_bytes(levels: np.ndarray, scale: float, layout: str) -> bytes:
    """An I2_S tensor of ternary levels [M, K] in one of its layouts, weight by weight."""
    codes = (levels + 1).astype(int)
    packed = bytearray(codes.size // 4)
    if layout == "rows":
        M, K = codes.shape
        for r in range(M):
            for k in range(K):
                packed[r // 4 * K + k] |= int(codes[r, k]) << (6 - 2 * (r % 4))
    else:
        run, quarter = int(layout), int(layout) // 4
        for n, code in enumerate(codes.reshape(-1)):
            at, j = n // run * quarter, n % run
            packed[at + j % quarter] |= int(code) << (6 - 2 * (j // quarter))
    return bytes(packed) + struct.pack("<f", scale) + bytes(28)
