"""iq4_xs: the levels of iq4_nl in super-blocks, a scale of six bits for every 32 k."""

from __future__ import annotations

from sterna.formats.iq4_nl import CODEBOOK
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="iq4_xs",
    layout=Layout("lut4"),
    bits=4.3125,
    summary="sixteen uneven levels, super-blocks (GGUF IQ4_XS)",
    codebook=CODEBOOK,
    scales=SuperBlockScales(32, scale_range=(-32, 31)),
    instead="iq4_nl",
    searched=True,
)
