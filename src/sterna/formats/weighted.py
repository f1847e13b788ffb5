"""Rounding real weights to a format: the scales, and levels, of least error.

A format has a rule (`Format.quantize`), with which models of few levels were trained. For a
`searched` format, `search` looks for scales of less error than the rule's.

Errors are weighted by the layer's inputs. Its output moves by (w - ŵ)^T x; over a text the mean
square is (w - ŵ)^T E[x x^T] (w - ŵ), and only the diagonal is kept:

    Σ_k e_k (w_k - ŵ_k)²,  e_k = E[x_k²]

The importance matrix of llama.cpp has the same weights (ggml-org/llama.cpp PR 4861), and AWQ
(arXiv 2306.00978, section 3) protects the same channels by scaling. Without a text, e_k = w_k² +
its mean over the group: a few weights that are far larger than others carry a model, and least
squares would cut them off (docs/reference/formats.md has figures).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats import codec, feedback, search
from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.feedback import Feedback
from sterna.formats.kquants import KQuant
from sterna.formats.pot_levels import Powers
from sterna.formats.scales import E4M3, E8M0, MICRO_K, GroupScales, MicroBlockScales

__all__ = ["Rounded", "Rounding", "check_weighted", "rounded"]

Array = npt.NDArray[Any]
Rounded = tuple[Array, F32]
#: `rounded`, or what gives the same: of a format, weights, scale, squares and threads.
Rounding = Callable[[Format, F32, str | None, F32 | Feedback | None, int], Rounded]
#: A part of the mean that every e_k gets: channels that the text did not use still matter.
DAMPING = 0.01
CHUNK_WEIGHTS, CHUNK_ROWS = 1 << 16, 64  # searched at a time: a dozen arrays in the cache
FED_ROWS = 1024  # with feedback: a span of columns lies in the cache


def check_weighted(format: Format, what: str = "calibrate") -> None:
    """Raise RequestError for a format whose rounding ignores the layer's inputs.

    what: the argument that asks for weights of errors, for messages.
    """
    if format.codebook is None:
        raise RequestError(
            f"{what}: must be for a format with integer levels, but got {format}, which rounds "
            "each float by itself; leave it out"
        )
    if isinstance(format, Powers) and format.method != "nearest":
        raise RequestError(
            f"{what}: the method {format.method} rounds in one way only; leave one of them out"
        )
    if format.of_files:
        raise RequestError(
            f"{what}: must be for a format that rounds by weights of errors, but got {format}, "
            "which takes the nearest entries of a table; leave it out"
        )


def rounded(
    format: Format,
    w: F32,
    scale: str | None = None,
    squares: F32 | Feedback | None = None,
    threads: int = 1,
) -> Rounded:
    """Round real weights float32 [M, K] -> (levels int8 [M, K], scales as their layout has them).

    scale: "tensor" or "row", for formats with scales of that kind; None: the format's own. squares:
    E[x_k²] of the layer's inputs, float32 [K], as weights of errors; no group of scales then has a
    larger weighted error than without. The bits depend on neither machine nor threads. With
    `Feedback` the errors of columns move later ones, in formats that `can_feed`; bits then depend
    on the machine's matrix products. Raises RequestError for a shape or a weight that the format
    cannot hold, and as `check_weighted`.
    """
    if squares is not None:
        check_weighted(format)
    if isinstance(squares, Feedback):
        if feedback.can_feed(format):
            return _with_feedback(format, w, squares, threads)
        squares = squares.squares
    e = None if squares is None else _damped(squares)
    if not format.searched and e is None:
        return codec.by_rule(format, w, scale)
    M, K = w.shape
    format.check_shape(M, K)
    format.scales.check_weights(w, format.name)
    one = partial(_of_least_error, format, scale=scale, e=e)
    if not format.scales.group and (scale or format.scales.default) == "tensor":
        return one(w)
    return _in_chunks(one, w, max(CHUNK_ROWS, CHUNK_WEIGHTS // max(K, 1)), threads)


def _with_feedback(format: Format, w: F32, inputs: Feedback, threads: int) -> Rounded:
    format.check_shape(*w.shape)
    format.scales.check_weights(w, format.name)

    def block(columns: F32, variances: F32) -> Rounded:
        return _of_least_error(format, columns, None, _damped(variances))

    def one(rows: F32) -> Rounded:
        return feedback.rounded(format, rows, inputs, block)

    return _in_chunks(one, w, FED_ROWS, threads)


def _in_chunks(one: Callable[[F32], Rounded], w: F32, step: int, threads: int) -> Rounded:
    """Round some rows at a time, several times at once."""
    M = len(w)
    if step >= M:
        return one(w)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(one, (w[start : start + step] for start in range(0, M, step))))
    return np.concatenate([levels for levels, _ in made]), np.concatenate([s for _, s in made])


def _damped(squares: F32) -> F32 | None:
    """e_k of mean 1, float32 [K]; None if inputs are always 0, and any weights are right."""
    e = squares + np.float32(DAMPING) * squares.mean(dtype=np.float64)
    e = np.asarray(e / max(float(e.mean(dtype=np.float64)), 1e-30), np.float32)
    return e if e.any() else None


def _of_least_error(format: Format, w: F32, scale: str | None, e: F32 | None) -> Rounded:
    made = codec.by_rule(format, w, scale)
    if not w.size:
        return made
    searched = _groups
    if isinstance(format, KQuant):
        searched = _super_blocks
    elif isinstance(format.scales, MicroBlockScales):
        searched = _micro_blocks
    with np.errstate(all="ignore"):  # NaN is not less than any error, so such a trial is dropped
        if format.searched:
            made = searched(format, w, None, *made)
        return made if e is None else searched(format, w, e, *made)


def _groups(format: Format, w: F32, e: F32 | None, levels: Array, scales: F32) -> Rounded:
    """Choose the better of the given and the searched rounding, for each group with one scale."""
    assert format.codebook is not None
    n = format.scales.group or (w.shape[1] if np.ndim(scales) else w.size)
    columns = _columns(w, n)
    x, shift = _normal(columns)
    value, minima = np.float32(format.codebook.value), format.scales.minima
    weight = search.by_size(x) if e is None else _columns_of(e, len(w), n, x.shape[1])
    weighted = search.Weighted(x, weight)
    old = np.reshape(scales, (x.shape[1], -1)).T  # [1 or 2, G]
    first = np.ldexp(old, -shift).astype(np.float32)
    first[0] *= value
    if minima:
        searched = np.stack(
            search.scale_and_minimum(weighted, format.codebook, (first[0], first[1]))
        )
    else:
        searched = search.scales(weighted, format.codebook, first[0], _few(format, shift))[None]
    searched[0] /= value
    new = _held(format, np.ldexp(searched, shift).astype(np.float32), old)
    q, before = _nearest(format, x, shift, new), _columns(levels, n)
    errors = (
        search.total(np.square(_real(format, *made) - columns) * weight)
        for made in ((q, new), (before, old))
    )
    better = next(errors) < next(errors)
    best = np.where(better, q, before).astype(levels.dtype)
    parameters = np.where(better, new, old).T
    return (
        np.ascontiguousarray(best.T).reshape(w.shape),
        np.ascontiguousarray(parameters, np.float32).reshape(np.shape(scales)),
    )


def _micro_blocks(format: Format, w: F32, e: F32 | None, levels: Array, scales: F32) -> Rounded:
    """Choose the better of the given and the searched rounding, for each micro-block; a row's float
    stays, in whose multiples scales are numbers of their own."""
    d, of_blocks = scales[:, 0, :1], scales[:, 0, 1:]
    own = replace(format, scales=GroupScales(MICRO_K, E4M3))
    levels, of_blocks = _groups(own, w * inverse_or_zero(d), e, levels, of_blocks)
    return levels, np.concatenate([d, of_blocks], axis=1).reshape(scales.shape)


def _columns(values: Array, n: int) -> Array:
    """Reshape [M, K] to groups of n, [n, G]."""
    return np.ascontiguousarray(values.reshape(-1, n).T)


def _columns_of(e: F32, M: int, n: int, G: int) -> F32:
    """e [K] as groups of n of M rows, [n, G], or [n, 1] if groups are whole rows."""
    if n == len(e):
        return e[:, None]
    return np.ascontiguousarray(np.broadcast_to(e, (M, len(e))).reshape(G, n).T)


def _normal(x: F32) -> tuple[F32, npt.NDArray[np.int32]]:
    """Return (x / 2^shift, shift [G]): a group's largest is 1/2 to 1, so squares are floats."""
    shift = np.frexp(np.abs(x).max(axis=0))[1].astype(np.int32)
    return np.ldexp(x, -shift), shift


