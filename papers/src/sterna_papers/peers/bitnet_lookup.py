"""bitnet.cpp's lookup-table kernels as a participant: TL2 on x86, TL1 on ARM.

Its generator writes kernels for given shapes, and its converter packs weights for them. Both are
called from a checkout of microsoft/BitNet. The generator writes next to itself and knows shapes by
the names of models, so a copy of it runs in the scratch folder, with a list of the shapes that are
measured. Tables have sums of int8 inputs in two bytes, so that outputs must be exact.

TL2's kernels for 8 tokens and more (16da220) write the outputs of all tokens to one place. These
rows do not count, and the check says how many outputs differ.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna_papers.peers.bitnet_cpp import PackedProducts, checkout, commit, compiled
from sterna_papers.peers.case import Case, Missing, Options, Part, last_words

__all__ = ["VARIANTS", "create"]

Pack = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.uint8]]

CONVERTER = Path("utils/convert-hf-to-gguf-bitnet.py")
SOURCE = Path(__file__).parent / "source/bitnet_lookup.cpp"
#: Headers of ggml that the checkout's own include, and of which they need what SOURCE declares.
HEADERS = ("ggml.h", "ggml-backend.h")
#: The entry of the generator's list of shapes, and the list's name.
MODEL, LIST = "sterna", "ModelShapeDict"


class Tile(NamedTuple):
    """The generator's parameters of a shape: rows of a tile, columns of a block, rows at once."""

    BM: int
    BK: int
    bm: int


@dataclass(frozen=True)
class Variant:
    """The CPU and compiler that a variant needs, and the shapes that it has kernels for.

    rows: BM -> bm. Those of setup_env.py come first, and then smaller ones that its page about code
    generation allows. BK: columns that are summed in int16. rest: what the columns that are left
    after the last block of BK are a multiple of; without it, none may be left.
    """

    machines: tuple[str, ...]
    vectors: str
    define: str
    compiler: str
    shapes: str
    rows: Mapping[int, int]
    BK: tuple[int, ...]
    rest: int | None = None

    def tile(self, M: int, K: int) -> Tile | None:
        """Choose the parameters of a shape; None if there are none."""
        BM = next((rows for rows in self.rows if M % rows == 0), None)
        fits = (b for b in self.BK if b <= K and K % b % (self.rest or b) == 0)
        BK = next(fits, None)
        return None if BM is None or BK is None else Tile(BM, BK, self.rows[BM])


VARIANTS = {
    "TL2": Variant(
        machines=("x86_64", "AMD64"),
        vectors="x86-64 with AVX2",
        define="GGML_BITNET_X86_TL2",
        compiler="c++",
        shapes="M in 32s, and K in 32s from 96 on",
        rows=dict.fromkeys((256, 320, 160, 128, 96, 64, 32), 32),
        BK=(96,),
        rest=32,
    ),
    "TL1": Variant(
        machines=("aarch64", "arm64"),
        vectors="ARM with NEON",
        define="GGML_BITNET_ARM_TL1",
        compiler="clang++",  # the generated code adds vectors of unlike types, which GCC refuses
        shapes="M in 32s, and K in 64s",
        rows={256: 32, 320: 64, 160: 32, 128: 64, 64: 64, 32: 32},
        BK=(128, 64),
    ),
}


def tiles(name: str, cases: list[Case]) -> dict[tuple[int, int], Tile]:
    """Choose the parameters of all shapes; RequestError for one that the kernels cannot do."""
    made = {}
    for M, K in dict.fromkeys((c.M, c.K) for c in cases if c.M and c.K):
        tile = VARIANTS[name].tile(M, K)
        if tile is None:
            raise RequestError(f"{name} needs {VARIANTS[name].shapes}, but got {M}x{K}")
        made[M, K] = tile
    return made


def generate(name: str, folder: Path, source: Path, shapes: Mapping[tuple[int, int], Tile]) -> Path:
    """Run the checkout's generator for these shapes; returns the header that it wrote.

    Next to the header it writes kernel_config.ini, which the converter reads.
    """
    script = folder / "utils" / source.name
    for path in (script.parent, folder / "include"):
        path.mkdir(parents=True, exist_ok=True)
    tree = ast.parse(source.read_text())
    lists = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [LIST]
    ]
    if len(lists) != 1:
        raise Missing(f"its generator {source.name} has no list {LIST}, or several")
    lists[0].value = ast.parse(repr({MODEL: [list(s) for s in shapes]}), mode="eval").body
    script.write_text(ast.unparse(tree))
    command = [sys.executable, str(script), "--model", MODEL]
    for parameter in Tile._fields:
        command += [f"--{parameter}", ",".join(str(getattr(t, parameter)) for t in shapes.values())]
    done = subprocess.run(command, capture_output=True, text=True)
    header = folder / "include/bitnet-lut-kernels.h"
    if done.returncode or not header.exists():
        raise Missing(f"its generator {source.name} failed: {last_words(done.stderr)}")
    return header


