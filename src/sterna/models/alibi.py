"""ALiBi, attention with linear biases: a key's distance lowers its score, in place of positions.
arXiv 2108.12409.

    score(i, j) = scale * q_i k_j - slope * |i - j|, with a slope for each head
"""

from __future__ import annotations

import numpy as np

from sterna import _native

__all__ = ["MOST_BIAS", "slopes"]

#: The paper's: of eight heads the slopes are 1/2, 1/4 ... 1/256.
MOST_BIAS = 8.0


def slopes(heads: int, most: float = MOST_BIAS, factor: float = 1.0) -> tuple[float, ...]:
    """Return each head's slope, a float32: factor * 2^(-most * i / n) for i = 1 ... n.

    If `heads` is no power of two, n is the next lower one, and further heads have the slopes of
    every other one of 2n heads, as the authors' code has.
    """
    n = 1 << (heads.bit_length() - 1)
    parts = [i / n for i in range(1, n + 1)]
    parts += [i / (2 * n) for i in range(1, 2 * (heads - n), 2)]
    return tuple(float(np.float32(factor * _native.power(2.0, -most * part))) for part in parts)
