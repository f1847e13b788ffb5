"""`sterna::linear`: the product of `sterna.ops.linear` as an operator of torch, with a gradient.

    y [..., M] = x [..., K] W^T        linear(x, codes, scale, format, M, K, int8_gradient=False)
    x [..., K] = y [..., M] W          linear_backward(y, codes, scale, format, M, K, int8=False)

W consists of two tensors, which kernels read in place:

    codes   uint8 [tiles, bytes of a tile], those of a `PackedWeight`
    scale   float32 [rows of all tiles]; of groups uint8 [tiles, bytes]; of plain floats empty

The operators take only tensors, strings and numbers, for torch.compile and torch.export.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sterna import _native, formats, ops
from sterna.errors import RequestError, shown
from sterna.formats import Format
from sterna.runtime import Threads, resolve_isa
from sterna.torch import gradient
from sterna.torch.tensors import ALIGNMENT

__all__ = ["check_int8_gradient", "linear"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ARGUMENTS = "codes, Tensor scale, str format, int M, int K"


class _Memory:
    """A numpy view of a tensor's memory, which does not own it."""

    def __init__(self, t: Tensor, kind: str) -> None:
        where = (t.data_ptr(), True)
        self.__array_interface__ = {
            "data": where,
            "shape": tuple(t.shape),
            "typestr": kind,
            "version": 3,
        }


def _memory(name: str, t: Tensor, dtype: torch.dtype, dims: int) -> npt.NDArray[Any]:
    _check_device(name, t)
    if t.dtype != dtype or t.ndim != dims or not t.is_contiguous():
        raise RequestError(
            f"{name}: must be {dtype}, contiguous, of {dims} dimensions, but got {t.dtype} of "
            f"shape {tuple(t.shape)} and strides {t.stride()}; packed_tensors makes them"
        )
    if t.data_ptr() % ALIGNMENT:
        raise RequestError(
            f"{name}: must begin at a multiple of {ALIGNMENT} bytes, but got address "
            f"{t.data_ptr():#x}; clone() it"
        )
    if not t.numel():
        return t.numpy()
    return np.asarray(_Memory(t, "|u1" if dtype == torch.uint8 else "<f4"))


class _Kernels(NamedTuple):
    """The arguments of a product other than x."""

    weight: _native.Weight
    format: Format
    isa: str


# The views of weights that were seen. They own nothing: the caller of an operator holds the tensors
# meanwhile; and whatever lies in the place of others that are gone, with a key like theirs, has
# their view.
_seen: dict[tuple[Any, ...], _Kernels] = {}
_MOST_SEEN = 1 << 14  # a view takes 0.5 KB, a model has some hundred


def _identity(t: Tensor) -> tuple[Any, ...]:
    """What tells a tensor's memory apart from others'."""
    return t.data_ptr(), t.shape, t.dtype, t.is_contiguous(), t.is_cpu


def _kernels(codes: Tensor, scale: Tensor, format: str, M: int, K: int) -> _Kernels:
    """Return the kernels' view of a weight's tensors; RequestError unless they fit the format."""
    key = (*_identity(codes), *_identity(scale), format, M, K)
    kernels = _seen.get(key)
    if kernels is None:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        kernels = _seen[key] = _view(codes, scale, format, M, K)
    return kernels


def _view(codes: Tensor, scale: Tensor, format: str, M: int, K: int) -> _Kernels:
    f = formats.get(format)
    tiles = _memory("codes", codes, torch.uint8, 2)
    rows = groups = None
    if f.scales.group:
        lines = _memory("scale", scale, torch.uint8, 2)
        rows, groups = f.scales.for_kernels(lines, M, len(tiles) * f.tile_rows, f.unit, f.value)
    elif f.scaled:
        rows = _memory("scale", scale, torch.float32, 1)
    try:
        weight = _native.Weight(f.layout.name, M, K, tiles, rows, f.zero_x2, groups, f.table)
    except (TypeError, ValueError) as e:
        raise RequestError(
            f"codes, scale: must be those of {f}, M, K = {shown(M)}, {shown(K)}, but got shapes "
            f"{tuple(codes.shape)}, {tuple(scale.shape)}: {e}"
        ) from None
    return _Kernels(weight, f, resolve_isa())


# -------------------------------------------------------------------------------------- arguments


def _check_device(name: str, t: Tensor) -> None:
    if not t.is_cpu:
        raise RequestError(
            f"{name}: must be on the CPU, where Sterna computes, but got a tensor on {t.device}"
        )


def _check_dtype(x: Tensor) -> None:
    if x.dtype not in _DTYPES:
        raise RequestError(
            f"x: must be float32, bfloat16 or float16, but got {x.dtype}; convert it first"
        )


@lru_cache(maxsize=16)
def _threads(count: int) -> Threads:
    return Threads(count)


# -------------------------------------------------------------------------------------- operators


