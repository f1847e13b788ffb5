"""An adapter in a GGUF file, as llama.cpp's `convert_lora_to_gguf.py` writes one.

A tensor NAME of the base has the matrices NAME.lora_a [r, K] and NAME.lora_b [M, r], whose rows are
in the order of the file's architecture. The scale of B (A x) is `adapter.lora.alpha` / r.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import formats, ops
from sterna.checkpoints.lora import MAX_ALPHA, MAX_RANK, Lora, LoraLayer
from sterna.errors import ModelFormatError, NonFiniteError, RequestError, UnsupportedModelError
from sterna.files.reading import require_regular
from sterna.formats.ggml_blocks import BLOCKS, from_ggml
from sterna.gguf.architectures import ARCHITECTURES_OF
from sterna.gguf.file import GgufFile
from sterna.gguf.row_order import row_order
from sterna.gguf.tensor_names import gguf_name
from sterna.gguf.tensor_types import FLOAT_TYPES

__all__ = ["BaseLayers", "open_lora"]

TYPE, KIND, ALPHA = "general.type", "adapter.type", "adapter.lora.alpha"
#: Of an adapter that acts only after certain tokens.
INVOCATION = "adapter.alora.invocation_tokens"
HALVES = (".lora_a", ".lora_b")
#: Layers whose heads llama.cpp stores in another order, in rows and in columns.
REORDERED = ".linear_attn."


@dataclass(frozen=True)
class BaseLayers:
    """What an adapter of a file needs to know of its base: the layers that may have one, and heads.

    names: the layers' names in the model.
    """

    names: Iterable[str]
    head_dim: int
    n_kv_heads: int


def open_lora(path: str | os.PathLike[str], base: BaseLayers) -> Lora:
    """Read an adapter for a base model.

    Raises RequestError for a file that is no adapter, or of none of these layers, ModelFormatError,
    UnsupportedModelError for more than low-rank matrices, NonFiniteError.
    """
    file = Path(os.path.expanduser(os.fspath(path)))
    require_regular(file)
    found = GgufFile(file)
    architecture, alpha = _checked(found)
    modules = _modules(architecture, base.names)
    layers: dict[str, LoraLayer] = {}
    tensors: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(_base_name(found, tensor) for tensor in found.tensors):
        module = modules.get(name)
        if module is None or (REORDERED in module and ARCHITECTURES_OF[architecture].tiles):
            raise UnsupportedModelError(
                f"{file}: {name}: must be a linear layer of the base model that may have an "
                "adapter, but it has none of this name; use the model that it was trained on, or "
                "the adapter's folder as PEFT saves it"
            )
        down, up = (_matrix(found, name + half) for half in HALVES)
        rank = up.shape[1]
        if len(down) != rank or not 1 <= rank <= MAX_RANK:
            rule = f"{rank} rows, as lora_b has columns, and at most {MAX_RANK}"
            raise ModelFormatError(file, name + HALVES[0], rule, len(down))
        order = _order(architecture, module, len(up), base)
        up = up if order is None else np.ascontiguousarray(up[order])
        layers[module] = LoraLayer(down, up, alpha / rank if alpha else 1.0)
        tensors[module] = (name + HALVES[0], name + HALVES[1])
    if not layers:
        raise ModelFormatError(file, expected="matrices of layers", got="no tensor")
    named = found.metadata.text("general.base_model.0.name", "")
    return Lora(file, file, named, layers, tensors)


def _checked(file: GgufFile) -> tuple[str, float]:
    """Return the architecture of the base, and alpha."""
    m = file.metadata
    kind = m.text(TYPE, "model")
    if kind != "adapter":
        raise RequestError(
            f"adapter: must be a GGUF file of an adapter, but {file.path} is of a {kind}; give it "
            "as the model"
        )
    lora = m.text(KIND, "lora")
    if lora != "lora" or INVOCATION in m:
        what = "one that certain tokens invoke (aLoRA)" if INVOCATION in m else lora
        raise UnsupportedModelError(f"{file.path}: {KIND}: must be lora, but got {what}")
    architecture = m.text("general.architecture")
    if architecture not in ARCHITECTURES_OF:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture: must be one that Sterna runs, but got "
            f"{architecture}"
        )
    alpha = m.number(ALPHA)
    if not abs(alpha) <= MAX_ALPHA:
        raise m.error(ALPHA, f"a number within {MAX_ALPHA:g}", alpha)
    return architecture, alpha


def _modules(architecture: str, names: Iterable[str]) -> Mapping[str, str]:
    """Map an architecture's tensors to the layers of a model."""
    found = {}
    for module in names:
        try:
            found[gguf_name(architecture, f"{module}.weight")] = module
        except (AssertionError, StopIteration):  # files of this architecture have no such layer
            continue
    return found


def _base_name(file: GgufFile, tensor: str) -> str:
    """Return the name of the base's tensor that a matrix changes."""
    for half in HALVES:
        if tensor.endswith(half):
            return tensor.removesuffix(half)
    raise UnsupportedModelError(
        f"{file.path}: {tensor}: must be NAME.lora_a or NAME.lora_b, but is another tensor, such "
        "as a norm that was trained whole"
    )


def _matrix(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    """Read a tensor of two dimensions as float32."""
    info = file.info(name)
    kind = info.dtype.lower()
    if len(info.shape) != 2 or (info.dtype not in FLOAT_TYPES and kind != "q8_0"):
        rule = f"a matrix of {', '.join(FLOAT_TYPES)} or Q8_0"
        got = f"{info.dtype} {list(info.shape)}"
        raise ModelFormatError(file.path, name, rule, got, offset=info.offset)
    raw = file.read(name)
    try:
        if kind in BLOCKS:
            return ops.dequantize(from_ggml(kind, [raw], threads=1), threads=1)
        stored = formats.float_format(kind)
        bits = raw.view(stored.word)
        sound = stored.is_finite(bits, 1)
    except NonFiniteError:
        sound = False
    if not sound:
        raise NonFiniteError(
            f"{file.path}: {name}: values must be finite, but got NaN or infinity; "
            "the file is damaged or its training diverged"
        )
    return np.ascontiguousarray(stored.floats(bits))


def _order(
    architecture: str, module: str, rows: int, base: BaseLayers
) -> npt.NDArray[np.intp] | None:
    """Return the order of B's rows; None if they fit no head, which the base then refuses."""
    if rows % max(base.head_dim, 1):
        return None
    return row_order(architecture, module, rows, base.head_dim, base.n_kv_heads)
