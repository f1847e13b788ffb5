"""Raw blocks of GGUF files (ggml's layouts) as levels and scales, exactly.

A row of a tensor is a run of blocks; a block has scales and codes. `from_ggml` makes a PackedWeight
of a matrix of blocks. Its weights have the bits of ggml's dequantisation. The kernels' side is
native/files/ggml_blocks.cpp; the functions here specify and test it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError, shown
from sterna.formats import (
    i2,
    iq4_nl,
    iq4_xs,
    mxfp4,
    pq2_0,
    q1_0,
    q2_0,
    q2_k,
    q3_k,
    q4_0,
    q4_1,
    q4_k,
    q5_0,
    q5_1,
    q5_k,
    q6_k,
    q8_0,
    t5,
    tq1_0,
    tq2_0,
)
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.base import Format
from sterna.formats.packed_weight import PackedWeight
from sterna.formats.scales import GroupScales

__all__ = ["BLOCKS", "Block", "from_ggml"]

U8 = npt.NDArray[np.uint8]
#: (levels int8 [B, k], scales float32 [B, ...] of blocks uint8 [B, bytes])
Parsed = tuple[npt.NDArray[np.int8], F32]


class Block(NamedTuple):
    """One layout: k and bytes of a block, a reader of B blocks, and the format that holds them."""

    k: int
    nbytes: int
    parse: Callable[[U8], Parsed]
    format: Format


def from_ggml(
    name: str,
    blocks: Any,
    *,
    threads: int = 1,
    order: npt.NDArray[np.int64] | None = None,
    narrow: bool = False,
) -> PackedWeight:
    """Decode blocks uint8 [M, bytes of a row] of a GGUF tensor to the weight [M, K] in `name`.

    name: the ggml type in lower case, one of BLOCKS. blocks: an array, or a list of arrays with the
    rows of one matrix in sequence. order: indices of the rows that come first, second, and so on.
    narrow: blocks of q2_0 and pq2_0 that use three of their four levels become `i2` in groups.
    Raises RequestError for another name or array, rows that are not whole blocks, or a code that is
    no level; NonFiniteError for a scale that is not finite.
    """
    if name not in BLOCKS:
        raise RequestError(f"from_ggml: must be one of {', '.join(BLOCKS)}, but got {shown(name)}")
    k, nbytes, _, f = BLOCKS[name]
    parts = [np.asarray(part) for part in (blocks if isinstance(blocks, list) else [blocks])]
    for raw in parts:
        if raw.ndim != 2 or raw.dtype != np.uint8:
            raise RequestError(
                f"{name}: blocks must be uint8 [M, bytes of a row], but got {raw.dtype} {raw.shape}"
            )
    row_bytes = parts[0].shape[1]
    if row_bytes % nbytes:
        raise RequestError(
            f"{name}: a row must be whole blocks of {nbytes} bytes ({k} weights), "
            f"but has {row_bytes} bytes"
        )
    if narrow and name in _TERNARY and _is_ternary(parts, nbytes):
        name = _TERNARY[name]
        f = BLOCKS[name].format
    M, K = sum(map(len, parts)), row_bytes // nbytes * k
    assert f.codebook is not None
    f.check_shape(M, K)
    scale_bytes = f.scale_bytes(f.tile_rows, K)
    rows = [np.ascontiguousarray(part) for part in parts]
    codes, lines, bad = _native.pack_ggml(
        f.layout.name, name, rows, *f.codebook.code_rule, order, scale_bytes, threads
    )
    if bad >= 0:
        stored = bad if order is None else int(order[bad])
        _refuse(name, np.concatenate(rows)[stored], bad)
    return PackedWeight(f, M, K, codes, lines)


def _refuse(name: str, raw: U8, row: int) -> NoReturn:
    """Raise the error for the bytes of a row.

    RequestError for a level that the format lacks, else NonFiniteError.
    """
    _, nbytes, parse, f = BLOCKS[name]
    levels, scales = parse(raw.reshape(-1, nbytes))
    assert f.codebook is not None
    if (wrong := levels > f.codebook.high).any():
        block, column = first_index(wrong)
        raise RequestError(
            f"{name}: codes must be 0, 1 or 2, but code {column} of block {block} of row "
            f"{row} is 3; the file is damaged, or not ternary"
        )
    scales = scales.reshape(len(levels), -1)
    block, at = first_index(~np.isfinite(scales))
    raise NonFiniteError(
        f"{name}: scale must be finite, but block {block} of row {row} has "
        f"{scales[block, at]}; the file is damaged"
    )


def _f16(raw: U8) -> F32:
    """Two bytes each [B, 2 n] -> float32 [B, n]."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _fields(raw: U8, bits: int, span: int) -> U8:
    """Unpack bytes [B, n] to codes [B, n * 8 / bits]: the lowest fields of each `span` first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    B, n = raw.shape
    fields = raw.reshape(B, n // span, 1, span) >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(B, n * 8 // bits), np.uint8)


def _bits(raw: U8) -> U8:
    """Unpack bytes [B, n] to bits [B, 8 n], the lowest of each byte first."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def _joined(d: F32, whole: npt.NDArray[Any]) -> F32:
    """d [B] and its groups' whole numbers [B, G] -> float32 [B, 1 + G]."""
    return np.concatenate([d[:, None], whole.astype(np.float32)], axis=1)


