"""The builds that the power-of-two figures compare.

They are the module itself, and builds of its kernels' source by the compilers of this machine, with
the flags of the paper's Table 3.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sterna.bench.machine import Progress
from sterna.errors import RequestError, reason
from sterna_papers import _kernels, pot
from sterna_papers.pot.tuning import Unroll

__all__ = ["UNROLLS", "Build", "Compiled", "Module", "open_builds", "run_tool"]

#: Unrollings that other compilers compile: all 23 would take some minutes each.
UNROLLS: tuple[Unroll, ...] = (
    (1, 1, 1), (1, 1, 4), (1, 4, 1), (1, 4, 4), (2, 2, 2), (2, 4, 2), (4, 1, 2), (4, 2, 1),
    (4, 2, 2), (4, 4, 1),
)  # fmt: skip
FLAGS = ("-O3", "-march=native", "-ffast-math")  # Table 3
NO_VECTORS = {  # Table 3: the flags that keep a compiler from vectorising by itself
    "gcc": ("-fno-tree-vectorize", "-fno-tree-slp-vectorize"),
    "clang": ("-fno-vectorize", "-fno-slp-vectorize"),
}
#: What -march=native may use of vectors, less than all: the source takes the best there is.
UNIT_FLAGS: dict[str, tuple[str, ...]] = {
    "avx512": (), "avx2": ("-mno-avx512f",), "scalar": ("-mno-avx512f", "-mno-avx2"), "neon": (),
    "rvv": ("-march=rv64gcv",),
}  # fmt: skip
AUTO = ("-fopenmp-simd", '-DSTERNA_POT_SUFFIX="-auto"')
COMPILE_LIMIT_S = 600


class Build(Protocol):
    """Kernels from one compiler. name: "module" or the compiler's name; compiler: with version."""

    name: str
    compiler: str

    def kernels(self) -> list[str]:
        """List the kernels' names, as `_kernels.kernels` does."""

    def unrolls(self, kernel: str) -> list[Unroll]:
        """List the unrollings of a kernel."""

    def seconds(
        self, kernel: str, a: Any, b: Any, K: int, unroll: Unroll, special: bool, rounds: int
    ) -> list[float]:
        """Time each of `rounds` products of a [N, K] and b [M, words] on one thread, in seconds."""


class Module:
    """The kernels of Sterna's own module for an instruction set."""

    name = "module"
    compiler = "Sterna's module"

    def __init__(self, isa: str) -> None:
        self._isa = isa

    def kernels(self) -> list[str]:
        return _kernels.kernels(self._isa)

    def unrolls(self, kernel: str) -> list[Unroll]:
        """List the unrollings of a kernel."""
        return _kernels.unrolls(kernel, self._isa)

    def seconds(
        self, kernel: str, a: Any, b: Any, K: int, unroll: Unroll, special: bool, rounds: int
    ) -> list[float]:
        """Time each of `rounds` products, in seconds."""
        return _kernels.time(kernel, a, b, K, self._isa, 1, unroll, special, rounds)


