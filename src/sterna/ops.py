"""Low-bit matrix products on numpy and DLPack arrays.

>>> import numpy as np, sterna.ops as ops
>>> w = ops.quantize(np.random.randn(100, 300), "i2")
>>> y = ops.linear(np.random.randn(5, 300), w)      # float32 [5, 100]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.checks import checked_flag
from sterna.errors import NonFiniteError, RequestError, shown
from sterna.formats import Format, PackedWeight, codec
from sterna.formats.arithmetic import first_index
from sterna.runtime import resolve_isa, resolve_threads

__all__ = ["PackedWeight", "dequantize", "linear", "pack", "quantize", "unpack"]

F32 = npt.NDArray[np.float32]
MAX_ROWS = 1 << 31  # of activations: kernels count them in int32


def _as_array(x: Any, what: str) -> npt.NDArray[Any]:
    """Return a numpy view of an array-like or DLPack object (bfloat16 has no numpy type)."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError) as e:
            raise RequestError(
                f"{what}: must be a CPU array of a numpy type, but DLPack says {e}; "
                "convert it to float32 first"
            ) from None
    try:
        return np.asarray(x)
    except ValueError as e:
        raise RequestError(f"{what}: must be a rectangular array, but numpy says {e}") from None


def _float32(a: npt.NDArray[Any]) -> F32:
    """Return an array as float32, row-major and aligned, as C++ reads it.

    Values beyond float32 become infinity: the caller checks.
    """
    with np.errstate(over="ignore"):
        return np.require(a, np.float32, ("C", "A"))


def _matrix(x: Any, what: str) -> npt.NDArray[Any]:
    a = _as_array(x, what)
    if a.ndim != 2:
        raise RequestError(f"{what}: must have two dimensions [M, K], but got shape {a.shape}")
    if a.dtype.kind not in "iubf":
        raise RequestError(f"{what}: must be numeric, but got dtype {a.dtype}")
    return a


def _finite(weights: npt.NDArray[Any], format: str) -> F32:
    """Return weights as float32; raises NonFiniteError if any is not finite there."""
    values = _float32(weights)
    if not np.isfinite(values).all():
        at = first_index(~np.isfinite(values))
        raise NonFiniteError(
            f"{format}: weights must be finite as float32, but element {at} is {weights[at]}"
        )
    return values


def _check_scale(scale: Any, M: int, K: int, f: Format) -> npt.NDArray[Any]:
    format = f.name
    argument = _as_array(scale, "scale")
    if argument.dtype.kind not in "iubf":
        raise RequestError(f"{format}: scale must be numeric, but got {shown(scale)}")
    f.scales.check_given(argument.shape, M, K, format)
    s = _float32(argument).reshape(argument.shape)
    if not np.isfinite(s).all():
        at = first_index(~np.isfinite(s))
        where = f"element {at}" if at else "it"
        raise NonFiniteError(
            f"{format}: scale must be finite as float32, but {where} is {argument[at]}"
        )
    return codec.packed_scale(f, s, M, K)


def pack(
    codes: Any, scale: Any = None, *, format: str | Format, threads: int | None = None
) -> PackedWeight:
    """Pack integer levels [M, K] (or float values, for f32, f16, bf16, pot8, pot16) into tiles.

    scale: float, shape () or [M]; default 1. Formats with groups take () or [M, K / group], with
    minima [M, K / group, 2]: a scale and a minimum each. K-quants: formats.scales.superblocks.
    Levels are -1..1 for i2, {-3, -1, 1, 3} for i2p (times scale / 4), -128..127 for i8; `sterna
    formats` lists the others.

    Raises RequestError for a level that the format lacks, a wrong shape or an unknown format,
    NonFiniteError for a scale or value that is not finite.
    """
    f = formats.get(format)
    format = f.name
    values = _matrix(codes, f"{format}: codes")
    M, K = values.shape
    f.check_shape(M, K)
    if f.codebook:
        values = f.codebook.check(values, format)
    else:
        if scale is not None and not f.scaled:
            raise RequestError(f"{format}: this format has no scale, but got one; multiply first")
        values = _finite(values, format)
    s = _check_scale(1.0 if scale is None else scale, M, K, f)
    return PackedWeight(f, M, K, codec.pack_codes(f, values, resolve_threads(threads)), s)


def quantize(
    w: Any,
    format: str | Format,
    scale: str | None = None,
    *,
    method: str | None = None,
    threads: int | None = None,
) -> PackedWeight:
    """Round real weights [M, K] to a format and pack them.

    scale: "tensor" or "row"; default the format's own, which may be in groups. method: how to round
    to powers of two, one of formats.pot_methods. Raises as `pack`.
    """
    f = formats.get(format)
    if method is not None:
        f = formats.with_method(f, method)
    format = f.name
    if scale is not None and not (isinstance(scale, str) and scale in ("tensor", "row")):
        raise RequestError(
            "scale: must be 'tensor' or 'row', "
            f"but got {shown(scale)}; groups are part of a format's "
            "name, as in i4:g32"
        )
    if not f.scaled and scale is not None:
        raise RequestError(f"scale: {format} has none, but got {shown(scale)}")
    if f.scales.group and scale is not None:
        raise RequestError(f"scale: {format} has one for each group, but got {shown(scale)}")
    weights = _matrix(w, f"{format}: weights")
    f.check_shape(*weights.shape)
    values = _finite(weights, format)
    if not f.scaled:
        return pack(values, format=format, threads=threads)
    from sterna.formats import weighted  # searches, which no model needs that is packed

    levels, s = weighted.rounded(f, values, scale, threads=resolve_threads(threads))
    return pack(levels, s, format=format, threads=threads)