def _with_minima(raw: U8, whole: npt.NDArray[Any], minima: npt.NDArray[Any]) -> F32:
    """d and dmin, four bytes, and the groups' numbers. ggml subtracts minima."""
    d = _f16(raw)
    return np.stack([_joined(d[:, 0], whole), _joined(-d[:, 1], minima)], axis=1)


def _q4_0(raw: U8) -> Parsed:
    return _fields(raw[:, 2:], 4, 16).astype(np.int8) - np.int8(8), _f16(raw[:, :2])[:, 0]


def _q4_1(raw: U8) -> Parsed:
    return _fields(raw[:, 4:], 4, 16).astype(np.int8), _f16(raw[:, :4])


def _q5_0(raw: U8) -> Parsed:
    """d, four bytes of high bits, 16 of low ones."""
    codes = _fields(raw[:, 6:], 4, 16) | _bits(raw[:, 2:6]) << 4
    return codes.astype(np.int8) - np.int8(16), _f16(raw[:, :2])[:, 0]


def _q5_1(raw: U8) -> Parsed:
    """Parse blocks as of q5_0, with a minimum after d."""
    codes = _fields(raw[:, 8:], 4, 16) | _bits(raw[:, 4:8]) << 4
    return codes.astype(np.int8), _f16(raw[:, :4])


def _q1_0(raw: U8) -> Parsed:
    """d, then a bit for each weight, the lowest first: d where it is 1, else -d."""
    return _bits(raw[:, 2:]).astype(np.int8) * np.int8(2) - np.int8(1), _f16(raw[:, :2])[:, 0]


