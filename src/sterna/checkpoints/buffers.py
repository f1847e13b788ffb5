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
    """Allocate `nbytes` bytes for `what` of a file, in huge pages if the system grants them.

    They are aligned to a line, for kernels and for reading: numpy's own arrays start 16 bytes
    behind a page's begin, where the system's copy runs at a third of its speed (Zen 3). scratch:
    memory to take, with any content, and to return when the last view of the array is gone; without
    it, bytes are zeros. RequestError if there is too little memory.
    """
    try:
        taken = max(nbytes, ALIGNMENT)
        return (scratch.alloc(taken) if scratch else _native.alloc(taken))[:nbytes]
    except MemoryError:  # a sparse file can claim more than the machine has
        raise RequestError(
            f"{file}: {what} must fit into memory, but needs {nbytes} bytes; "
            "use a machine with more memory"
        ) from None
