"""How far logits are from transformers': the figures of tests and docs/measurements/quality.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from references import Reference

from sterna.evaluate.compare import Difference

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """Over all positions of a reference's texts; KL in nats, from transformers' distribution."""

    kl_mean: float
    kl_p99: float
    kl_max: float
    changed: float  # the share of positions whose likeliest token is another
    perplexity: float
    ratio: float  # of the perplexity, to transformers'


def quality(logits: Callable[[list[int]], F32], reference: Reference) -> Quality:
    """Of a model that gives logits [n, vocab] of token ids."""
    apart = Difference()
    nats: list[list[float]] = [[], []]
    for text, ids in reference.ids.items():
        sides = (reference.logits[text], logits(ids))
        apart.add(*sides)
        for side, rows in zip(nats, sides, strict=True):
            side.extend(losses(rows, ids))
    expected, got = (float(np.exp(np.mean(side))) for side in nats)
    kl = apart.kl_figures()
    return Quality(kl["mean"], kl["p99"], kl["max"], 1 - apart.top1_agreement, got, got / expected)


def losses(rows: F32, ids: list[int]) -> list[float]:
    """-ln p of each token but the first."""
    x = rows[:-1].astype(np.float64)
    x -= x.max(1, keepdims=True)
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    return [-float(value) for value in log_p[np.arange(len(x)), ids[1:]]]
