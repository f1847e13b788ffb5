"""Warn before a model is written in a format that loses too much of its weights."""

from __future__ import annotations

from sterna import formats, ops
from sterna.convert.plan import Plan
from sterna.errors import warn
from sterna.formats import Format, PackedWeight, codec, weighted
from sterna.weights.loss import Loss
from sterna.weights.packing import layer_scale
from sterna.weights.rounding import row_chunks

__all__ = ["warn_if_too_lossy"]

#: Root mean squares of the error over that of the weights. Four levels for weights that are
#: normally distributed lose 0.34 at best, three 0.44; four bits lose 0.07 to 0.15.
USELESS = 1 / 3
SAMPLE = 1 << 18  # weights


def warn_if_too_lossy(planned: Plan, format: Format | None, name: str) -> None:
    """Issue a RuntimeWarning if the first rounded rows show that the model was not trained for it.

    Weights trained for few levels are stored as these levels or as floats near to them, and lose
    little. So the weights decide, and not the config.
    """
    if format is None or not format.scaled:
        return
    weight = _first_rounded(planned, format)
    if weight is None:
        return
    format = formats.fitting(format, weight.K)
    chunk = next(row_chunks(weight))
    values = ops.dequantize(chunk)[: max(1, SAMPLE // weight.K)]
    loss = Loss(name, *values.shape)
    made = weighted.rounded(format, values, layer_scale(format))
    loss.add(values, codec.real_values(format, *made))
    if loss.relative_rms > USELESS:
        warn(
            f"{name}: was not trained for {format}: rounding its floats loses "
            f"{loss.relative_rms:.0%} of their size, and nothing is left of its answers; choose "
            "four bits or more, such as iq4_nl, or train it for so few levels "
            "(docs/how-to/fine-tune.md)",
            stacklevel=4,
        )


def _first_rounded(planned: Plan, format: Format) -> PackedWeight | None:
    """Return the first layer's or expert's weights that get the format's levels, if any.

    If blocks do not divide a layer's rows, it gets another format, which does not test this one.
    """
    for item in planned.items.values():
        if item.kind in ("matrix", "experts") and not item.exact:
            for _, piece in planned.read(item):
                weight = piece if isinstance(piece, PackedWeight) else next(iter(piece))
                if not isinstance(weight, PackedWeight) or weight.format.scaled:
                    return None
                fitting = formats.fitting(format, weight.K)
                if fitting.codebook == format.codebook and not weight.K % fitting.scales.block:
                    return weight
                break
    return None
