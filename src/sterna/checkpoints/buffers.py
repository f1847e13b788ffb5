"""Memory that files are read into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checkpoints.safetensors_header import ALIGNMENT
from sterna.errors import RequestError

__all__ = ["buffer"]


def buffer(
    nbytes: int, file: Path, what: str, scratch: _native.Scratch | None = None
) -> npt.NDArray[np.uint8]:
    """`nbytes` bytes for `what` of a file, in huge pages where the system grants them.

    Aligned to a line, as kernels want them, and as reading wants them: where a copy starts 16 bytes
    behind a page's begin, as in numpy's own arrays, the system's runs at a third of its speed
    (Zen 3). scratch: where the memory goes back to when the last view of the array is gone, and may
    come from, with any content; without it they are zeros. RequestError where there is not as much.
    """
    try:
        taken = max(nbytes, ALIGNMENT)
        return (scratch.alloc(taken) if scratch else _native.alloc(taken))[:nbytes]
    except MemoryError:  # a sparse file can claim more than the machine has
        raise RequestError(
            f"{file}: {what} must fit into memory, but needs {nbytes} bytes; "
            "use a machine with more memory"
        ) from None
