"""GGUF files of texts and towers with the shapes of published models, for tower_speed.py.

Weights are random, matrices in float16. A few of the norms' weights are 16 times as large as the
others, as those of trained encoders are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

F32 = np.ndarray[Any, np.dtype[np.float32]]
OUTLIERS, TIMES = 0.01, 16.0  # of the norms' weights


@dataclass(frozen=True)
class Shape:
    """A tower whose layers have two norms, four matrices of attention and two of an FFN.

    edge: of the image, a multiple of the patch. template: by which chats are written. deep: layers
    whose features the text takes, of towers that have all their layers.
    """

    projector: str
    width: int
    inner: int
    heads: int
    edge: int
    patch: int
    template: str
    all_layers: int
    deep: tuple[int, ...] = ()

    @property
    def patches(self) -> int:
        """Patches of the image."""
        return (self.edge // self.patch) ** 2

    def deep_of(self, layers: int) -> list[int]:
        """The layers whose features the text takes, as many of the tower's as of the whole's."""
        return [i for i in self.deep if i < layers]


#: SigLIP-400M of Gemma 3, and the encoder of Qwen3-VL 2B and 4B.
SHAPES = {
    "gemma3": Shape("gemma3", 1152, 4304, 16, 896, 14, "gemma", 27),
    "qwen3-vl": Shape("qwen3vl_merger", 1024, 4096, 16, 1024, 16, "chatml", 24, (5, 11, 17)),
}
TOKEN = "<image_soft_token>"
#: The text of Qwen3-VL: layers of Qwen3 0.6B's shape, and a vocabulary of bytes.
TEXT_WIDTH, TEXT_INNER, TEXT_LAYERS, TEXT_HEADS, TEXT_KV_HEADS, TEXT_HEAD = (
    1024,
    3072,
    4,
    16,
    8,
    128,
)
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
    "<|image_pad|>",
)  # fmt: skip


class Random:
    """Named arrays of random numbers."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, name: str, *shape: int) -> tuple[str, F32]:
        """Rows whose products with a row of ones have about its size."""
        values = self.rng.standard_normal(shape, np.float32)
        return name, values / np.float32(np.prod(shape[1:]) ** 0.5)

    def vector(self, name: str, size: int, around: float = 0.0) -> tuple[str, F32]:
        """A bias, or a norm's weight around 1."""
        values = self.rng.standard_normal(size, np.float32) * np.float32(0.1) + np.float32(around)
        if around:
            values[self.rng.random(size) < OUTLIERS] *= TIMES
        return name, values

    def linear(self, name: str, M: int, K: int) -> Iterator[tuple[str, F32]]:
        """A matrix and its bias."""
        yield self.matrix(f"{name}.weight", M, K)
        yield self.vector(f"{name}.bias", M)

    def norm(self, name: str, size: int) -> Iterator[tuple[str, F32]]:
        """A LayerNorm's weight and bias."""
        yield self.vector(f"{name}.weight", size, 1.0)
        yield self.vector(f"{name}.bias", size)


def finish(writer: Any) -> None:
    """Write the file of a writer."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gemma3_text(text: Path | None, to: Path, shape: Shape, layers: int) -> int:
    """Copy a text with a token for images; returns its width."""
    assert text is not None, "gemma3 needs --text"
    reader = gguf.GGUFReader(text)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokens = fields["tokenizer.ggml.tokens"]
    added = TOKEN not in tokens
    writer = gguf.GGUFWriter(to, fields["general.architecture"])
    for name, field in reader.fields.items():
        value = fields[name]
        if added and name.startswith("tokenizer.ggml.") and isinstance(value, list):
            extra: dict[str, Any] = {"tokens": TOKEN, "scores": 0.0, "token_type": 3}
            if (last := name.rpartition(".")[2]) in extra:
                value = [*value, extra[last]]
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *items = field.types
        writer.add_key_value(name, value, kind, items[0] if items else None)
    for tensor in reader.tensors:
        data = tensor.data
        if added and tensor.name == "token_embd.weight":
            data = np.concatenate([data, data[-1:]])
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=tensor.tensor_type)
    finish(writer)
    return int(fields["gemma3.embedding_length"])


def qwen3_vl_text(text: Path | None, to: Path, shape: Shape, layers: int) -> int:
    """Write a text of a few layers, whose matrices are Q8_0; returns its width."""
    writer, random = gguf.GGUFWriter(to, "qwen3vl"), Random()
    writer.add_block_count(TEXT_LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(TEXT_WIDTH)
    writer.add_feed_forward_length(TEXT_INNER)
    writer.add_head_count(TEXT_HEADS)
    writer.add_head_count_kv(TEXT_KV_HEADS)
    writer.add_key_length(TEXT_HEAD)
    writer.add_value_length(TEXT_HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(5e6)
    writer.add_rope_dimension_sections([24, 20, 20, 0])
    writer.add_num_deepstack_layers(len(shape.deep_of(layers)))
    # GPT-2's alphabet: printable bytes are themselves, and the others come after all of them.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(len(other)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*letters, "th", *SPECIAL])
    writer.add_token_types([1] * (len(letters) + 1) + [3] * len(SPECIAL))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(len(letters) + 1)
    writer.add_eos_token_id(len(letters) + 3)
    writer.add_add_bos_token(False)
    for name, values in qwen3_vl_text_tensors(random, len(letters) + 1 + len(SPECIAL)):
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)
    return TEXT_WIDTH


def qwen3_vl_text_tensors(random: Random, vocab: int) -> Iterator[tuple[str, F32]]:
    """Tensors of the text, by llama.cpp's names."""
    yield random.matrix("token_embd.weight", vocab, TEXT_WIDTH)
    yield random.vector("output_norm.weight", TEXT_WIDTH, 1.0)
    q, kv = TEXT_HEADS * TEXT_HEAD, TEXT_KV_HEADS * TEXT_HEAD
    sizes = {
        "attn_q": (q, TEXT_WIDTH), "attn_k": (kv, TEXT_WIDTH), "attn_v": (kv, TEXT_WIDTH),
        "attn_output": (TEXT_WIDTH, q), "ffn_gate": (TEXT_INNER, TEXT_WIDTH),
        "ffn_up": (TEXT_INNER, TEXT_WIDTH), "ffn_down": (TEXT_WIDTH, TEXT_INNER),
    }  # fmt: skip
    for i in range(TEXT_LAYERS):
        for name, (M, K) in sizes.items():
            yield random.matrix(f"blk.{i}.{name}.weight", M, K)
        for name in ("attn_norm", "ffn_norm"):
            yield random.vector(f"blk.{i}.{name}.weight", TEXT_WIDTH, 1.0)
        for name in ("attn_q_norm", "attn_k_norm"):
            yield random.vector(f"blk.{i}.{name}.weight", TEXT_HEAD, 1.0)


