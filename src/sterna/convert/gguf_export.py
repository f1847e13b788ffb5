"""Writes a model of any kind to a GGUF file for llama.cpp and programs that use it.

Weights of the model's own format are rounded to the requested type. Tensors whose rows are no whole
blocks, and an embedding and an output head of floats, get the types of llama.cpp's quantiser.
`sterna.sha256.tensors` has a SHA-256 of each tensor with its name, type and shape,
`sterna.sha256.metadata` one of the other metadata.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import formats, loading
from sterna.checkpoints.directory import GENERATION_CONFIG
from sterna.convert.gguf_mixtures import MIXTURES, type_in
from sterna.convert.job import Job
from sterna.convert.plan import Item, Plan, assets_of, check_assets, plan
from sterna.convert.quantization_check import warn_if_too_lossy
from sterna.convert.targets import check_places
from sterna.errors import RequestError, UnsupportedModelError, shown
from sterna.files.words import words
from sterna.files.writing import replacing
from sterna.formats import Format, PackedWeight
from sterna.formats.ggml_blocks import BLOCKS
from sterna.gguf.architectures import ARCHITECTURES_OF
from sterna.gguf.block_encoding import blocks_of
from sterna.gguf.hashes import HASHES, METADATA_HASH, heading, metadata_hash
from sterna.gguf.header import read_header
from sterna.gguf.metadata import Metadata
from sterna.gguf.metadata_writer import (
    add_sampling,
    add_sizes,
    add_tokenizer,
    rope_factors,
    title_of,
)
from sterna.gguf.tensor_names import gguf_name, permutes
from sterna.llm.generation_config import sampling_of
from sterna.runtime import resolve_threads
from sterna.weights.loss import Loss
from sterna.weights.rounding import converted
from sterna.weights.sources import head_format

__all__ = ["TYPES", "gguf_overhead", "to_gguf"]

#: GGUF type -> Sterna's format of the same values.
TYPES = {
    name: name.lower()
    for name in words("""
        F32 F16 BF16 Q8_0 Q5_0 Q5_1 Q4_0 Q4_1 Q6_K Q5_K Q4_K Q3_K Q2_K IQ4_NL IQ4_XS TQ2_0
    """)
}
_NAMES = {format: name for name, format in TYPES.items()}
PADDING = 32  # bytes to which each tensor is aligned
_FOR_TABLES = ("F32", "F16", "BF16", "Q8_0")  # fine enough for all tables
#: Types of tables of floats for other types of layers, as in llama.cpp's quantiser: of a table that
#: makes logits, and of an embedding without a head's rows, if that differs from the layers.
_HEAD, _EMBEDDINGS = "q6_k", {"TQ2_0": "q4_k"}
#: Of gguf.LlamaFileType, else MOSTLY_ and the type.
_FILE_TYPE = {"F32": "ALL_F32", **{kind: f"MOSTLY_{kind}_S" for kind in ("Q3_K", "Q4_K", "Q5_K")}}
#: config.json's architectures -> GGUF's. BitNet's is left out: llama.cpp computes another function.
_ARCHITECTURES = {
    kind.architecture: name for name, kind in reversed([*ARCHITECTURES_OF.items()]) if kind.written
} | {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama"}


class _Tensor(NamedTuple):
    """A tensor of the file: its name, the part of an item that it is, and its format."""

    name: str
    M: int
    K: int
    format: Format
    permuted: bool

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.format.name, self.K)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.K,) if self.M == 1 and self.format.name == "f32" else (self.M, self.K)

    @property
    def heading(self) -> bytes:
        return heading(self.name, _NAMES[self.format.name], self.shape)


def row_bytes(format: str, K: int) -> int:
    """Count the bytes of K weights in a GGUF file."""
    if not formats.get(format).integer:
        return formats.float_format(format).bits_type.itemsize * K
    block = BLOCKS[format]
    return K // block.k * block.nbytes


def to_gguf(job: Job, type: str) -> list[Loss]:
    """Write a GGUF file whose linear layers have a type of TYPES, or those of one of MIXTURES.

    The default of `head` is the same type for F32, F16, BF16 and Q8_0. With other types, quantised
    tables stay as they are, or become F16 if GGUF lacks their format. Tables of floats become Q6_K
    if they make logits, else the type of the layers (Q4_K for TQ2_0). Returns the loss of each
    matrix. Raises RequestError (no gguf package, an unknown type, a full disk) and
    UnsupportedModelError (an architecture or a tokenizer that GGUF has no words for).
    """
    gguf = _package()
    if type not in TYPES and type not in MIXTURES:
        names = ", ".join([*TYPES, *MIXTURES])
        raise RequestError(f"gguf: must be one of {names}, but got {shown(type)}")
    check_places(job.src, job.dst, job.force, file=True)
    writing, writer, factors = _begun(gguf, job, type)
    if not job.formats:
        base = TYPES[MIXTURES.get(type, type)]
        warn_if_too_lossy(writing.planned, formats.get(base), job.name)
    with replacing(job.dst, writing.nbytes()) as file:
        writing.write(gguf, writer, file, factors)
    return writing.losses


def gguf_overhead(job: Job) -> int:
    """Return the bytes of a GGUF file besides its tensors, at most; raises as `to_gguf`."""
    gguf = _package()
    writing, writer, factors = _begun(gguf, job, "F16")
    file = BytesIO()
    count = len(writing.write_header(gguf, writer, file, factors)[0])
    return file.tell() + PADDING * (count + 1) + sum(4 * len(v) for v in factors.values())


def _begun(
    gguf: Any, job: Job, type: str
) -> tuple[_Writing, Any, dict[str, npt.NDArray[np.float32]]]:
    """Return what writes the tensors, gguf's writer with the metadata, and factors of rotations."""
    model, planned = plan(job.src, job.threads, job.i2s)
    check_assets(model, required=False)
    writing = _Writing(planned, _architecture_of(model, job.model), model, type, job)
    writer = gguf.GGUFWriter(None, writing.architecture)
    kind = getattr(gguf.LlamaFileType, _FILE_TYPE.get(type, f"MOSTLY_{type}"))
    add_sizes(writer, model.config, title_of(job.src, job.name), int(kind))
    factors = rope_factors(gguf, writer, model.config)
    assets = assets_of(model)
    with assets.as_folder() as folder:
        add_tokenizer(gguf, writer, folder, assets.tokenizer(), model.config.vocab_size)
    generation = assets.generation_config
    sampling = sampling_of(generation, Path(GENERATION_CONFIG))
    add_sampling(writer, sampling, generation.get("suppress_tokens") or [])
    return writing, writer, factors