def _few(format: Format, shift: npt.NDArray[np.int32]) -> search.Few | None:
    """Return normal scales if few numbers can be packed; None: nearly any can."""
    scales, value = format.scales, np.float32(format.value)
    if not isinstance(scales, GroupScales) or scales.any_number:
        return None
    number = scales.number

    def rounded(d: F32) -> F32:
        near, fits = number.rounded(number.nearest(np.ldexp(d / value, shift).astype(np.float32)))
        return np.asarray(np.where(fits, np.ldexp(near, -shift) * value, 0), np.float32)

    return search.Few(rounded, search.STEPS_OF_TWO if number is E8M0 else search.NEAR)


def _held(format: Format, parameters: F32, old: F32) -> F32:
    """Round parameters [1 or 2, G] as the format holds them; old ones replace unheld ones."""
    scales = format.scales
    if not isinstance(scales, GroupScales):
        return np.where(np.isfinite(parameters), parameters, old)
    near = scales.number.nearest(np.where(np.isfinite(parameters), parameters, 0))
    near_fit, fits = scales.number.rounded(np.where(np.isfinite(near), near, 0).astype(np.float32))
    return np.where((fits & np.isfinite(near)).all(axis=0), near_fit, old).astype(np.float32)


def _nearest(format: Format, x: F32, shift: npt.NDArray[np.int32], parameters: F32) -> F32:
    """Find the levels nearest to weights x 2^shift [n, G] for parameters as they are packed."""
    assert format.codebook is not None
    normal = np.ldexp(parameters, -shift).astype(np.float32)
    above = x - normal[1] if format.scales.minima else x
    inverse = inverse_or_zero(normal[0] * np.float32(format.value))
    return search.Nearest(format.codebook)(above * inverse)


