"""LLaVA 1.6, which transformers calls LLaVA-NeXT: LLaVA 1.5 on tiles of an image.

The first tile is the whole image. The others form a grid, whose patches are read line by line,
without those of its padding; a line ends with a learned row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.models import llava, towers
from sterna.models.config import TransformerConfig
from sterna.models.llava import build as build
from sterna.models.llava import complete as complete
from sterna.models.llava import text_module as text_module
from sterna.models.vision import clip, vit
from sterna.models.vision.patches import in_lines
from sterna.models.vision.tower import Grid, Tower, vision_config
from sterna.weights.sources import WeightSource

F32 = npt.NDArray[np.float32]
ARCHITECTURES = ("LlavaNextForConditionalGeneration",)
DEFAULTS: dict[str, Any] = llava.DEFAULTS
TOWER, LINE_END = clip.VIT.patch_matrix, "image_newline"
PREFIXES = {**towers.PREFIXES, f"model.{LINE_END}": LINE_END}
SKIPPED = towers.SKIPPED | {
    prefix + LINE_END: towers.SKIPPED["multi_modal_projector."] for prefix in ("", "model.")
}


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of tiles and its projector, and put rows of tiles in order."""
    f = c.fields
    kind, chosen = "clip_vision_model", "default"
    got = f.mapping("vision_config").get("model_type", kind)
    f.supported("vision_config.model_type", got, kind)
    got = f.config.get("vision_feature_select_strategy", chosen)
    f.supported("vision_feature_select_strategy", got, chosen)
    end = w.vector(LINE_END, c.hidden_size)
    side = vit.side_of(vision_config(clip, f))

    def arranged(rows: F32, grid: Grid) -> F32:
        assert grid is not None
        tall, kept_rows, kept_columns = grid
        lines = in_lines(rows[side**2 :], tall, side)
        top, left = (lines.shape[0] - kept_rows) // 2, (lines.shape[1] - kept_columns) // 2
        unpadded = lines[top : top + kept_rows, left : left + kept_columns]
        ended = np.concatenate([unpadded, np.broadcast_to(end, (kept_rows, 1, len(end)))], axis=1)
        return np.concatenate([rows[: side**2], ended.reshape(-1, len(end))])

    def tokens(_: int, grid: Grid) -> int:
        return side**2 + (0 if grid is None else grid[1] * (grid[2] + 1))

    return replace(llava.tower(c, w), arranged=arranged, tokens=tokens, tables=(end,))
