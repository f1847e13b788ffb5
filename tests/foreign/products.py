"""The bits of every format's linear layers, for a machine too slow for a numpy reference.

    python tests/foreign/products.py > expected.json   # here, with the default unit
    python tests/foreign/products.py expected.json     # there, with STERNA_ISA

The second exits with 1 where bits differ. Shapes end within tiles, native vectors and blocks of
tokens. Weights and activations are whole numbers from Philox times powers of two (digests.py says
why these are the same everywhere). test_ops.py compares the unit that runs here with numpy.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from digests import Drawn

from sterna import formats, ops
from sterna.formats import Format
from sterna.formats.scales import SuperBlockScales
from sterna.formats.scales.superblocks import SUPER_K

# M: one row, and rests of tiles of 48, 64 and 128. K: a line, and beyond; whole super-blocks.
SHAPES = [(1, 64), (50, 307), (130, 256), (200, 1280)]
TOKENS = [*range(1, 9), 12, 16, 17, 18, 23, 40]


def activations(drawn: Drawn, N: int, K: int) -> np.ndarray:
    """float32 [N, K]: rows and groups of 32 differ in size, one is zero, one has an outlier."""
    x = np.ldexp(drawn.whole(-(1 << 20), 1 << 20, N, K).astype(np.float32), -18)
    exponents = drawn.whole(-3, 3, N, -(-K // 32)).astype(np.int32)
    x = np.ldexp(x, np.repeat(exponents, 32, axis=1)[:, :K])
    if N > 2:
        x[1], x[2, K - 1] = 0, 1000
    return x


def fits(f: Format, K: int) -> bool:
    """Whether K is whole groups."""
    group = SUPER_K if isinstance(f.scales, SuperBlockScales) else f.scales.group
    return not group or K % group == 0


def products(name: str) -> Iterator[tuple[str, str]]:
    """Each shape that a format takes, and the SHA-256 of its outputs for some numbers of tokens."""
    f = formats.get(name)
    for seed, (M, K) in enumerate(SHAPES):
        if not fits(f, K):
            continue
        drawn, sha = Drawn(f, f, seed=seed), hashlib.sha256()
        weight = drawn._weight(f, M, K)
        for N in TOKENS:
            y = ops.linear(activations(drawn, N, K), weight, threads=1)
            assert np.isfinite(y).all(), (name, M, K, N)
            sha.update(y.astype("<f4").tobytes())
        yield f"{name} {M}x{K}", sha.hexdigest()


def names() -> Iterator[str]:
    """All formats; those with scales in rows also with scales in groups."""
    for name in formats.names():
        yield name
        if formats.get(name).takes_groups:
            yield f"{name}:g64"


def main(arguments: list[str]) -> int:
    """0 unless a digest differs from that of the file."""
    found = dict(product for name in names() for product in products(name))
    if not arguments:
        print(json.dumps(found, indent=1))
        return 0
    expected = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    keys = expected.keys() | found.keys()
    wrong = sorted(key for key in keys if expected.get(key) != found.get(key))
    unit = os.environ.get("STERNA_ISA", "the default unit")
    right = f"{len(keys) - len(wrong)} of {len(keys)} shapes of formats have the expected bits"
    print(f"{unit}: {right}", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
