"""Raw blocks of GGUF files (ggml's layouts) as levels and scales, exactly.

A row of a tensor is a run of blocks; a block has scales and codes. `from_ggml` makes a PackedWeight
of a matrix of blocks. Its weights have the bits of ggml's dequantisation. The blocks are read by
native/files/ggml_blocks.cpp, which `parsers` specifies and tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.errors import NonFiniteError, RequestError, shown
from sterna.formats.arithmetic import first_index
from sterna.formats.base import Format
from sterna.formats.ggml_blocks import ik_parsers, parsers
from sterna.formats.ggml_blocks.fields import U8, Parsed
from sterna.formats.packed_weight import PackedWeight

__all__ = ["BLOCKS", "Block", "from_ggml"]


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


def _block(k: int, nbytes: int, parse: Callable[[U8], Parsed], format: str | None = None) -> Block:
    return Block(k, nbytes, parse, formats.get(format or parse.__name__))


#: ggml type -> its blocks.
BLOCKS = {
    "q4_0": _block(32, 18, parsers.q4_0),
    "q4_1": _block(32, 20, parsers.q4_1),
    "q5_0": _block(32, 22, parsers.q5_0),
    "q5_1": _block(32, 24, parsers.q5_1),
    "q8_0": _block(32, 34, parsers.q8_0),
    "mxfp4": _block(32, 17, parsers.mxfp4),
    "iq4_nl": _block(32, 18, parsers.iq4_nl),
    "iq4_xs": _block(256, 136, parsers.iq4_xs),
    "q2_k": _block(256, 84, parsers.q2_k),
    "q3_k": _block(256, 110, parsers.q3_k),
    "q4_k": _block(256, 144, parsers.q4_k),
    "q5_k": _block(256, 176, parsers.q5_k),
    "q6_k": _block(256, 210, parsers.q6_k),
    "tq1_0": _block(256, 54, parsers.tq1_0),
    "tq2_0": _block(256, 66, parsers.tq2_0),
    "stq1_0": _block(256, 42, parsers.stq1_0),
    "q1_0": _block(128, 18, parsers.q1_0),
    "q2_0": _block(64, 18, parsers.q2_0),
    "q2_0_ternary": _block(64, 18, parsers.pq2_0, "i2:g64"),
    "pq2_0": _block(128, 34, parsers.pq2_0),
    "pq2_0_ternary": _block(128, 34, parsers.pq2_0, "i2:g128"),
    "ptq1_0": _block(128, 28, parsers.ptq1_0, "t5:g128"),
    "iq1_s": _block(256, 50, parsers.iq1_s),
    "iq1_m": _block(256, 56, parsers.iq1_m),
    "iq2_xxs": _block(256, 66, parsers.iq2_xxs),
    "iq2_xs": _block(256, 74, parsers.iq2_xs),
    "iq2_s": _block(256, 82, parsers.iq2_s),
    "iq3_xxs": _block(256, 98, parsers.iq3_xxs),
    "iq3_s": _block(256, 110, parsers.iq3_s),
    # Of ik_llama.cpp.
    "q6_0": _block(32, 26, ik_parsers.q6_0, "q8_0"),
    "iq2_k": _block(256, 76, ik_parsers.iq2_k),
    "iq3_k": _block(256, 110, ik_parsers.iq3_k),
    "iq4_k": _block(256, 144, ik_parsers.iq4_k),
    "iq2_ks": _block(256, 72, ik_parsers.iq2_ks),
    "iq3_ks": _block(256, 104, ik_parsers.iq3_ks),
    "iq2_kl": _block(256, 88, ik_parsers.iq2_kl),
    "iq4_ks": _block(256, 140, ik_parsers.iq4_ks),
    "iq4_kss": _block(256, 132, ik_parsers.iq4_kss, "iq4_ks"),
    "iq5_k": _block(256, 176, ik_parsers.iq5_k),
    "iq5_ks": _block(256, 172, ik_parsers.iq5_ks),
    "iq6_k": _block(256, 212, ik_parsers.iq6_k),
}
#: Types of two bits -> their formats in files that use only three levels, as many do.
_TERNARY = {"q2_0": "q2_0_ternary", "pq2_0": "pq2_0_ternary"}
SCANNED_ROWS = 64  # files with four levels show them in the first rows


def _is_ternary(parts: list[U8], nbytes: int) -> bool:
    """Whether no code of blocks with two bits after d is 3."""
    two_bits = formats.get("i2")
    for part in parts:
        for at in range(0, len(part), SCANNED_ROWS):
            codes = part[at : at + SCANNED_ROWS].reshape(-1, nbytes)[:, 2:]
            if not two_bits.codes_valid(np.ascontiguousarray(codes), 1):
                return False
    return True