def layers_of(shape: Shape, random: Random, layers: int, joined: bool) -> Iterator[tuple[str, F32]]:
    """Tensors of the layers of a tower, by llama.cpp's names. joined: q, k and v are one matrix."""
    d = shape.width
    attention = {"attn_qkv": 3 * d} if joined else dict.fromkeys(("attn_q", "attn_k", "attn_v"), d)
    for i in range(layers):
        for name, M in {**attention, "attn_out": d, "ffn_up": shape.inner}.items():
            yield from random.linear(f"v.blk.{i}.{name}", M, d)
        yield from random.linear(f"v.blk.{i}.ffn_down", d, shape.inner)
        for name in ("ln1", "ln2"):
            yield from random.norm(f"v.blk.{i}.{name}", d)
    yield from random.norm("v.post_ln", d)


def gemma3_tower(shape: Shape, layers: int, width: int) -> Iterator[tuple[str, F32]]:
    """Tensors of the tower of Gemma 3, by llama.cpp's names."""
    random = Random()
    yield random.matrix("v.patch_embd.weight", shape.width, 3, shape.patch, shape.patch)
    yield random.vector("v.patch_embd.bias", shape.width)
    yield random.matrix("v.position_embd.weight", shape.patches, shape.width)
    yield from layers_of(shape, random, layers, joined=False)
    yield random.matrix("mm.input_projection.weight", shape.width, width)
    yield "mm.soft_emb_norm.weight", np.ones(shape.width, np.float32)


def qwen3_vl_tower(shape: Shape, layers: int, width: int) -> Iterator[tuple[str, F32]]:
    """Tensors of the tower of Qwen3-VL, by llama.cpp's names."""
    random, merged = Random(), 4 * shape.width
    for end in ("", ".1"):  # of the first frame and the second
        name = f"v.patch_embd.weight{end}"
        yield random.matrix(name, shape.width, 3, shape.patch, shape.patch)
    yield random.vector("v.patch_embd.bias", shape.width)
    yield random.matrix("v.position_embd.weight", 48**2, shape.width)
    yield from layers_of(shape, random, layers, joined=True)
    for i in shape.deep_of(layers):
        yield from random.norm(f"v.deepstack.{i}.norm", merged)
        yield from random.linear(f"v.deepstack.{i}.fc1", merged, merged)
        yield from random.linear(f"v.deepstack.{i}.fc2", width, merged)
    yield from random.linear("mm.0", merged, merged)
    yield from random.linear("mm.2", width, merged)


TEXTS: Mapping[str, Callable[[Path | None, Path, Shape, int], int]] = {
    "gemma3": gemma3_text, "qwen3-vl": qwen3_vl_text,
}  # fmt: skip
TOWERS: Mapping[str, Callable[[Shape, int, int], Iterator[tuple[str, F32]]]] = {
    "gemma3": gemma3_tower, "qwen3-vl": qwen3_vl_tower,
}  # fmt: skip


def write(folder: Path, model: str, layers: int, text: Path | None) -> None:
    """Write text.gguf and mmproj.gguf into a folder. text: the GGUF file of a text of Gemma 3."""
    shape = SHAPES[model]
    folder.mkdir(parents=True, exist_ok=True)
    width = TEXTS[model](text, folder / "text.gguf", shape, layers)
    writer = gguf.GGUFWriter(folder / "mmproj.gguf", "clip")
    writer.add_clip_projector_type(shape.projector)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_block_count(layers)
    writer.add_vision_embedding_length(shape.width)
    writer.add_vision_feed_forward_length(shape.inner)
    writer.add_vision_head_count(shape.heads)
    writer.add_vision_image_size(shape.edge)
    writer.add_vision_patch_size(shape.patch)
    writer.add_vision_projection_dim(width)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_use_gelu(True)
    if shape.deep:
        deep = shape.deep_of(layers)
        writer.add_vision_spatial_merge_size(2)
        writer.add_vision_is_deepstack_layers([i in deep for i in range(layers)])
    for name, values in TOWERS[model](shape, layers, width):
        matrix = values.ndim > 1 and "position" not in name
        writer.add_tensor(name, values.astype(np.float16) if matrix else values)
    finish(writer)