class Compiled:
    """The kernels of two shared objects from a compiler.

    Kernels named "-auto" come from the second, which the compiler may vectorise; all others come
    from the first.
    """

    def __init__(self, name: str, compiler: str, objects: Sequence[Path]) -> None:
        self.name, self.compiler = name, compiler
        self._unrolls: dict[str, list[Unroll]] = {}
        self._library: dict[str, ctypes.CDLL] = {}
        for path in objects:
            library = ctypes.CDLL(str(path))
            library.sterna_pot_kernel.restype = ctypes.c_char_p
            library.sterna_pot_isa.restype = ctypes.c_char_p
            factors = (ctypes.c_int * 3)()
            index = 0
            while (text := library.sterna_pot_kernel(index, factors)) is not None:
                kernel, index = text.decode(), index + 1
                if self._library.setdefault(kernel, library) is library:
                    u0, u1, u2 = factors
                    self._unrolls.setdefault(kernel, []).append((u0, u1, u2))

    @property
    def isa(self) -> str:
        """The instruction set that the source chose by the compiler's flags."""
        text: bytes = self._library["f32"].sterna_pot_isa()
        return text.decode()

    def kernels(self) -> list[str]:
        return list(self._unrolls)

    def unrolls(self, kernel: str) -> list[Unroll]:
        """List the unrollings of a kernel."""
        return self._unrolls[kernel]

    def product(
        self, kernel: str, a: Any, b: Any, K: int, unroll: Unroll, special: bool
    ) -> npt.NDArray[Any]:
        """Compute the product [N, M]."""
        c = np.empty((len(a), len(b)), a.dtype)
        self._call(kernel, a, b, c, K, unroll, special, len(a))
        return c

    def seconds(
        self, kernel: str, a: Any, b: Any, K: int, unroll: Unroll, special: bool, rounds: int
    ) -> list[float]:
        """Time each of `rounds` products, in seconds, minus the time of a call without rows."""
        c = np.empty((len(a), len(b)), a.dtype)

        def timed(N: int) -> float:
            start = time.perf_counter()
            self._call(kernel, a, b, c, K, unroll, special, N)
            return time.perf_counter() - start

        nothing = statistics.median(timed(0) for _ in range(min(rounds, 20)))
        return [max(0.0, timed(len(a)) - nothing) for _ in range(rounds)]

    def _call(
        self, kernel: str, a: Any, b: Any, c: Any, K: int, unroll: Unroll, special: bool, N: int
    ) -> None:
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (a, b, c))
        sizes = (ctypes.c_int64(n) for n in (N, len(b), K))
        status = self._library[kernel].sterna_pot_matmul(
            kernel.encode(), *pointers, *sizes, *map(ctypes.c_int, (*unroll, special))
        )
        assert status == 0, (kernel, unroll)


@contextlib.contextmanager
def open_builds(
    isa: str,
    compilers: Sequence[str],
    progress: Progress,
    unrolls: Sequence[Unroll] = UNROLLS,
) -> Iterator[tuple[list[Build], dict[str, str]]]:
    """Open the module and a build by each compiler; also return why compilers are missing.

    unrolls: the unrollings to compile. The builds exist until the block ends.
    """
    builds: list[Build] = [Module(isa)]
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="sterna-pot-") as folder:
        for number, name in enumerate(dict.fromkeys(compilers)):
            path = shutil.which(name)
            if path is None:
                missing[name] = "not found, so not measured"
                continue
            progress(f"compiling the kernels with {name}")
            try:
                builds.append(_compiled(name, path, Path(folder) / str(number), isa, unrolls))
            except RequestError as error:
                missing[name] = str(error)
        yield builds, missing


def _compiled(name: str, path: str, folder: Path, isa: str, unrolls: Sequence[Unroll]) -> Compiled:
    """Compile the kernels with this compiler; RequestError if it cannot."""
    version = run_tool([path, "--version"])
    family = "clang" if "clang" in version else "gcc"
    folder.mkdir()
    flags = ["-std=c++20", *FLAGS, *UNIT_FLAGS[isa], "-fPIC", "-w", "-c"]
    source = str(pot.source() / "standalone.cpp")
    listed = " ".join(f"U({u0},{u1},{u2})" for u0, u1, u2 in unrolls)
    libraries = []
    for kind, extra in (("plain", NO_VECTORS[family]), ("auto", AUTO)):
        chosen = listed if kind == "plain" else "U(1,1,1)"
        compiled, linked = folder / f"{kind}.o", folder / f"{kind}.so"
        run_tool(
            [path, *flags, *extra, f"-DSTERNA_POT_ONLY(U)={chosen}", source, "-o", str(compiled)]
        )
        # Linking is a command of its own without -ffast-math. With that flag, older compilers link
        # code that turns subnormal numbers off in the process that loads the object.
        run_tool([path, "-shared", str(compiled), "-o", str(linked)])
        libraries.append(linked)
    number = re.search(r"\d+\.\d+(\.\d+)*", version)
    build = Compiled(name, f"{name} {number[0]}" if number else name, libraries)
    if build.isa != isa:
        raise RequestError(f"makes kernels for {build.isa}, but {isa} is measured")
    return build


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Run a compiler or one of its tools on `text` and return its output; RequestError."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMPILE_LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RequestError(f"took more than {COMPILE_LIMIT_S} s to compile") from None
    except OSError as error:
        raise RequestError(f"cannot run: {reason(error)}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise RequestError(f"does not compile the kernels: {' '.join(lines[0].split())[:200]}")
    return done.stdout