def _architecture_of(model: loading.Model, name: str) -> str:
    """Return GGUF's name of the architecture; UnsupportedModelError if llama.cpp lacks a part."""
    architecture = model.config.architecture
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"{name}: architecture must be one of {', '.join(_ARCHITECTURES)} for a GGUF file, but "
            f"got {architecture}; llama.cpp would not run such a file correctly"
        )
    if model.dense:
        raise UnsupportedModelError(
            f"{name}: there must be no layers behind the pooling for a GGUF file, but got "
            f"{len(model.dense)}; Sterna writes no such file"
        )
    if model.config.hadamard is not None:
        raise UnsupportedModelError(
            f"{name}: weights must be as they were trained for a GGUF file, but were multiplied by "
            "a Hadamard matrix, which llama.cpp does not know"
        )
    if model.config.linear_norm_eps:
        raise UnsupportedModelError(
            f"{name}: linear layers must have no norms of their own for a GGUF file, but have one "
            "each, which llama.cpp does not know"
        )
    return _ARCHITECTURES[architecture]


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise RequestError(
            "gguf: writing GGUF files needs the gguf package; install it with: "
            "pip install 'sterna[gguf]'"
        ) from None
    return gguf


class _Writing:
    """The tensors of the file, and their writing."""

    def __init__(
        self, planned: Plan, architecture: str, model: loading.Model, type: str, job: Job
    ) -> None:
        self.planned, self._model, self._job = planned, model, job
        self._type, self._mixture = MIXTURES.get(type, type), type
        self._threads = resolve_threads(job.threads)
        self.architecture, self.losses = architecture, list[Loss]()
        self._head = TYPES[type] if job.head is None and type in _FOR_TABLES else job.head
        self._tensors = {item.name: self._of(item) for item in planned.items.values()}

    def nbytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(t.M * t.row_bytes for some in self._tensors.values() for t in some)

    def _of(self, item: Item) -> list[_Tensor]:
        if item.kind == "vector":
            module = item.name.rpartition(".")[0]
            f32 = formats.get("f32")
            return [
                _Tensor(
                    gguf_name(self.architecture, item.name), 1, item.M, f32, self._permutes(module)
                )
            ]
        return [
            _Tensor(
                gguf_name(self.architecture, f"{part.name}.weight"),
                part.M,
                part.K,
                self._format(item, part.name),
                item.kind == "matrix" and self._permutes(part.name),
            )
            for part in item.parts
        ]

    def _permutes(self, module: str) -> bool:
        return permutes(self.architecture, module)

    def _format(self, item: Item, part: str) -> Format:
        """Choose a part's format: its own or the requested one, a fallback if its rows are no whole
        blocks, at last F16."""
        own = self._job.formats.get(part) or self._job.formats.get(item.name)
        if own is not None:
            return own
        name = self._table_format(item) if item.kind == "table" else self._layer_format(part)
        f = formats.fitting(formats.get(name), item.K)
        return formats.get("f16") if item.K % f.scales.block else f

    def _layer_format(self, part: str) -> str:
        if self._mixture not in MIXTURES:
            return TYPES[self._type]
        tensor = gguf_name(self.architecture, f"{part}.weight")
        return TYPES[type_in(self._mixture, tensor, self._model.config.n_layers)]

    def _table_format(self, item: Item) -> str:
        if self._head is not None and self._head != "exact":
            asked = head_format(self._head, "")
            if asked in _NAMES:
                return asked
            raise RequestError(
                f"head: must be one of {', '.join(_NAMES)} in a GGUF file, "
                f"but got {shown(self._head)}"
            )
        stored = self.planned.stored_format(item)
        if self._head is None and not formats.get(stored).scaled:
            if item.name == "lm_head" or self._model.config.tied:
                return _HEAD
            return _EMBEDDINGS.get(self._type, TYPES[self._type])
        return stored if stored in _NAMES else "f16"

    def write(
        self, gguf: Any, writer: Any, file: BinaryIO, factors: dict[str, npt.NDArray[np.float32]]
    ) -> None:
        """Write the header, then the tensors in turn, then their hashes into the header."""
        marks, mark, ends = self.write_header(gguf, writer, file, factors)
        hashes = list(self._write_all(writer, file))
        self.planned.check_all_read(self._model)
        for t, values in zip(ends, factors.values(), strict=True):
            rows = iter([values.view(np.uint8)])
            hashes.append(_write_rows(writer, file, rows, t.heading))
        writer.write_padding(file, file.tell())
        _replace(file, marks, hashes)
        _replace(file, [mark], [_metadata_hash_of(self._job.dst, file)])

    def write_header(
        self, gguf: Any, writer: Any, file: BinaryIO, factors: dict[str, npt.NDArray[np.float32]]
    ) -> tuple[list[str], str, list[_Tensor]]:
        """Write the header; return the marks in place of hashes to come, and the last tensors."""
        tensors = [t for some in self._tensors.values() for t in some]
        ends = [_Tensor(n, 1, len(v), formats.get("f32"), False) for n, v in factors.items()]
        tensors += ends
        for t in tensors:
            id = gguf.GGMLQuantizationType[_NAMES[t.format.name]]
            # int8 says that `shape` counts values and not bytes
            writer.add_tensor_info(t.name, t.shape, np.dtype(np.int8), t.M * t.row_bytes, id)
        marks = [secrets.token_hex(32) for _ in tensors]  # as long as the hashes to come
        writer.add_array(HASHES, marks)
        writer.add_string(METADATA_HASH, mark := secrets.token_hex(32))
        writer.fout, writer.state = [file], gguf.gguf_writer.WriterState.EMPTY
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        return marks, mark, ends

    def _write_all(self, writer: Any, file: BinaryIO) -> Iterator[str]:
        done, progress = 0, self._job.progress
        for item in self.planned.items.values():
            rows = self._rows(item)
            for t in self._tensors[item.name]:
                yield _write_rows(writer, file, self._rows_of_tensor(rows, t), t.heading)
            done += item.M * item.K
            if progress is not None:
                progress(done, self.planned.n_weights)

    def _rows(self, item: Item) -> _Rows:
        return _Rows(self._encoded(item))

    def _encoded(self, item: Item) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield some rows of an item at a time in the file's bytes, uint8 [rows, bytes]."""
        for name, piece in self.planned.read(item):
            if not isinstance(piece, PackedWeight):
                vector = self._job.vectors.get(name, piece)
                yield np.ascontiguousarray(vector, "<f4").reshape(1, -1).view(np.uint8)
                continue
            f = self._format(item, name)
            nbytes = piece.M * row_bytes(f.name, piece.K)
            loss = Loss(name, piece.M, piece.K, piece.format.name, _NAMES[f.name], nbytes)
            self.losses.append(loss)
            squares = self._job.squares.get(item.name)
            rounding = self._job.rounding(name)
            made = converted(piece, f, None, loss, self._threads, squares, rounding)
            for levels, scale in made:
                if f.integer:
                    yield blocks_of(f.name, levels, scale)
                else:
                    yield np.ascontiguousarray(f.encode(levels)).view(np.uint8)

    def _rows_of_tensor(self, rows: _Rows, t: _Tensor) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the rows of a tensor; q and k get the order of interleaved rotations."""
        if not t.permuted:
            yield from rows.take(t.M)
            return
        whole = np.concatenate(list(rows.take(t.M)))
        if t.M == 1:  # a bias: its values are the rows
            whole = whole.reshape(t.K, -1)
        heads = len(whole) // self._model.config.head_dim
        halves = whole.reshape(heads, 2, self._model.config.head_dim // 2, -1)
        yield np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(t.M, -1)


class _Rows:
    """Rows that come in pieces of one size and are taken in pieces of another."""

    def __init__(self, pieces: Iterator[npt.NDArray[np.uint8]]) -> None:
        self._pieces = pieces
        self._left: npt.NDArray[np.uint8] | None = None

    def take(self, count: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the next `count` rows."""
        while count:
            piece = next(self._pieces) if self._left is None else self._left
            self._left = piece[count:] if len(piece) > count else None
            piece = piece[:count]
            count -= len(piece)
            yield piece