def _real(format: Format, levels: Array, parameters: F32) -> npt.NDArray[np.float64]:
    """Compute the weights of groups [n, G] as they will be: rounded to float32."""
    real = levels * (parameters[0] * np.float32(format.value))
    return np.asarray(real + parameters[1] if format.scales.minima else real, np.float64)


def _super_blocks(format: Format, w: F32, e: F32 | None, levels: Array, scales: F32) -> Rounded:
    """Choose the better of the given and the searched rounding, for each super-block."""
    assert isinstance(format, KQuant)
    M, K = w.shape
    blocks = w.reshape(-1, format.scales.block)
    if e is None:
        normal = _normal(np.ascontiguousarray(blocks.T))[0].T
        groups = search.by_size(_columns(np.ascontiguousarray(normal), format.scales.group))
        weight = np.ascontiguousarray(groups.T).reshape(blocks.shape)
    else:
        weight = np.ascontiguousarray(np.broadcast_to(e, w.shape)).reshape(blocks.shape)
    best, parts = levels.reshape(blocks.shape), scales.reshape(len(blocks), *scales.shape[2:])
    searched, new = format.searched_blocks(blocks, weight)
    better = _block_errors(format, blocks, weight, searched, new) < _block_errors(
        format, blocks, weight, best, parts
    )
    best = np.where(better[:, None], searched, best)
    parts = np.where(better.reshape(-1, *[1] * (parts.ndim - 1)), new, parts)
    return best.reshape(M, K), np.asarray(parts, np.float32).reshape(scales.shape)


def _block_errors(format: KQuant, blocks: F32, weight: F32, levels: Array, scales: F32) -> Array:
    shaped = scales.reshape(format.scales.shape(*blocks.shape))
    real = format.scales.weights(levels, shaped, format.value)
    apart = np.square(real.astype(np.float64) - blocks)
    return search.total(np.ascontiguousarray((apart * weight).T))
