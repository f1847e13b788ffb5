"""The order of rows that GGUF files change: q and k, and joint layers of q, k and v."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.gguf.tensor_names import by_head, permutes

__all__ = ["row_order"]


def row_order(
    architecture: str, module: str, rows: int, head_dim: int, n_kv_heads: int
) -> npt.NDArray[np.intp] | None:
    """Return the stored rows of a layer in the model's order; None if it is the same.

    In q and k, the pairs (i, i + head_dim / 2) of a head may be stored side by side. q, k and v may
    be stored one after the other, each with the rows of all heads.
    """
    if by_head(architecture, module):
        ends = [rows - 2 * n_kv_heads * head_dim, rows - n_kv_heads * head_dim]
        groups = [part.reshape(n_kv_heads, -1) for part in np.split(np.arange(rows), ends)]
        return np.asarray(np.concatenate(groups, 1).reshape(-1), np.intp)
    if not permutes(architecture, module):
        return None
    pairs = np.arange(rows).reshape(-1, head_dim // 2, 2)
    return np.asarray(pairs.transpose(0, 2, 1).reshape(-1), np.intp)