def _write_rows(
    writer: Any, file: BinaryIO, rows: Iterator[npt.NDArray[np.uint8]], heading: bytes
) -> str:
    """Write a tensor at its place; return the SHA-256 of its heading and bytes."""
    writer.write_padding(file, file.tell())
    digest = hashlib.sha256(heading)
    for some in rows:
        data = np.ascontiguousarray(some).reshape(-1).data
        digest.update(data)
        file.write(data)
    return digest.hexdigest()


def _replace(file: BinaryIO, marks: list[str], hashes: list[str]) -> None:
    """Replace marks, which lie one after the other, by hashes of the same length."""
    file.flush()
    file.seek(0)
    at, read = -1, b""
    while at < 0:
        read += file.read(1 << 20)
        at = read.find(marks[0].encode())
    for i, text in enumerate(hashes):
        file.seek(at + i * (8 + len(text)))  # a string has its length, in eight bytes, before it
        file.write(text.encode())


def _metadata_hash_of(path: Path, file: BinaryIO) -> str:
    """Hash the metadata as a reader finds them; only this hash is still to be written."""
    file.flush()
    nbytes = file.seek(0, os.SEEK_END)
    header = read_header(path, file.fileno(), nbytes)
    return metadata_hash(Metadata(path, header.metadata, header.places))[1]
