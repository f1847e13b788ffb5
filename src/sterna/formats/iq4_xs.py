"""iq4_xs: the levels of iq4_nl in super-blocks, a scale of six bits for every 32 k."""

from __future__ import annotations

import numpy as np

from sterna.formats.arithmetic import F32
from sterna.formats.iq4_nl import CODEBOOK
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales


class Iq4Xs(KQuant):
    """Levels are not evenly spaced."""

    def _levels(self, groups: F32, scales: F32) -> F32:
        """Groups [B, G, group] over their scales [B, G], to the nearest level."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = np.where(scales[..., None] == 0, np.float32(0), groups / scales[..., None])
        return np.asarray(CODEBOOK.nearest(np.nan_to_num(ratio.astype(np.float64))), np.float32)


FORMAT = Iq4Xs(
    name="iq4_xs", layout=Layout("iq4"), bits=4.3125,
    summary="sixteen uneven levels, super-blocks (GGUF IQ4_XS)",
    codebook=CODEBOOK, scales=SuperBlockScales(32, scale_range=(-32, 31)),
    instead="iq4_nl",
)  # fmt: skip
