"""GGUF blocks that hold indices of tables (IQ1, IQ2, IQ3), converted to formats that run.

The gguf package has the tables and decodes the blocks. No kernel reads them: looking up eight or
four weights at a time is slower than reading more bits. So they become the nearest format. A weight
is a number of the table, times a whole number for each 16 or 32 weights, times an f16. `q6_k` holds
such products exactly if the table's numbers fit its levels, as those of IQ1 and (halved) IQ3 do.
Those of IQ2 (8, 25, 43) do not; of all formats `q8_0` loses least of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError, UnsupportedModelError, warn
from sterna.formats import Format, PackedWeight, q6_k, q8_0
from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.codec import by_rule, pack_codes, packed_scale
from sterna.gguf.file import GgufModel
from sterna.weights.packing import pack_floats
from sterna.weights.storages import Floats

__all__ = ["INDEXED", "decoded", "from_indexed", "warn_of_indexed"]

BLOCK_K = 256
CHUNK = 1 << 20  # weights that a thread decodes at a time: 4 MB of floats

U8 = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int8]


class Indexed(NamedTuple):
    """A type: bytes of a block of 256 weights, the format that takes its place, and its scales.

    scales: blocks uint8 [B, bytes] -> (d float32 [B], whole numbers [B, groups]); a weight is a
    whole level times their product.
    """

    nbytes: int
    format: Format
    scales: Callable[[U8], tuple[F32, npt.NDArray[Any]]]


def warn_of_indexed(model: GgufModel) -> None:
    """Say which types of a file are converted to what, if any are.

    Raises UnsupportedModelError if the gguf package, which decodes them, is missing.
    """
    found = dict.fromkeys(info.dtype for info in model.tensors.values())
    if kinds := [kind for kind in found if kind.lower() in INDEXED]:
        _package()
        pairs = ", ".join(f"{kind} to {INDEXED[kind.lower()].format}" for kind in kinds)
        warn(
            f"{model.path}: converted on load, as no kernel reads such blocks: {pairs}; "
            "a Q2_K, Q3_K_M or IQ4_XS file of this model takes less memory"
        )


def decoded(name: str, raw: U8, threads: int) -> F32:
    """Decode rows of blocks uint8 [M, bytes] to the weights float32 [M, K].

    Raises UnsupportedModelError if the gguf package is missing, NonFiniteError for a scale that is
    not finite.
    """
    chunks = list(_chunks(name, raw))
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        return np.concatenate(list(pool.map(lambda rows: _values(name, rows), chunks)))


def from_indexed(
    name: str,
    blocks: list[U8],
    asked: str | None = None,
    threads: int = 1,
    order: npt.NDArray[np.int64] | None = None,
) -> PackedWeight:
    """Convert blocks to a weight in the format `asked`, None: the one that loses least.

    blocks: arrays uint8 [rows, bytes] with the rows of one matrix in sequence. order: indices of
    the rows that come first, second, and so on. Raises as `decoded`.
    """
    f = INDEXED[name].format
    if asked is not None and asked != f:
        w = np.concatenate([decoded(name, raw, threads) for raw in blocks])
        floats = Floats("f32", w if order is None else w[order])
        return pack_floats([floats], asked, threads, name)
    chunks = [rows for raw in blocks for rows in _chunks(name, raw)]
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        made = list(pool.map(lambda rows: _converted(name, rows), chunks))
    levels = np.concatenate([one for one, _ in made])
    scales = np.concatenate([one for _, one in made])
    scales = scales if order is None else scales[order]
    M, K = levels.shape
    codes = pack_codes(f, levels, threads, order)
    return PackedWeight(f, M, K, codes, packed_scale(f, scales, M, K))


def _chunks(name: str, raw: U8) -> Iterator[U8]:
    nbytes = INDEXED[name].nbytes
    if raw.ndim != 2 or raw.shape[1] % nbytes:
        raise RequestError(f"{name}: rows must be whole blocks of {nbytes} bytes")
    rows = max(1, CHUNK // max(1, raw.shape[1] // nbytes * BLOCK_K))
    return (raw[at : at + rows] for at in range(0, max(len(raw), 1), rows))


def _values(name: str, raw: U8) -> F32:
    gguf = _package()
    d, _ = INDEXED[name].scales(raw.reshape(-1, INDEXED[name].nbytes))
    if not np.isfinite(d).all():
        raise NonFiniteError(f"{name}: scale must be finite, but got {d[~np.isfinite(d)][0]}")
    K = raw.shape[1] // INDEXED[name].nbytes * BLOCK_K
    if not len(raw):
        return np.zeros((0, K), np.float32)
    made = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    return np.asarray(made, np.float32).reshape(len(raw), K)


def _converted(name: str, raw: U8) -> tuple[Levels, F32]:
    """Return the levels [rows, K] of the type's format, and its scales."""
    w, f = _values(name, raw), INDEXED[name].format
    d, whole = INDEXED[name].scales(raw.reshape(-1, INDEXED[name].nbytes))
    unit = (d[:, None] * whole.astype(np.float32))[:, :, None]
    blocks = w.reshape(len(d), whole.shape[1], -1)
    if f == q6_k.FORMAT:
        levels = np.rint(blocks * inverse_or_zero(unit)).astype(np.int8)
        of_16 = np.repeat(whole, 16 // whole.shape[1], axis=1).astype(np.float32)
        scales = np.concatenate([d[:, None], of_16], axis=1)
    elif whole.shape[1] == 8:  # a scale for each 32 weights, as here
        levels = np.rint(blocks * inverse_or_zero(unit)).astype(np.int8)
        scales = unit
    else:
        return by_rule(f, w)
    return levels.reshape(w.shape), scales.reshape(f.scales.shape(*w.shape))


def _package() -> Any:
    try:
        import gguf.quants
    except ImportError:
        raise UnsupportedModelError(
            "gguf: reading IQ1, IQ2 and IQ3 needs the gguf package; install it with: "
            "pip install 'sterna[gguf]'"
        ) from None
    return gguf


# ------------------------------------------------------------------------------- scales of types


def _f16(raw: U8, parts: int = 1) -> F32:
    """Two bytes each [B, 2], divided by a power of two -> float32 [B]."""
    d = np.ascontiguousarray(raw).view("<f2")[:, 0].astype(np.float32)
    return np.asarray(d / np.float32(parts), np.float32)


def _odd(codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return (2 * codes.astype(np.int16) + 1).astype(np.int8)


def _nibbles(raw: U8) -> U8:
    return np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1)


def _words(raw: U8, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(raw).view(dtype)


def _iq1_s(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    """Weights are d s (t + 1/8) or d s (t - 1/8): eighths are the unit."""
    return _f16(raw[:, :2], 8), _odd(_words(raw[:, 34:], "<u2") >> 12 & 7)


def _iq1_m(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    """d is in the upper four bits of four words, which have four scales each."""
    words = _words(raw[:, 48:], "<u2")
    bits = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)).sum(axis=1).astype("<u2")
    scales = words[:, :, None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    return _f16(bits[:, None].view(np.uint8), 8), _odd(scales.reshape(len(raw), 16))


def _iq2_xxs(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    return _f16(raw[:, :2], 8), _odd(_words(raw[:, 2:], "<u4")[:, 1::2] >> 28)


def _iq2_of_16(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    return _f16(raw[:, :2], 8), _odd(_nibbles(raw[:, -8:]))


def _iq3_xxs(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    """Numbers of the table are even: their halves are levels."""
    return _f16(raw[:, :2], 2), _odd(_words(raw[:, 66:], "<u4") >> 28)


def _iq3_s(raw: U8) -> tuple[F32, npt.NDArray[Any]]:
    return _f16(raw[:, :2]), _odd(_nibbles(raw[:, -4:]))


#: ggml type -> its blocks.
INDEXED = {
    "iq1_s": Indexed(50, q6_k.FORMAT, _iq1_s),
    "iq1_m": Indexed(56, q6_k.FORMAT, _iq1_m),
    "iq2_xxs": Indexed(66, q8_0.FORMAT, _iq2_xxs),
    "iq2_xs": Indexed(74, q8_0.FORMAT, _iq2_of_16),
    "iq2_s": Indexed(82, q8_0.FORMAT, _iq2_of_16),
    "iq3_xxs": Indexed(98, q6_k.FORMAT, _iq3_xxs),
    "iq3_s": Indexed(110, q6_k.FORMAT, _iq3_s),
}
