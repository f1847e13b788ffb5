"""The order of value heads in GGUF files of models with recurrent layers (Qwen3.5).

Hugging Face has the value heads of one key head side by side: 0 0 1 1 2 2. llama.cpp repeats the
key heads: 0 1 2 0 1 2. Rows are put back as they are read. Columns of `out_proj` are put back where
no block of the tensor's type spans heads; else they stay, config.json lists the layer in
`TILED_OUT_PROJ`, and the model reorders the layer's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.ggml_blocks import BLOCKS
from sterna.gguf.architectures import ARCHITECTURES_OF
from sterna.gguf.file import GgufModel
from sterna.gguf.folded_hadamard import is_grouped
from sterna.gguf.tensor_types import FLOAT_TYPES
from sterna.models.qwen3_5 import TILED_OUT_PROJ

__all__ = ["ValueHeads", "tiled_out_proj"]

_LAYERS = ".linear_attn."
#: The parts of a layer whose rows, or the last of them, belong to value heads.
_PARTS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "conv1d", "A_log", "dt_bias")


@dataclass(frozen=True)
class ValueHeads:
    """The heads of recurrent layers, and which tensors have them in llama.cpp's order."""

    k_heads: int
    v_heads: int
    k_dim: int
    restored: frozenset[str]  # layers `out_proj` whose columns are put back

    @classmethod
    def of(cls, config: Mapping[str, Any], model: GgufModel) -> ValueHeads | None:
        """Read the heads from a config.json; None if both orders of value heads are the same."""
        sizes = (config.get(f"linear_{key}") for key in ("num_key_heads", "num_value_heads"))
        k_heads, v_heads = (int(size or 0) for size in sizes)
        # The model refuses a number of heads that is no multiple.
        if k_heads in (0, 1, v_heads) or v_heads % k_heads:
            return None
        if not ARCHITECTURES_OF[model.metadata.text("general.architecture")].tiles:
            return None
        folded = config.get("folded_hadamard")
        grouped = frozenset(folded["inputs"] if folded and is_grouped(model.metadata) else ())
        stays = grouped.union(config.get(TILED_OUT_PROJ, ()))
        names = (f"model.layers.{i}{_LAYERS}out_proj" for i in range(config["num_hidden_layers"]))
        restored = frozenset(name for name in names if name not in stays)
        return cls(k_heads, v_heads, config["linear_key_head_dim"], restored)

    @property
    def order(self) -> npt.NDArray[np.intp]:
        """For each of the model's value heads, its place in the file."""
        places: npt.NDArray[np.intp] = np.arange(self.v_heads).reshape(-1, self.k_heads).T
        return places.reshape(-1)

    def row_order(self, module: str, rows: int) -> npt.NDArray[np.intp] | None:
        """For each of the model's rows of a tensor, its place in the file; None: the same."""
        part = module.rpartition(_LAYERS)[2] if _LAYERS in module else ""
        if part not in _PARTS:
            return None
        first = 2 * self.k_heads * self.k_dim if part in ("in_proj_qkv", "conv1d") else 0
        places = np.arange(first, rows).reshape(self.v_heads, -1)[self.order]
        return np.concatenate([np.arange(first), places.reshape(-1)])

    def with_columns(self, module: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes [rows, bytes] of a layer, with columns in the model's order."""
        if module not in self.restored:
            return raw
        return raw.reshape(len(raw), self.v_heads, -1)[:, self.order].reshape(raw.shape)


def tiled_out_proj(model: GgufModel, v_dim: int, folded: Mapping[str, Any] | None) -> list[str]:
    """List the layers `out_proj` that keep llama.cpp's order of value heads in their columns.

    Their blocks span heads, or a Hadamard matrix was folded into them in this order.
    """
    inputs = folded["inputs"] if folded else ()
    grouped = is_grouped(model.metadata)
    tiled = []
    for tensor, info in model.tensors.items():
        if not tensor.startswith("blk.") or not tensor.endswith(".ssm_out.weight"):
            continue
        name = f"model.layers.{tensor.split('.')[1]}{_LAYERS}out_proj"
        if name in inputs:
            stays = not grouped
        elif info.dtype in FLOAT_TYPES:
            stays = False
        else:
            block = BLOCKS.get(info.dtype.lower())
            stays = block is None or v_dim % block.k != 0  # I2_S: blocks run on from row to row
        tiled += [name] * stays
    return tiled