def _linear(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    format: str,
    M: int,
    K: int,
    int8_gradient: bool = False,
) -> Tensor:
    """y [..., M] of x [..., K], float32, bfloat16 or float16: computed in float32, rounded once.

    int8_gradient: how `linear_backward` computes; RequestError for formats that do not support it.
    """
    if int8_gradient:
        check_int8_gradient(format)
    weight, f, isa = _kernels(codes, scale, format, M, K)
    _check_device("x", x)
    _check_dtype(x)
    ops.check_rows(x.shape, K)
    dtype = x.dtype
    rows = x if dtype == torch.float32 else x.float()
    if not rows.is_contiguous():
        rows = rows.contiguous()
    # As many threads as torch uses: a DataLoader's workers have one.
    threads = _threads(torch.get_num_threads())
    values = (rows.detach() if rows.requires_grad else rows).numpy()
    y = torch.from_numpy(ops.product(weight, f, values, isa, threads))
    return y if dtype == torch.float32 else y.to(dtype)


def check_int8_gradient(format: str) -> None:
    """Raise RequestError for a format without levels of `i8` times one scale a row."""
    f = formats.get(format)
    codebook = f.codebook
    if codebook is None or f.scales.group or codebook.ends[0] < -128 or codebook.ends[1] > 127:
        raise RequestError(
            "int8_gradient: is for formats of levels in -128..127 with one scale for each row, but "
            f"got {f}; leave it out"
        )


def _linear_backward(
    y: Tensor, codes: Tensor, scale: Tensor, format: str, M: int, K: int, int8: bool = False
) -> Tensor:
    """Compute the gradient of x [..., K] from that of y [..., M], y W, as gradient.py does.

    The rounding of activations passes the gradient on unchanged (straight through). int8: compute
    an integer product; RequestError for formats that do not support it.
    """
    if int8:
        check_int8_gradient(format)
    f = _kernels(codes, scale, format, M, K).format
    threads = _threads(torch.get_num_threads())
    grad = y.reshape(prod(y.shape[:-1]), M).to(torch.float32)
    if int8:
        out = gradient.of_integers(grad, codes, scale, f, K, threads)
    else:
        out = gradient.of_floats(grad, codes, scale, f, K, threads, y.dtype)
    return out.reshape(*y.shape[:-1], K).to(y.dtype)


def _fake_linear(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    format: str,
    M: int,
    K: int,
    int8_gradient: bool = False,
) -> Tensor:
    if int8_gradient:
        check_int8_gradient(format)
    _check_dtype(x)
    ops.check_width(x.shape, K)
    if not x.device == codes.device == scale.device:
        raise RequestError(
            "x, codes, scale: must be on one device, the CPU, "
            f"but got {x.device}, {codes.device}, {scale.device}"
        )
    return x.new_empty(*x.shape[:-1], M)


def _fake_backward(
    y: Tensor, codes: Tensor, scale: Tensor, format: str, M: int, K: int, int8: bool = False
) -> Tensor:
    return y.new_empty(*y.shape[:-1], K)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, codes, scale, *ctx.shape = inputs
    if scale.requires_grad:
        raise RequestError(
            "scale: packed weights have no gradient, but got a tensor with requires_grad; "
            "detach() it, and train float weights"
        )
    ctx.save_for_backward(codes, scale)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[0]
    x = torch.ops.sterna.linear_backward(grad, *ctx.saved_tensors, *ctx.shape) if needed else None
    return (x, *[None] * 6)


def _no_second(ctx: Any, grad: Tensor) -> NoReturn:
    raise RequestError(
        "sterna::linear: must be differentiated once, but got a second gradient (create_graph); "
        "use float weights if you need it"
    )


_LIBRARY = torch.library.Library("sterna", "FRAGMENT")  # type: ignore[no-untyped-call]
for _name, _first, _last, _compute, _fake in (
    ("linear", "x", "int8_gradient", _linear, _fake_linear),
    ("linear_backward", "y", "int8", _linear_backward, _fake_backward),
):
    _schema = f"{_name}(Tensor {_first}, Tensor {_ARGUMENTS}, bool {_last}=False) -> Tensor"
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    # For every device: others are refused by name.
    _LIBRARY.impl(_name, _compute, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"sterna::{_name}", _fake, lib=_LIBRARY)
torch.library.register_autograd("sterna::linear", _backward, setup_context=_keep, lib=_LIBRARY)
torch.library.register_autograd("sterna::linear_backward", _no_second, lib=_LIBRARY)


def linear(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    format: str,
    M: int,
    K: int,
    int8_gradient: bool = False,
) -> Tensor:
    """Call `torch.ops.sterna.linear`, without torch's dispatch if nothing observes it.

    The dispatch takes three times as long as the operator: autograd's key looks for a gradient, and
    Python objects are boxed.
    """
    if (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or (x.requires_grad and torch.is_grad_enabled())
        or torch._C._len_torch_dispatch_stack()  # something records operators
        or torch._C._functorch.maybe_current_level() is not None  # or transforms them
    ):
        made: Tensor = torch.ops.sterna.linear(x, codes, scale, format, M, K, int8_gradient)
        return made
    return _linear(x, codes, scale, format, M, K, int8_gradient)
