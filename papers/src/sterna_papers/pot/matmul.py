"""The kernels by name, with checks: `matmul`, its options, and its C++ source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.checks import checked_flag, checked_name
from sterna.errors import NonFiniteError, RequestError, UnsupportedCPUError, shown
from sterna.formats.arithmetic import first_index
from sterna.formats.pot_encodings import ENCODINGS
from sterna.ops import MAX_ROWS
from sterna.runtime import resolve_isa, resolve_threads
from sterna_papers import _kernels
from sterna_papers.pot import tuning
from sterna_papers.pot.tuning import Unroll

__all__ = ["isas", "kernels", "matmul", "resolve", "source", "unrolls"]

# Kernel units of whole models -> the instruction sets whose kernels they use here.
_UNITS = {
    "avxvnni": "avx2", "avxvnniint8": "avx2",
    "avx512bw": "avx512", "avx512bf16": "avx512", "avx10_2": "avx512", "amx": "avx512",
    "neon_i8mm": "neon", "rvv128": "rvv", "rvv256": "rvv",
}  # fmt: skip


# The element types of the kernels without codes.
_BASELINES = {"f32": np.dtype(np.float32), "i32": np.dtype(np.int32)}


def isas() -> list[str]:
    """List the instruction sets with kernels that run here, the plainest first: scalar, avx2, …"""
    return [name for name, _, runs in _kernels.isas() if runs]


def kernels(isa: str | None = None) -> list[str]:
    """List the kernels of an instruction set; None is the best one."""
    return _kernels.kernels(_resolve_isa(isa))


def unrolls(kernel: str, isa: str | None = None) -> list[Unroll]:
    """List a kernel's unroll factors: (rows of a, rows of b, vectors of k)."""
    return _kernels.unrolls(*_resolve_kernel(kernel, isa))


