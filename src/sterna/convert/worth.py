"""Whether rounding to a format leaves anything of a model: told before it is written."""

from __future__ import annotations

import warnings

from sterna import formats, ops
from sterna.convert.plan import Plan
from sterna.formats import Format, PackedWeight, codec, weighted
from sterna.weights.loss import Loss
from sterna.weights.packing import layer_scale
from sterna.weights.rounding import row_chunks

__all__ = ["warn_if_useless"]

#: Root mean squares of the error over that of the weights. Four levels for weights that are
#: normally distributed lose 0.34 at best, three 0.44; four bits lose 0.07 to 0.15.
USELESS = 1 / 3
SAMPLE = 1 << 18  # weights


def warn_if_useless(planned: Plan, format: Format | None, name: str) -> None:
    """RuntimeWarning where rows of the model's first layer show that it was not trained for this.

    Weights that were trained for few levels come as these, or as floats that are near to them, and
    lose little; which is why the weights are asked, and not what a config says.
    """
    weight = None if format is None else _first_floats(planned)
    if format is None or weight is None or not format.scaled:
        return
    format = formats.fitting(format, weight.K)
    if weight.K % format.scales.block:  # refused in a moment
        return
    chunk = next(row_chunks(weight))
    values = ops.dequantize(chunk)[: max(1, SAMPLE // weight.K)]
    loss = Loss(name, *values.shape)
    made = weighted.rounded(format, values, layer_scale(format))
    loss.add(values, codec.real_values(format, *made))
    if loss.relative_rms > USELESS:
        warnings.warn(
            f"{name}: was not trained for {format}: rounding its floats loses "
            f"{loss.relative_rms:.0%} of their size, and nothing is left of what it says; choose "
            "four bits or more, such as iq4_nl, or train it for so few levels (docs/training.md)",
            RuntimeWarning, stacklevel=4,
        )  # fmt: skip


def _first_floats(planned: Plan) -> PackedWeight | None:
    """The first layer's weights, or an expert's of them; None where they are levels."""
    for item in planned.items.values():
        if item.kind in ("matrix", "experts") and not item.exact:
            for _, piece in planned.read(item):
                weight = piece if isinstance(piece, PackedWeight) else next(iter(piece))
                if isinstance(weight, PackedWeight) and not weight.format.scaled:
                    return weight
                return None
    return None