def packer(name: str, converter: Path) -> Pack:
    """Take the converter's functions for a variant, without the packages that it imports."""
    ending = f"_{name.lower()}"
    tree = ast.parse(converter.read_text())
    functions: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.endswith(ending)
    ]
    names: dict[str, Any] = {"np": np, "Tuple": tuple}
    exec(compile(ast.Module(functions, []), str(converter), "exec"), names)
    try:
        pack: Pack = names[f"preprocess_weights{ending}"]
    except KeyError as e:
        raise Missing(f"its converter {converter.name} has no function {e.args[0]}") from None
    return pack


class LookupProducts(PackedProducts):
    """Its products by tables."""

    def __init__(self, options: Options, checkout: Path) -> None:
        super().__init__(options)
        self.name = options.variant
        variant = VARIANTS[self.name]
        # TL1's kernels are for one token.
        self.cases = [c for c in self.cases if self.name == "TL2" or c.n == 1]
        self.tiles = tiles(self.name, self.cases)
        self.convert = packer(self.name, checkout / CONVERTER)
        self.folder = Path(options.scratch) / self.name
        header = generate(self.name, self.folder, checkout / generator(self.name), self.tiles)
        for empty in HEADERS:
            (self.folder / empty).write_text("")
        self.lib = compiled(
            SOURCE,
            header,
            self.folder / f"{self.name}.so",
            [f"-I{self.folder}", f"-I{checkout / 'include'}", f"-D{variant.define}"],
            variant.compiler,
        )
        self.lib.table_bytes.restype = ctypes.c_int64
        self.lib.table_bytes.argtypes = [ctypes.c_int] * 3
        self.lib.multiply.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int] * 6

    def pack(self, weight: npt.NDArray[np.int8], n: int) -> int:
        """Pack by its converter, which reads the parameters of the shape from a file."""
        self.M, self.K = weight.shape
        self.tile = self.tiles[self.M, self.K]
        with contextlib.chdir(self.folder):
            packed = self.convert(weight.astype(np.float32))
        self.packed = np.ascontiguousarray(packed, np.uint8).reshape(-1)
        pairs = self.K % self.tile.BK if self.name == "TL2" else self.K
        # Three weights take a sign and 4 bits, two take 4 bits; the converter pads its array.
        return int(self.M * (self.K - pairs) * 5 // 24 + self.M * pairs // 4)

    def input(self, x: npt.NDArray[np.int8]) -> None:
        """Take x as float32, which the tables round to int8 with the scale 1."""
        self.x = x.astype(np.float32)
        self.y = np.zeros((len(x), self.M), np.float32)
        size = self.lib.table_bytes(len(x), self.K, self.tile.BK)
        self.tables = np.zeros(size, np.int8)

    def multiply(self, copy: int) -> object:
        """Make the tables, and multiply all tokens."""
        pointers = (a.ctypes.data for a in (self.weights[copy], self.x, self.y, self.tables))
        sizes = (len(self.x), self.M, self.K, self.tile.BM, self.tile.BK)
        self.lib.multiply(*pointers, *sizes, self.options.threads)
        return self.y

    def check(self, case: Case) -> tuple[bool, str]:
        """Compare all outputs with the exact integer product, and say how far off they are."""
        ok, how = super().check(case)
        if ok:
            return ok, how
        error = np.abs(self.y - self._y)
        places = f" (its kernels of {self.name} for 8 tokens write all to one place)"
        return ok, f"{how}, by up to {error.max():.6g}{places if case.n >= 8 else ''}"


def generator(name: str) -> Path:
    """Return the path of a variant's generator in a checkout."""
    return Path(f"utils/codegen_{name.lower()}.py")


def create(options: Options) -> tuple[str, str, str | None, list[Part]]:
    """Make the participant; variant: one of VARIANTS."""
    name = options.variant
    if platform.machine() not in VARIANTS[name].machines:
        raise Missing(f"{name} needs {VARIANTS[name].vectors}, and this is {platform.machine()}")
    folder = checkout(generator(name), CONVERTER)
    return commit(folder), name, None, [LookupProducts(options, folder)]
