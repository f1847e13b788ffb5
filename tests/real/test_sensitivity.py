"""On real weights, the estimated cost of rounding a matrix has the order of the true one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from assets import smollm2
from texts import TEXTS

from sterna import formats
from sterna.convert.candidates import units_of
from sterna.convert.moments import Moments
from sterna.convert.plan import plan
from sterna.convert.running import Running
from sterna.convert.sensitivity import Probe, format_errors
from sterna.formats import Format, codec, weighted
from sterna.formats.feedback import Feedback

MATRICES = (
    "model.layers.0.self_attn.v_proj",
    "model.layers.0.mlp.down_proj",
    "model.layers.12.self_attn.q_proj",
    "model.layers.29.mlp.down_proj",
)
FORMATS = ("t5:g64", "i2p:g64", "i4:g64")


def _ranks(values: list[float]) -> np.ndarray:
    return np.argsort(np.argsort(values)).astype(float)


def _rounded(format: Format, inputs: Feedback | np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def rounded(rows: np.ndarray) -> np.ndarray:
        return codec.real_values(format, *weighted.rounded(format, rows, None, inputs, 2))

    return rounded


def test_estimates_have_the_order_of_the_true_divergence() -> None:
    """Each matrix in turn is rounded with feedback, and the whole model runs with it."""
    source = smollm2()
    running = Running.of(source, threads=2)
    windows = running.windows([TEXTS["prose"] + TEXTS["code"] + TEXTS["dialogue"]], 256)
    moments = Moments(running, windows, 1 << 30, {})
    probe = Probe.of(running, windows, 128)
    units = {unit.name: unit for unit in units_of(plan(source)[1])}
    chosen = [formats.get(name) for name in FORMATS]
    estimated, true = list[float](), list[float]()
    for name in MATRICES:
        unit, inputs = units[name], moments[units[name].item]
        rows = probe.rows(unit)
        g = probe.sensitivity(unit, inputs)
        estimated += [g * error for error in format_errors(rows, chosen, inputs, 2)]
        for format in chosen:
            true.append(probe.kl(probe.changed(unit, _rounded(format, inputs))))
    assert np.corrcoef(_ranks(estimated), _ranks(true))[0, 1] > 0.85
    apart = np.abs(np.log(estimated) - np.log(true))
    assert np.median(apart) < np.log(2)
