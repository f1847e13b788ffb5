"""Figures 8 to 10 of arXiv 2508.06753: tokens per second of 16, 4, 2 and 1 bit, end to end.

Amdahl's law bounds the speed-up: s = 1 / (1 - alpha + alpha / x) if the layers take a share alpha
of the 16-bit run and become x times faster (equation 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.bench.machine import Known, Progress, Rows
from sterna.bench.report import significant
from sterna.errors import RequestError
from sterna.runtime import resolve_isa, resolve_threads
from sterna_papers.figures import decoding
from sterna_papers.figures.decoding import Measured, Plan, decode, plans, skipped_row

__all__ = ["BASELINE", "FIELDS", "FORMATS", "MODELS", "TOKENS", "amdahl", "run"]

MODELS = ("falcon3-1b", "mobilellm-1.5b", "llama3-8b")
BASELINE = "bf16"
FORMATS = (BASELINE, "mxfp4", "i2p", "i1")
TOKENS = 128
#: Every row has them all; docs/measurements/papers.md defines them.
FIELDS = (
    *decoding.FIELDS[:-1], "speedup", "alpha", "x", "amdahl", "x_bytes", "amdahl_bytes",
    "layer_share", "skipped",
)  # fmt: skip


def amdahl(alpha: float, x: float) -> float:
    """Return the speed-up of the whole if a share alpha becomes x times faster (equation 4).

    alpha in 0..1, x above 0; RequestError otherwise.
    """
    if not (0 <= alpha <= 1 and x > 0):
        raise RequestError(f"amdahl: needs 0 <= alpha <= 1 and x > 0, but got {alpha} and {x}")
    return 1 / (1 - alpha + alpha / x)


def run(
    models: Sequence[str] = MODELS,
    *,
    format_names: Sequence[str] = FORMATS,
    head: str = BASELINE,
    tokens: int = TOKENS,
    threads: int | None = None,
    cores: str | None = None,
    isa: str | None = None,
    repeat: int = 3,
    progress: Progress = lambda _: None,
    known: Known = lambda _: None,
) -> Rows:
    """Return rows with FIELDS, one per model and format; the baseline, bf16, is always among them.

    Times are medians of `repeat` rounds. The row of a model that does not fit into memory says so.
    Raises RequestError.
    """
    team, unit = resolve_threads(threads, cores), resolve_isa(isa)
    names = dict.fromkeys([BASELINE, *format_names])
    rows: Rows = []
    known(lambda: rows)
    asked = plans(models, list(names), head, tokens)
    for model in dict.fromkeys(models):
        measured: dict[Plan, Measured] = {}
        why: dict[Plan, str] = {}
        of_model = [plan for plan in asked if plan.shape == model]
        for got in decode(
            of_model, {model: [team]}, unit, repeat=repeat, kernels=True, progress=progress
        ):
            if isinstance(got, Measured):
                measured[got.plan] = got
            else:
                why[got[0]] = got[1]
        baseline = measured.get(of_model[0])
        for plan in of_model:
            row = (
                measured[plan].row() | _compared(measured[plan], baseline)
                if plan in measured
                else skipped_row(plan, why[plan], int(team), unit)
            )
            rows.append({name: row.get(name) for name in FIELDS})
    return rows


def _compared(m: Measured, baseline: Measured | None) -> dict[str, float]:
    """Compare a model's speed with the baseline's, and with what Amdahl's law predicts."""
    share = {"layer_share": significant(min(1.0, m.layers_s / m.token_s))}
    if baseline is None:
        return share
    alpha = min(1.0, baseline.layers_s / baseline.token_s)
    x = baseline.kernels_s / m.kernels_s
    x_bytes = baseline.plan.layer_bytes / m.plan.layer_bytes
    values = {
        "speedup": baseline.token_s / m.token_s,
        "alpha": alpha,
        "x": x,
        "amdahl": amdahl(alpha, x),
        "x_bytes": x_bytes,
        "amdahl_bytes": amdahl(alpha, x_bytes),
    }
    return share | {name: significant(value) for name, value in values.items()}
