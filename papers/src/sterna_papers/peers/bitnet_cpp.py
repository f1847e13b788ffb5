"""bitnet.cpp's I2_S kernels as a participant, compiled from a checkout of microsoft/BitNet.

They need nothing of the llama.cpp in which they are meant to run (`native/peers/bitnet_cpp.cpp`).
Each sums up to 128 pairs of products in int16: inputs near 127 that meet many weights of 1 in a row
overflow there, and the check says how many outputs did.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna_papers.peers.case import F32, Case, Missing, Options, Part, last_words
from sterna_papers.peers.products import Products

__all__ = ["VARIABLE", "PackedProducts", "checkout", "commit", "compiled", "create"]

VARIABLE = "STERNA_BITNET_CPP"
#: Rows that a byte holds, by the participant's variant.
ROWS = {"I2_S": 1, "I2_S rows of 4": 4}
#: Columns that a kernel takes at once.
BLOCK = 128
KERNELS = Path("src/ggml-bitnet-mad.cpp")
#: Headers of ggml that the kernels include, and of which they need what the source below declares.
HEADERS = ("ggml-bitnet.h", "ggml-quants.h", "ggml-cpu-impl.h")
SOURCE = Path(__file__).parent / "source/bitnet_cpp.cpp"
#: The sizes that the kernels have where they are not ACT_PARALLEL.
ROWS_OF_FOUR = "#define ROW_BLOCK_SIZE 128\n#define COL_BLOCK_SIZE 32\n#define PARALLEL_SIZE 8\n"


def checkout(*needed: Path) -> Path:
    """Return the checkout that VARIABLE names; Missing says what of `needed` it lacks."""
    named = os.environ.get(VARIABLE)
    if not named:
        raise Missing(f"no checkout of microsoft/BitNet named: set {VARIABLE}")
    folder = Path(named).resolve()
    for path in needed:
        if not (folder / path).is_file():
            raise Missing(f"{folder} has no {path}")
    return folder


def commit(checkout: Path) -> str:
    """Return a checkout's commit, or "unknown"."""
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return head.stdout.strip() or "unknown"


def compiled(
    source: Path, kernels: Path, library: Path, flags: Sequence[str], compiler: str = "c++"
) -> ctypes.CDLL:
    """Compile `source`, which includes the kernels, for this CPU; Missing says why it cannot be."""
    command = [
        *shlex.split(os.environ.get("CXX", compiler)),
        *"-std=c++20 -O3 -march=native -fopenmp -w -shared -fPIC".split(),
        *flags,
        f'-DSTERNA_KERNELS="{kernels}"',
        *(str(source), "-o", str(library)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise Missing(f"its kernels cannot be compiled: {e}; set CXX to a compiler") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        said = errors[0] if errors else last_words(done.stderr)
        raise Missing(f"its kernels cannot be compiled: {said}")
    return ctypes.CDLL(str(library))


def load(checkout: Path, rows: int, folder: Path) -> ctypes.CDLL:
    """Compile and load the kernels of a layout."""
    for header in HEADERS:
        (folder / header).write_text("")
    include = checkout / "include"
    if rows == 4:
        include = folder / "rows of 4"
        include.mkdir(exist_ok=True)
        (include / "gemm-config.h").write_text(ROWS_OF_FOUR)
    flags = [f"-I{folder}", f"-I{include}", f"-DSTERNA_ROWS={rows}"]
    lib = compiled(SOURCE, checkout / KERNELS, folder / f"bitnet_cpp_{rows}.so", flags)
    lib.bytes_of.restype, lib.bytes_of.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
    lib.pack.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
    lib.multiply.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int] * 4
    return lib


class PackedProducts(Products):
    """Products of weights that are an array of bytes, and of outputs in float32."""

    packed: npt.NDArray[np.uint8]

    def copy(self, count: int) -> None:
        """Make `count` arrays of the packed weight."""
        self.weights = [self.packed.copy() for _ in range(count)]

    def result(self, y: object) -> F32:
        """Return the array, whose weights' scale is 1."""
        return np.asarray(y, np.float32)

    def release(self) -> None:
        self.weights = []


class BitnetProducts(PackedProducts):
    """Its packed ternary products, of one layout."""

    def __init__(self, options: Options, lib: ctypes.CDLL, rows: int) -> None:
        super().__init__(options)
        self.lib = lib
        # Rows of four are for one token; K in whole blocks.
        self.cases = [c for c in self.cases if c.K and c.M and (rows == 1 or c.n == 1)]
        if any(c.K is None or c.K % BLOCK or c.M is None or c.M % 4 for c in self.cases):
            raise RequestError(f"bitnet.cpp needs M in fours and K in blocks of {BLOCK}")

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack four levels a byte, by its own function."""
        self.M, self.K = weight.shape
        values = np.ascontiguousarray(weight, np.float32)
        self.packed = np.zeros(self.lib.bytes_of(self.M, self.K), np.uint8)
        self.lib.pack(values.ctypes.data, self.packed.ctypes.data, self.M, self.K)
        return weight.size // 4

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as int8 with the scale 1."""
        self.x = np.ascontiguousarray(x)
        self.y = np.zeros((len(x), self.M), np.float32)

    def multiply(self, copy: int) -> object:
        """Multiply all tokens."""
        w, x, y = (a.ctypes.data for a in (self.weights[copy], self.x, self.y))
        self.lib.multiply(w, x, y, len(self.x), self.M, self.K, self.options.threads)
        return self.y

    def check(self, case: Case) -> tuple[bool, str]:
        """Compare all outputs with the exact integer product."""
        ok, how = super().check(case)
        return ok, how if ok else f"{how}; its int16 sums may have overflowed"


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant; variant: one of ROWS."""
    folder, rows = checkout(KERNELS), ROWS[options.variant]
    lib = load(folder, rows, Path(options.scratch))
    return commit(folder), options.variant, None, [BitnetProducts(options, lib, rows)]