def source() -> Path:
    """Find the folder with the kernels' C++ source; `standalone.cpp` in it compiles alone.

    Raises RequestError if neither the installed package nor a checkout has it.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "source", here.parents[2] / "native" / "pot"):
        if (folder / "standalone.cpp").is_file():
            return folder
    raise RequestError(
        f"pot.source: must lie in {here / 'source'}, but nothing is there; install sterna-papers "
        "again"
    )


def matmul(
    a: Any,
    b_codes: Any,
    K: int,
    *,
    kernel: str,
    scale: Any = None,
    isa: str | None = None,
    threads: int | None = None,
    unroll: Unroll | None = None,
    special: bool = True,
) -> npt.NDArray[Any]:
    """Compute the product a · bᵀ [N, M] with weights that are powers of two.

    a: [N, K], float32, or int32 for "fxpot" and "i32". b_codes: [M, words], a row of codes for each
    column of the result (a column of the paper's B), encoded by `formats.pot_encodings.ENCODINGS`.

    Kernels:

    - "pot8", "pot16", "pot4" add exponents (Algorithms 2, 3 and 4; 5 and 4 on RISC-V).
    - "fxpot" shifts (section 7), and applies the sign.
    - "pot8-fma", "pot4-fma" turn the same codes into 2^e, and multiply.
    - "f32" (fused multiply-add) and "i32" are baselines on a plain matrix [M, K]. On RISC-V "f32"
      is the paper's, which uses one register, and "f32-m4" uses four.
    - "f32-scalar", "i32-scalar", "pot8-scalar" compute one product after the other; "f32-auto",
      "i32-auto", "pot8-auto" are the same source, vectorised by the compiler.

    scale: a factor of the result, a float or float32 [M]; integer sums become float32. unroll: one
    of `unrolls`; None takes the tuned one, or a default. threads: threads share the rows of b.

    special: True makes each product as IEEE does: zeros and subnormal numbers are right, a product
    that is too large is an infinity, and infinities and NaN stay. False is the paper's addition of
    exponents without these cases; kernels that add no exponents ("-fma", "f32", ...) then only
    leave checks out.

    Sums of floats go to lanes first. They are within about K · 2^-24 · Σ|product| of the exact sum,
    and differ between unroll factors and instruction sets, but not between numbers of threads.
    Integer sums are exact modulo 2^32. K = 0 gives zeros. Bits of codes that must be 0 are not
    checked here (`Encoding.decode` checks them); if set, they make other weights, but no crash.

    Raises RequestError for a wrong shape, dtype or name, UnsupportedCPUError for an instruction set
    that this CPU lacks, and NonFiniteError for a scale that is not finite.
    """
    _resolve_kernel(kernel, isa)
    k = _count(K, "K")
    element, word, words = _operands(kernel, k)
    x = _matrix(a, "a", element, kernel)
    codes = _matrix(b_codes, "b_codes", word, kernel)
    if x.shape[1] != k:
        raise RequestError(f"a: must have K={k} columns, but got shape {x.shape}")
    if codes.shape[1] != words:
        raise RequestError(
            f"b_codes: {kernel} must have {words} words a row for K={k}, but got {codes.shape}; "
            "encode the weights with sterna.formats.pot_encodings"
        )
    factor = None if scale is None else _scale(scale, codes.shape[0])
    as_ieee = checked_flag("special", special)
    team = resolve_threads(threads)
    name, chosen, factors = resolve(kernel, isa, len(x), len(codes), k, team, unroll)
    c = _kernels.matmul(name, x, codes, k, chosen, team, factors, as_ieee)
    if factor is None:
        return c
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are valid results
        scaled: npt.NDArray[Any] = (c * factor).astype(np.float32, copy=False)
    return scaled


def resolve(
    kernel: str,
    isa: str | None = None,
    N: int = 1,
    M: int = 4096,
    K: int = 4096,
    threads: int = 1,
    unroll: Unroll | None = None,
) -> tuple[str, str, Unroll]:
    """Return the kernel, instruction set and unroll factors that `matmul` uses for arguments."""
    name, chosen = _resolve_kernel(kernel, isa)
    there = _kernels.unrolls(name, chosen)
    if unroll is not None:
        factors = tuple(unroll) if isinstance(unroll, (tuple, list)) else None
        for one in there:
            if one == factors:
                return name, chosen, one
        known = ", ".join("x".join(map(str, one)) for one in there)
        raise RequestError(
            f"unroll: {name} on {chosen} must have one of {known}, but got {shown(unroll)}"
        )
    tuned = tuning.best(name, chosen, N, M, K, threads)
    return name, chosen, tuned or tuning.default_unroll(there, N)


def _resolve_isa(isa: str | None) -> str:
    known = {name: (needs, runs) for name, needs, runs in _kernels.isas()}
    source = "isa" if isa is not None else "STERNA_ISA"
    name = isa if isa is not None else os.environ.get("STERNA_ISA", "")
    if not isinstance(name, str):
        raise RequestError(f"{source}: must be one of {', '.join(isas())}, but got {shown(name)}")
    if not name:
        return isas()[-1]
    if name in _UNITS:  # the mapped instruction set may run even if the unit itself does not
        name = _UNITS[resolve_isa(isa)]
    if name not in known:
        raise RequestError(f"{source}: must be one of {', '.join(isas())}, but got {shown(name)}")
    needs, runs = known[name]
    if not runs:
        raise UnsupportedCPUError(
            f"{source}: this CPU (or its operating system) cannot run {shown(name)}, which needs "
            f"{needs}; choose one of {', '.join(isas())}"
        )
    return name


def _resolve_kernel(kernel: str, isa: str | None) -> tuple[str, str]:
    chosen = _resolve_isa(isa)
    there = _kernels.kernels(chosen)
    return checked_name("kernel", kernel, there, f"these are what {chosen} has"), chosen


def _operands(kernel: str, K: int) -> tuple[np.dtype[Any], np.dtype[Any], int]:
    """Return the element type of a, the word type of b, and the words of a row of K weights."""
    name = kernel.split("-")[0]
    if name in _BASELINES:
        return _BASELINES[name], _BASELINES[name], K
    encoding = ENCODINGS[name]
    return np.dtype(np.int32 if encoding.fixed else np.float32), encoding.word, encoding.words(K)


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise RequestError(f"{what}: must be a whole number of at least 0, but got {shown(value)}")
    return int(value)


def _matrix(value: Any, what: str, dtype: np.dtype[Any], kernel: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as e:
        raise RequestError(f"{what}: must be a rectangular array, but numpy says {e}") from None
    if array.ndim != 2:
        raise RequestError(f"{what}: must have two dimensions, but got shape {array.shape}")
    if len(array) >= MAX_ROWS:  # before it is copied: a broadcast view takes no memory
        raise RequestError(f"{what}: takes fewer than 2^31 rows, but got shape {array.shape}")
    if array.dtype != dtype:
        raise RequestError(
            f"{what}: {kernel} must have {dtype} here, but got {array.dtype}; "
            f"convert it with astype(np.{dtype})"
        )
    return np.require(array, dtype, ("C", "A"))


def _scale(value: Any, M: int) -> npt.NDArray[np.float32]:
    try:
        given = np.asarray(value)
    except ValueError as e:
        raise RequestError(f"scale: must be a rectangular array, but numpy says {e}") from None
    if given.dtype.kind not in "iubf":
        raise RequestError(f"scale: must be numeric, but got {shown(value)}")
    with np.errstate(over="ignore"):
        scale = given.astype(np.float32)
    if scale.shape not in ((), (M,)):
        raise RequestError(f"scale: must have shape () or ({M},), but got {scale.shape}")
    if not np.isfinite(scale).all():
        at = first_index(~np.isfinite(scale.reshape(-1)))[0]
        raise NonFiniteError(
            f"scale: must be finite as float32, but element {at} is {given.reshape(-1)[at]}; "
            "quantise weights that are finite"
        )
    return scale
