"""A GGUF file of a model's shape with random weights, for llama.cpp and ik_llama.cpp."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sterna.bench.shapes import Shape
from sterna.errors import RequestError
from sterna_papers.peers.blocks import TERNARY, TYPES, random_head, random_matrix, row_bytes
from sterna_papers.peers.case import require

__all__ = ["bytes_per_token", "file_bytes", "head_type", "write"]

#: (tensor, rows, columns, ggml type); norms have one row.
Plan = list[tuple[str, int, int, str]]


def head_type(type: str) -> str:
    """Choose the output matrix's type: Q6_K, as llama.cpp does below 8 bits, or the layers' type.

    An embedding tied to the output matrix has this type, too.
    """
    return type if type in ("F32", "F16", "BF16", "Q8_0") else "Q6_K"


def architecture(s: Shape, type: str) -> str:
    """Choose `bitnet` (sub-norms, tied embedding) for ternary weights and BitNet, else `llama`."""
    return "bitnet" if type in TERNARY or s.architecture.startswith("BitNet") else "llama"


def plan(s: Shape, type: str) -> Plan:
    """List the tensors of a model with layers of this type."""
    kv = s.kv_heads * (s.hidden // s.heads)
    bitnet, head = architecture(s, type) == "bitnet", head_type(type)
    tied = bitnet or s.tied
    tensors: Plan = [("token_embd", s.vocab, s.hidden, head if tied else type)]
    tensors.append(("output_norm", 1, s.hidden, "F32"))
    if not tied:
        tensors.append(("output", s.vocab, s.hidden, head))
    for i in range(s.layers):
        rows = {"attn_q": s.hidden, "attn_k": kv, "attn_v": kv, "attn_output": s.hidden}
        rows |= {"ffn_gate": s.intermediate, "ffn_up": s.intermediate}
        tensors += [(f"blk.{i}.{name}", M, s.hidden, type) for name, M in rows.items()]
        tensors.append((f"blk.{i}.ffn_down", s.hidden, s.intermediate, type))
        for name in ("attn_norm", "attn_sub_norm", "ffn_norm"):
            if bitnet or name != "attn_sub_norm":
                tensors.append((f"blk.{i}.{name}", 1, s.hidden, "F32"))
        if bitnet:
            tensors.append((f"blk.{i}.ffn_sub_norm", 1, s.intermediate, "F32"))
    return tensors


def file_bytes(s: Shape, type: str) -> int:
    """Count the bytes of all tensors; RequestError if the type cannot hold the shape."""
    return sum(M * row_bytes(t, K) for _, M, K, t in plan(s, type))


def bytes_per_token(s: Shape, type: str) -> int:
    """Count the bytes that a token reads: all tensors but an embedding that is not the head."""
    tensors = plan(s, type)
    apart = any(name == "output" for name, *_ in tensors)
    return sum(
        M * row_bytes(t, K) for name, M, K, t in tensors if not (apart and name == "token_embd")
    )


def write(path: Path, s: Shape, type: str) -> int:
    """Write the file unless it exists; returns `bytes_per_token`.

    Raises RequestError if the type cannot hold the shape or the disk cannot hold the file, and
    Missing without the gguf package.
    """
    gguf = require("gguf", "gguf")
    if s.head_dim and s.head_dim * s.heads != s.hidden:
        raise RequestError("shape: heads * head_dim must be the hidden size for ggml")
    tensors = plan(s, type)
    sizes = [M * row_bytes(t, K) for _, M, K, t in tensors]
    if path.exists():  # another variant of the same peer wrote it
        return bytes_per_token(s, type)
    free = shutil.disk_usage(path.parent).free
    if free < 1.1 * sum(sizes):
        raise RequestError(
            f"{path.parent}: a dummy file needs {sum(sizes) / 1e9:.1f} GB, but {free / 1e9:.1f} GB "
            "are free; set TMPDIR to another folder"
        )
    writer = gguf.GGUFWriter(path, architecture(s, type))
    _describe(writer, s)
    for (name, M, K, t), size in zip(tensors, sizes, strict=True):
        shape, id = [K] if M == 1 else [M, K], TYPES[t]
        # With int8, `shape` counts values. With uint8 the writer would divide it by block sizes,
        # which it does not know for ik_llama.cpp's types.
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.int8), size, id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    file = writer.fout[0]
    for _, M, K, t in tensors:
        writer.write_padding(file, file.tell())
        for rows in _data(t, M, K, rng):
            file.write(rows.tobytes())
    writer.write_padding(file, file.tell())
    writer.close()
    return bytes_per_token(s, type)


def _describe(writer: Any, s: Shape) -> None:
    """Write the model's sizes. The vocabulary has only a size, since prompts are token ids."""
    writer.add_vocab_size(s.vocab)
    writer.add_context_length(s.context)
    writer.add_embedding_length(s.hidden)
    writer.add_block_count(s.layers)
    writer.add_feed_forward_length(s.intermediate)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(s.hidden // s.heads)
    writer.add_tokenizer_model("no_vocab")


def _data(type: str, M: int, K: int, rng: np.random.Generator) -> Iterator[np.ndarray[Any, Any]]:
    if M == 1:
        yield np.ones(K, "<f4")
    elif type == "Q6_K":
        yield from random_head(M, K, rng)
    else:
        yield from random_matrix(type, M, K, rng)
