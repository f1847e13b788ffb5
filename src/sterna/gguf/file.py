"""Read GGUF files: check everything, and open a split of several files as one model.

Files are read and never mapped, so that a file truncated in use is an error and not a SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna.checkpoints.buffers import buffer
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.checkpoints.tensor_file import TensorFile
from sterna.errors import ModelFormatError, UnsupportedModelError
from sterna.files.reading import Span, open_regular
from sterna.gguf.header import Header, RawTensor, read_header
from sterna.gguf.ik_rows import plain_row_bytes, plain_rows
from sterna.gguf.metadata import Metadata
from sterna.gguf.paths import parts_of
from sterna.gguf.tensor_types import (
    BLOCK_TYPES,
    FLOAT_TYPES,
    IK_BLOCK_TYPES,
    IK_TYPES,
    PRISM_IDS,
    SCALED_TYPES,
    TILED,
    Layout,
    candidates,
    is_known,
    nbytes_of,
)

__all__ = ["GgufFile", "GgufModel"]

SPLIT_REMEDY = "keep the names that the parts were published under, all in one folder"
READABLE = (*FLOAT_TYPES, *BLOCK_TYPES, *SCALED_TYPES, "I2_S")
_OTHER = "use another quantisation of this model"


class GgufFile(TensorFile):
    """The validated header of one GGUF file, and reads of its tensors.

    `metadata`: typed access to the keys' values; `tensors`: name -> TensorInfo in file order,
    `dtype` being the ggml type's name ("F16", "Q4_K", "I2_S"), and K last in `shape`. Types of
    ik_llama.cpp that interleave rows (Q4_K_R4) are named, and read, as what they interleave.

    Raises ModelFormatError if the file breaks a rule of the format, UnsupportedModelError for types
    that Sterna does not have, RequestError if it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read and check the header; no tensor is read or allocated."""
        self.path: Path = Path(path)
        with open_regular(self.path) as (descriptor, state):
            self._state = state
            header = read_header(self.path, descriptor, state.nbytes)
        self.metadata: Metadata = Metadata(self.path, header.metadata, header.places)
        self.data_offset: int = header.data_offset
        self.tensors: dict[str, TensorInfo] = {}
        self._moving: dict[str, Layout] = {}  # whose rows become those of plain blocks
        placed = _placed(self.path, header, state.nbytes - header.data_offset)
        for info, layout in placed.values():
            self.tensors[info.name] = info
            if layout.moves:
                self._moving[info.name] = layout

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Read a tensor into fresh memory: uint8 [rows, bytes of a row], or [bytes] for I2_S.

        Rows are of the blocks that `formats.ggml_blocks` has for the tensor's `dtype`.
        """
        info = self.info(name)
        out = buffer(info.nbytes, info.file, name, self.scratch)
        self.read_into(out.data, [Span(info.offset, 0, info.nbytes)])
        if info.dtype == "I2_S":
            return out
        rows = 1
        for size in info.shape[:-1]:
            rows *= size
        stored = out.reshape(rows, info.nbytes // rows)
        layout = self._moving.get(name)
        if layout is None:
            return stored
        size = plain_row_bytes(layout, info.shape[-1])
        plain = buffer(rows * size, info.file, name, self.scratch).reshape(rows, size)
        plain_rows(layout, stored, plain)
        return plain


class GgufModel:
    """All files of a model: `metadata` and `path` of the first, `tensors` of all.

    Any part of a split (`name-00002-of-00003.gguf`) opens all of them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open all files and check their headers."""
        paths = parts_of(Path(path))
        _require_parts(paths)
        files = [GgufFile(p) for p in paths]
        self.path: Path = paths[0]
        self.metadata: Metadata = files[0].metadata
        self.files: dict[Path, GgufFile] = {file.path: file for file in files}
        self.tensors: dict[str, TensorInfo] = {}
        for number, file in enumerate(files):
            _check_part(file, number, len(files))
            for name, info in file.tensors.items():
                if name in self.tensors:
                    rule = "each tensor in one file"
                    got = f"it also in {self.tensors[name].file.name}"
                    raise ModelFormatError(file.path, name, rule, got, offset=info.offset)
                self.tensors[name] = info
        total = self.metadata.integer("split.tensors.count", len(self.tensors))
        if len(files) > 1 and total != len(self.tensors):
            raise self.metadata.error("split.tensors.count", len(self.tensors), total)

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Read a tensor from the file that holds it, as `GgufFile.read` does."""
        return self._file_of(name).read(name)

    def buffer(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return uninitialised memory for intermediate forms of a tensor."""
        file = self._file_of(name)
        return buffer(nbytes, file.path, name, file.scratch)

    def _file_of(self, name: str) -> GgufFile:
        info = self.tensors.get(name)
        if info is None:
            raise ModelFormatError(self.path, name, "a tensor", "none of this name")
        return self.files[info.file]


def _require_parts(paths: list[Path]) -> None:
    """Raise ModelFormatError for the first part of a split that is not there."""
    missing = [number for number, path in enumerate(paths, 1) if not path.exists()]
    if len(paths) > 1 and missing:
        rule = f"part {missing[0]} of {len(paths)} of this model"
        got = f"nothing at this path, and {len(paths) - len(missing)} other parts next to it"
        raise ModelFormatError(paths[missing[0] - 1], expected=rule, got=got, remedy=SPLIT_REMEDY)


def _check_part(file: GgufFile, number: int, count: int) -> None:
    """Check that a file belongs to the split that its name says."""
    split, part = (file.metadata.integer(f"split.{key}", 0) for key in ("count", "no"))
    if split in (0, 1) if count == 1 else (split, part) == (count, number):
        return
    raise file.metadata.error(
        "split.count",
        f"part {number + 1} of {count}, as the file's name says",
        f"part {part + 1} of {split}",
        remedy=SPLIT_REMEDY,
    )


# ------------------------------------------------------------------------------ types and places


def _placed(path: Path, header: Header, data_nbytes: int) -> dict[str, tuple[TensorInfo, Layout]]:
    """Give each tensor its type, size and place; refuse gaps, overlaps, and bytes past the end."""
    tensors: dict[str, tuple[TensorInfo, Layout]] = {}
    ordered = sorted(header.tensors, key=lambda t: t.offset)
    spans = _spans(path, ordered, data_nbytes)
    layouts = _layouts(path, header, ordered, spans)
    end = 0  # of the tensor before, padded
    for tensor, span in zip(ordered, spans, strict=True):
        if tensor.name in tensors:
            raise _error(path, tensor, "", "each tensor once", "the name again")
        if tensor.offset != end:
            kind = "a gap" if tensor.offset > end else "an overlap, or no multiple of the alignment"
            rule = f"{end}, where the tensor before ends"
            raise _error(path, tensor, "offset", rule, f"{tensor.offset}: {kind}")
        layout = layouts[tensor.type_id]
        nbytes = nbytes_of(layout, tensor.shape)
        if nbytes is None:
            rule = f"a row of whole blocks of {layout.k} for {layout.name}"
            raise _error(path, tensor, "shape", rule, list(tensor.shape))
        if layout.rows > 1 and (len(tensor.shape) < 2 or tensor.shape[-2] % layout.rows):
            rule = f"rows in multiples of {layout.rows} for {layout.name}"
            raise _error(path, tensor, "shape", rule, list(tensor.shape))
        if nbytes > span:
            rule = f"{nbytes} bytes for {layout.name} {list(tensor.shape)}"
            raise _error(path, tensor, "size", rule, f"{span} up to the next tensor or the end")
        end += -(-nbytes // header.alignment) * header.alignment
        at = header.data_offset + tensor.offset
        info = TensorInfo(tensor.name, layout.as_read, tensor.shape, path, at, nbytes)
        tensors[tensor.name] = info, layout
    for info, _ in tensors.values():
        if info.dtype not in READABLE:
            raise UnsupportedModelError(
                f"{path}: {info.name}: tensor type must be one of {', '.join(READABLE)}, "
                f"but got {info.dtype}; {_OTHER}"
            )
    return tensors


def _spans(path: Path, ordered: Sequence[RawTensor], data_nbytes: int) -> list[int]:
    """Return the bytes from the start of each tensor to the next one, or to the end of the file."""
    if not ordered:
        return []
    if ordered[-1].offset > data_nbytes:
        rule = f"at most {data_nbytes}, the bytes of data in the file"
        raise _error(path, ordered[-1], "offset", rule, ordered[-1].offset)
    ends = [*(tensor.offset for tensor in ordered[1:]), data_nbytes]
    return [end - tensor.offset for tensor, end in zip(ordered, ends, strict=True)]


def _layouts(
    path: Path, header: Header, ordered: Sequence[RawTensor], spans: Sequence[int]
) -> dict[int, Layout]:
    """Resolve the type ids of this file.

    Forks gave some ids other types: then the type is the one that the bytes of all its tensors fit.
    """
    open_ids: dict[int, tuple[Layout, ...]] = {}
    for i, (tensor, span) in enumerate(zip(ordered, spans, strict=True)):
        if tensor.type_id in IK_TYPES:
            raise UnsupportedModelError(
                f"{path}: {tensor.name}: tensor type must be one of llama.cpp's, or of "
                f"ik_llama.cpp's own {', '.join(IK_BLOCK_TYPES)}, but got "
                f"{IK_TYPES[tensor.type_id]}; {_OTHER}"
            )
        if not is_known(tensor.type_id):
            raise _error(path, tensor, "type", "a ggml type's id", tensor.type_id)
        left = open_ids.setdefault(tensor.type_id, candidates(tensor.type_id))
        if len(left) == 1 and tensor.type_id not in TILED:
            continue
        exact = i < len(ordered) - 1
        fits = tuple(x for x in left if _fits(x, tensor, span, header.alignment, exact))
        if not fits:
            raise _misfit(path, header, tensor, span)
        open_ids[tensor.type_id] = fits
    for type_id, left in open_ids.items():
        if type_id in PRISM_IDS and any(key.startswith("prism.") for key in header.metadata):
            left = tuple(x for x in left if x.name == PRISM_IDS[type_id]) or left
            open_ids[type_id] = left
        if len(kinds := dict.fromkeys(layout.name for layout in left)) > 1:
            names = " or ".join(kinds)
            raise UnsupportedModelError(
                f"{path}: the sizes of tensors of type {type_id} must fit one meaning of this id, "
                f"but fit {names}; convert the model again with this year's tools"
            )
    return {type_id: left[0] for type_id, left in open_ids.items()}


def _fits(layout: Layout, tensor: RawTensor, span: int, alignment: int, exact: bool) -> bool:
    """Whether a tensor of this layout takes `span` bytes, padding included."""
    nbytes = nbytes_of(layout, tensor.shape)
    if nbytes is None:
        return False
    padded = -(-nbytes // alignment) * alignment
    return span == padded if exact else nbytes <= span <= padded


def _misfit(
    path: Path, header: Header, tensor: RawTensor, span: int
) -> ModelFormatError | UnsupportedModelError:
    """Make the error for a tensor whose bytes fit no type of its id."""
    architecture = str(header.metadata.get("general.architecture", ""))
    if tensor.type_id in TILED and architecture.startswith(("bitnet", "llama", "falcon")):
        return UnsupportedModelError(
            f"{path}: {tensor.name}: {TILED[tensor.type_id]} tiles of bitnet.cpp depend on a file "
            "of tile sizes that is not part of the model; convert the model to I2_S, or use its "
            "safetensors"
        )
    names = " or ".join(dict.fromkeys(layout.name for layout in candidates(tensor.type_id)))
    return _error(path, tensor, "size", f"that of {names} {list(tensor.shape)}", f"{span} bytes")


def _error(
    path: Path, tensor: RawTensor, key: str, expected: object, got: object
) -> ModelFormatError:
    return ModelFormatError(
        path,
        f"{tensor.name}.{key}" if key else tensor.name,
        expected,
        got,
        offset=tensor.at,
        remedy="the file is damaged or truncated: copy or download it again",
    )
