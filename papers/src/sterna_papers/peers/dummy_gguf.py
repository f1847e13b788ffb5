"""A GGUF file of a model's shape with random weights, for llama.cpp and ik_llama.cpp."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sterna.bench.shapes import Shape
from sterna.errors import RequestError
from sterna_papers.peers.blocks import TYPES, random_head, random_matrix
from sterna_papers.peers.case import require
from sterna_papers.peers.dummy_models import Dummy, Tensor, dummy_of

__all__ = ["bytes_per_token", "file_bytes", "write"]


def file_bytes(s: Shape, type: str) -> int:
    """Count the bytes of all tensors; RequestError if the type cannot hold the shape."""
    return sum(tensor.nbytes for tensor in dummy_of(s, type).tensors)


def bytes_per_token(s: Shape, type: str) -> int:
    """Count the bytes that a token reads: all tensors but an embedding that is not the head.

    Of experts, those that a token uses.
    """
    tensors = dummy_of(s, type).tensors
    apart = any(tensor.name == "output.weight" for tensor in tensors)
    total = 0
    for tensor in tensors:
        if apart and tensor.name == "token_embd.weight":
            continue
        experts = "_exps." in tensor.name
        total += tensor.nbytes * s.chosen // s.experts if experts else tensor.nbytes
    return total


def write(path: Path, s: Shape, type: str) -> int:
    """Write the file unless it exists; returns `bytes_per_token`.

    Raises RequestError if the type cannot hold the shape or the disk cannot hold the file, and
    Missing without the gguf package.
    """
    gguf = require("gguf", "gguf")
    if s.head_dim and s.head_dim * s.heads != s.hidden:
        raise RequestError("shape: heads * head_dim must be the hidden size for ggml")
    dummy = dummy_of(s, type)
    sizes = [tensor.nbytes for tensor in dummy.tensors]
    if path.exists():  # another variant of the same peer wrote it
        return bytes_per_token(s, type)
    free = shutil.disk_usage(path.parent).free
    if free < 1.1 * sum(sizes):
        raise RequestError(
            f"{path.parent}: a dummy file needs {sum(sizes) / 1e9:.1f} GB, but {free / 1e9:.1f} GB "
            "are free; set TMPDIR to another folder"
        )
    writer = gguf.GGUFWriter(path, dummy.architecture)
    _describe(writer, s, dummy)
    for tensor, size in zip(dummy.tensors, sizes, strict=True):
        # With int8, `shape` counts values. With uint8 the writer would divide it by block sizes,
        # which it does not know for ik_llama.cpp's types.
        id = TYPES[tensor.type]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.int8), size, id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    file = writer.fout[0]
    for tensor in dummy.tensors:
        writer.write_padding(file, file.tell())
        for rows in _data(tensor, rng):
            file.write(rows.tobytes())
    writer.write_padding(file, file.tell())
    writer.close()
    return bytes_per_token(s, type)


def _describe(writer: Any, s: Shape, dummy: Dummy) -> None:
    """Write the model's sizes. The vocabulary has only a size, since prompts are token ids."""
    head_dim = s.hidden // s.heads
    keys = {
        "vocab_size": s.vocab, "context_length": s.context, "embedding_length": s.hidden,
        "block_count": s.layers, "feed_forward_length": s.intermediate,
        "attention.head_count": s.heads, "attention.head_count_kv": s.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0,
        "rope.dimension_count": head_dim,
    } | dummy.keys  # fmt: skip
    add = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for key, value in keys.items():
        add[type(value)](f"{dummy.architecture}.{key}", value)
    writer.add_tokenizer_model("no_vocab")


def _data(tensor: Tensor, rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    K = tensor.shape[-1]
    if len(tensor.shape) == 1:
        yield np.full(K, 0 if tensor.name.endswith(".bias") else 1, "<f4")
    elif tensor.type == "Q6_K":
        yield from random_head(tensor.rows, K, rng)
    else:
        yield from random_matrix(tensor.type, tensor.rows, K, rng)
