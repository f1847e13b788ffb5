from typing import Any

import numpy.typing as npt

def isas() -> list[tuple[str, str, bool]]: ...
def kernels(isa: str) -> list[str]: ...
def unrolls(kernel: str, isa: str) -> list[tuple[int, int, int]]: ...
def matmul(
    kernel: str,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    K: int,
    isa: str,
    threads: int,
    unroll: tuple[int, int, int],
    special: bool = True,
) -> npt.NDArray[Any]: ...
def time(
    kernel: str,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    K: int,
    isa: str,
    threads: int,
    unroll: tuple[int, int, int],
    special: bool,
    rounds: int,
) -> list[float]: ...