def unpack(packed: PackedWeight, *, threads: int | None = None) -> tuple[npt.NDArray[Any], F32]:
    """Unpack tiles into (levels int8 [M, K] or float32 values, scale as `pack` takes it)."""
    _opened(packed)
    return packed.unpacked(resolve_isa(), resolve_threads(threads)), packed.scales


def _opened(packed: object) -> _native.Weight:
    """Return the kernels' view of a packed weight; raises RequestError unless `pack` or a model's
    file could have made it."""
    if not isinstance(packed, PackedWeight):
        raise RequestError(
            f"packed: must be a PackedWeight, but got {type(packed).__name__}; "
            "ops.pack and ops.quantize make one"
        )
    try:
        return packed.native()
    except (AttributeError, TypeError, ValueError):  # the caller may have filled in the fields
        raise packed.refused() from None


def dequantize(packed: PackedWeight, *, threads: int | None = None) -> F32:
    """Return the real weights, float32 [M, K], of a packed weight."""
    values, scale = unpack(packed, threads=threads)
    return codec.real_values(packed.format, values, scale)


def linear(
    x: Any,
    packed: PackedWeight,
    *,
    isa: str | None = None,
    threads: int | None = None,
    deterministic: bool = True,
) -> F32:
    """Return y [..., M] = x [..., K] W^T in float32, with the same bits for every `isa`, number of
    threads and number of rows.

    Integer formats quantise each row of x to int8 (symmetric, half to even) and sum exactly. If
    weights have scales in groups, each 32 values of a row are quantised by themselves (256 for
    tq1_0 and tq2_0), and the sums of groups are added as floats. Float formats add over K in
    ascending order, one fused multiply-add each.

    deterministic=False lets float formats use a unit's bf16 products if it has them (`amx`; for
    bf16 weights also `avx512bf16`): the bits then depend on the unit. For bf16 weights x is rounded
    to bf16, values from about 3.39e38 up to infinity; f16 and f32 weights keep about the error of a
    float32 sum. Values and products below 2^-126 count as 0.

    Raises RequestError for a wrong shape. Integer formats raise NonFiniteError if x has a NaN or an
    infinity, or if a sum or intermediate is beyond float32 (for K-quants with weights of size 1,
    from about 1e34 in x on).
    """
    weight = _opened(packed)
    a = _as_array(x, "x")
    if a.dtype.kind not in "iubf":
        raise RequestError(f"x: must be numeric, but got dtype {a.dtype}")
    check_rows(a.shape, packed.K)
    rows = _float32(a)  # after the checks of size: here a broadcast view takes memory
    isa, threads = resolve_isa(isa), resolve_threads(threads)
    deterministic = checked_flag("deterministic", deterministic)
    return product(weight, packed.format, rows, isa, threads, deterministic, argument=a)


def check_width(shape: Sequence[int], K: int) -> None:
    """Raise RequestError unless activations of this shape are [..., K]."""
    if not shape or shape[-1] != K:
        raise RequestError(f"x: the last dimension must be K={K}, but got shape {tuple(shape)}")


def check_rows(shape: Sequence[int], K: int) -> None:
    """Raise RequestError unless activations are [..., K], with fewer than 2^31 rows."""
    check_width(shape, K)
    if prod(shape[:-1]) >= MAX_ROWS:
        raise RequestError(f"x: takes fewer than 2^31 rows, but got shape {tuple(shape)}")


def product(
    weight: _native.Weight,
    format: Format,
    x: F32,
    isa: str,
    threads: int,
    deterministic: bool = True,
    *,
    argument: npt.NDArray[Any] | None = None,
) -> F32:
    """Compute `linear` with checked arguments; for Sterna itself.

    x: float32 [..., K], row-major; argument: x before its conversion, whose values errors show.
    """
    shape = x.shape
    rows = x if len(shape) == 2 else x.reshape(prod(shape[:-1]), shape[-1])
    try:
        y = _native.linear(weight, rows, isa, threads, deterministic)
    except FloatingPointError:
        at = first_index(~np.isfinite(x))  # [..., K]
        value = (x if argument is None else argument)[at]
        raise NonFiniteError(f"x: must be finite as float32, but element {at} is {value}") from None
    except OverflowError as e:
        place, value, M = e.args
        at = tuple(int(i) for i in np.unravel_index(place, (*shape[:-1], M)))
        raise NonFiniteError(
            f"{format}: sums must stay within float32, but element {at} of the result is "
            f"{np.float32(value)}; divide x and multiply the result"
        ) from None
    return y if len(shape) == 2 else y.reshape(*shape[:-1], y.shape[1])


def is_fast(format: Format, isa: str, deterministic: bool | None) -> bool:
    """Whether a unit sums a float format by bf16 products; for Sterna itself, unchecked.

    deterministic: True: never; False: if the unit can; None: only for bf16 weights on a matrix
    unit, since planes of f16 and f32 make prompts faster but single tokens slower, and pairs of
    bf16 on vectors gain twice at most, which is not worth the bits that all units have.
    """
    layout = _native.fast_layouts(isa).get(format.layout.name)
    if layout is None:
        return False
    products, tiles = layout
    return products == 1 and tiles if deterministic is None else not deterministic
