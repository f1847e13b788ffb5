"""Weights that were multiplied by a Hadamard matrix: `folded_hadamard`, a field of ours in
config.json.

    {"block_size": 1024, "signs": {"5120": "+-…"}, "inputs": ["lm_head", …], "rows": [names]}

Inputs of the layers in `inputs` are rotated; looked-up rows of the tables in `rows` are rotated
back. signs: for each width; null: none. GGUF files have the same as `prism.hadamard.*`
(gguf/folded_hadamard.py). GPTQModel's have `rotation` in `quantization_config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sterna.errors import UnsupportedModelError, shown
from sterna.graph import Rotation
from sterna.models.config_fields import Fields

__all__ = ["FIELD", "Hadamard", "rotated_down_proj"]

FIELD = "folded_hadamard"
MAX_BLOCK = 1 << 16  # 256 KiB of a row: far above any model


@dataclass(eq=False)
class Hadamard:
    """Which layers' inputs and which tables' rows are rotated, by their names."""

    file_fields: Fields
    block: int
    signs: dict[str, str] | None
    inputs: frozenset[str]
    rows: frozenset[str]
    _rotations: dict[int, Rotation] = field(default_factory=dict)  # by width

    @classmethod
    def of(cls, fields: Fields) -> Hadamard | None:
        """Read the field of config.json, None if it is absent; ModelFormatError names a field."""
        if fields.config.get(FIELD) is None:
            return None
        f = Fields(fields.mapping(FIELD), fields.file)
        block = f.count("block_size", most=MAX_BLOCK)
        if block & (block - 1):
            f.fail("block_size", "a power of two", block)
        signs = None if f.config.get("signs") is None else f.mapping("signs")
        for width, text in (signs or {}).items():
            if not isinstance(text, str) or set(text) - {"+", "-"} or str(len(text)) != width:
                f.fail("signs", f"a string of {width} signs + and -", text)
        return cls(f, block, signs, f.strings("inputs"), f.strings("rows"))

    def of_input(self, name: str, width: int) -> Rotation | None:
        """Return the rotation of a layer's input; None if there is none."""
        return self._of_width(width, name) if name in self.inputs else None

    def of_rows(self, name: str, width: int) -> Rotation | None:
        """Return the rotation that a table's rows went through; None if there was none."""
        return self._of_width(width, name) if name in self.rows else None

    def _of_width(self, width: int, name: str) -> Rotation:
        if width not in self._rotations:
            if width % self.block or width % 16:
                self.file_fields.fail(
                    "block_size", f"a divisor of {width}, the width of {name}", self.block
                )
            signs = None
            if self.signs is not None:
                text = self.signs.get(str(width))
                if text is None:
                    self.file_fields.fail("signs", f"those of width {width}, of {name}", None)
                ones = np.frombuffer(str(text).encode(), np.uint8) == ord("+")
                signs = np.where(ones, np.float32(1), np.float32(-1))
            self._rotations[width] = Rotation(self.block, signs)
        return self._rotations[width]


#: Architectures that GPTQModel rotates.
ROTATED = ("LlamaForCausalLM", "Qwen2ForCausalLM")


def rotated_down_proj(file: Path, architecture: str, width: int, n_layers: int) -> dict[str, Any]:
    """Return FIELD for GPTQModel's `rotation`: all inputs of down_proj are rotated, as one block.

    width: the number of these inputs. Its other rotations are folded into weights on both sides.
    UnsupportedModelError for widths that are no power of two: those need Hadamard matrices of other
    kinds.
    """
    name = "quantization_config.rotation"
    if architecture not in ROTATED:
        raise UnsupportedModelError(
            f"{file}: {name}: must be of {' or '.join(ROTATED)}, but got "
            f"{shown(architecture)}; Sterna does not run this"
        )
    if width & (width - 1) or width > MAX_BLOCK:
        raise UnsupportedModelError(
            f"{file}: {name}: needs an intermediate_size that is a power of two up to "
            f"{MAX_BLOCK}, but got {width}; quantise without a rotation"
        )
    inputs = [f"model.layers.{i}.mlp.down_proj" for i in range(n_layers)]
    return {"block_size": width, "signs": None, "inputs": inputs, "rows": []}