def _q2_0(raw: U8) -> Parsed:
    """d, then two bits for each weight, the lowest first: d (code - 1), as d code + (-d)."""
    d = _f16(raw[:, :2])
    B, n = raw.shape
    codes = raw[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return codes.reshape(B, 4 * (n - 2)).astype(np.int8), np.concatenate([d, -d], axis=1)


def _pq2_0(raw: U8) -> Parsed:
    """Parse bits as of q2_0, in blocks of any size, as levels -1, 0, 1, 2; 2 may be refused."""
    levels, scales = _q2_0(raw)
    return levels - np.int8(1), scales[:, 0]


def _q8_0(raw: U8) -> Parsed:
    return raw[:, 2:].view(np.int8), _f16(raw[:, :2])[:, 0]


def _mxfp4(raw: U8) -> Parsed:
    """Parse mxfp4; the exponent 255 is NaN (OCP Microscaling Formats 1.0, section 5.4)."""
    values = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
    exponents = np.minimum(raw[:, 0], 254).astype(np.int32) - 127
    scales = np.where(raw[:, 0] == 255, np.nan, np.ldexp(np.float32(1), exponents))
    return values[_fields(raw[:, 1:], 4, 16)], scales.astype(np.float32)


def _iq4_nl(raw: U8) -> Parsed:
    """d, 16 bytes of nibbles, all low ones first, that number the levels."""
    return _IQ4[_fields(raw[:, 2:], 4, 16)], _f16(raw[:, :2])[:, 0]


def _iq4_xs(raw: U8) -> Parsed:
    """d, two bytes of the scales' high bits, four of their low ones, 128 of nibbles."""
    high = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = raw[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(15)
    whole = (low.reshape(-1, 8) | high << 4).astype(np.int8) - np.int8(32)
    return _IQ4[_fields(raw[:, 8:], 4, 16)], _joined(_f16(raw[:, :2])[:, 0], whole)


_IQ4 = np.array(iq4_nl.LEVELS, np.int8)


def _q2_k(raw: U8) -> Parsed:
    """Parse 16 bytes of scale and minimum, 64 of codes, d, dmin."""
    scales = _with_minima(raw[:, 80:], raw[:, :16] & 15, raw[:, :16] >> 4)
    return _fields(raw[:, 16:80], 2, 32).astype(np.int8), scales


def _q3_k(raw: U8) -> Parsed:
    """Parse 32 bytes of high bits, 64 of low ones, 12 of scales, d."""
    codes = _fields(raw[:, 32:96], 2, 32) | _fields(raw[:, :32], 1, 32) << 2
    low, high = _fields(raw[:, 96:104], 4, 8), _fields(raw[:, 104:108], 2, 4)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    return codes.astype(np.int8) - np.int8(4), _joined(_f16(raw[:, 108:])[:, 0], scales)


def _six_bits(raw: U8) -> tuple[U8, U8]:
    """Eight scales and eight minima of six bits in 12 bytes."""
    d, m, both = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([d & 63, both & 15 | d >> 2 & 48], axis=1)
    return scales, np.concatenate([m & 63, both >> 4 | m >> 2 & 48], axis=1)


def _q4_k(raw: U8) -> Parsed:
    """d, dmin, 12 bytes of scales and minima, 128 of codes."""
    scales = _with_minima(raw[:, :4], *_six_bits(raw[:, 4:16]))
    return _fields(raw[:, 16:], 4, 32).astype(np.int8), scales


def _q5_k(raw: U8) -> Parsed:
    """Parse blocks as of q4_k, with 32 bytes of high bits before the codes."""
    scales = _with_minima(raw[:, :4], *_six_bits(raw[:, 4:16]))
    codes = _fields(raw[:, 48:], 4, 32) | _fields(raw[:, 16:48], 1, 32) << 4
    return codes.astype(np.int8), scales


def _q6_k(raw: U8) -> Parsed:
    """Parse 128 bytes of low bits, 64 of high ones, 16 of scales, d."""
    codes = _fields(raw[:, :128], 4, 64) | _fields(raw[:, 128:192], 2, 32) << 4
    scales = _joined(_f16(raw[:, 208:])[:, 0], raw[:, 192:208].view(np.int8))
    return codes.astype(np.int8) - np.int8(32), scales


def _tq1_0(raw: U8) -> Parsed:
    """Parse 52 bytes of codes, d. A byte is a fraction of 256 with levels + 1 as base-3 digits.

    32 bytes hold levels 32 i + m in digit i of byte m, 16 bytes 160 + 16 i + m, each five digits,
    and 4 bytes of four digits 240 + 4 i + m. Any bytes are levels.
    """
    return _thirds(raw, ((0, 32, 5), (32, 16, 5), (48, 4, 4))), _f16(raw[:, 52:])[:, 0]


def _ptq1_0(raw: U8) -> Parsed:
    """Parse 26 bytes of codes as of tq1_0, d.

    Digit i of byte m is level 16 i + m in the first 16 bytes, 80 + 8 i + m in the next 8, and
    120 + 2 i + m in the last 2, which have four digits.
    """
    return _thirds(raw, ((0, 16, 5), (16, 8, 5), (24, 2, 4))), _f16(raw[:, 26:])[:, 0]


def _thirds(raw: U8, runs: tuple[tuple[int, int, int], ...]) -> npt.NDArray[np.int8]:
    """Decode runs of bytes (first, count, digits) to levels: the first digit of all bytes first."""
    pieces = []
    for first, size, digits in runs:
        powers = np.array([3**i for i in range(digits)], np.uint8)[:, None]
        fractions = raw[:, None, first : first + size] * powers  # modulo 256
        pieces.append((fractions.astype(np.uint16) * 3 >> 8).reshape(len(raw), digits * size))
    return np.asarray(np.concatenate(pieces, axis=1).astype(np.int8) - np.int8(1), np.int8)


def _tq2_0(raw: U8) -> Parsed:
    """Parse 64 bytes of codes, d. A code 3 is not ternary, and is refused."""
    codes = _fields(raw[:, :64], 2, 32)
    return codes.astype(np.int8) - np.int8(1), _f16(raw[:, 64:])[:, 0]


def _groups(format: Format, k: int) -> Format:
    """Return `format` with an f16 for every k of a row."""
    return replace(format, name=f"{format.name}:g{k}", scales=GroupScales(k))


#: ggml type -> its blocks.
BLOCKS = {
    "q4_0": Block(32, 18, _q4_0, q4_0.FORMAT),
    "q4_1": Block(32, 20, _q4_1, q4_1.FORMAT),
    "q5_0": Block(32, 22, _q5_0, q5_0.FORMAT),
    "q5_1": Block(32, 24, _q5_1, q5_1.FORMAT),
    "q8_0": Block(32, 34, _q8_0, q8_0.FORMAT),
    "mxfp4": Block(32, 17, _mxfp4, mxfp4.FORMAT),
    "iq4_nl": Block(32, 18, _iq4_nl, iq4_nl.FORMAT),
    "iq4_xs": Block(256, 136, _iq4_xs, iq4_xs.FORMAT),
    "q2_k": Block(256, 84, _q2_k, q2_k.FORMAT),
    "q3_k": Block(256, 110, _q3_k, q3_k.FORMAT),
    "q4_k": Block(256, 144, _q4_k, q4_k.FORMAT),
    "q5_k": Block(256, 176, _q5_k, q5_k.FORMAT),
    "q6_k": Block(256, 210, _q6_k, q6_k.FORMAT),
    "tq1_0": Block(256, 54, _tq1_0, tq1_0.FORMAT),
    "tq2_0": Block(256, 66, _tq2_0, tq2_0.FORMAT),
    "q1_0": Block(128, 18, _q1_0, q1_0.FORMAT),
    "q2_0": Block(64, 18, _q2_0, q2_0.FORMAT),
    "q2_0_ternary": Block(64, 18, _pq2_0, _groups(i2.FORMAT, 64)),
    "pq2_0": Block(128, 34, _pq2_0, pq2_0.FORMAT),
    "pq2_0_ternary": Block(128, 34, _pq2_0, _groups(i2.FORMAT, 128)),
    "ptq1_0": Block(128, 28, _ptq1_0, _groups(t5.FORMAT, 128)),
}
#: Types of two bits -> their formats in files that use only three levels, as many do.
_TERNARY = {"q2_0": "q2_0_ternary", "pq2_0": "pq2_0_ternary"}
SCANNED_ROWS = 64  # files with four levels show them in the first rows


def _is_ternary(parts: list[U8], nbytes: int) -> bool:
    """Whether no code of blocks with two bits after d is 3."""
    for part in parts:
        for at in range(0, len(part), SCANNED_ROWS):
            codes = part[at : at + SCANNED_ROWS].reshape(-1, nbytes)[:, 2:]
            if not i2.FORMAT.codes_valid(np.ascontiguousarray(codes), 1):
                return False
    return True
