"""Memory that files are read into."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checkpoints.safetensors_header import ALIGNMENT
from sterna.errors import RequestError
from sterna.files.system import PROCFS

__all__ = ["buffer", "huge_page_share"]

_MAPPINGS = PROCFS / "self/smaps"
_SAMPLE_BYTES = 16 << 20


def buffer(
    nbytes: int, file: Path, what: str, scratch: _native.Scratch | None = None
) -> npt.NDArray[np.uint8]:
    """Allocate `nbytes` bytes for `what` of a file, in huge pages if the system grants them.

    They are aligned to a line, for kernels and for reading: numpy's own arrays start 16 bytes after
    a page's start, where the system's copy runs at a third of its speed (Zen 3). scratch: memory to
    take, with any content, and to return when the last view of the array is gone; without it, bytes
    are zeros. RequestError if there is too little memory.
    """
    try:
        taken = max(nbytes, ALIGNMENT)
        return (scratch.alloc(taken) if scratch else _native.alloc(taken))[:nbytes]
    except MemoryError:  # a sparse file can claim more than the machine has
        raise RequestError(
            f"{file}: {what} must fit into memory, but needs {nbytes} bytes; "
            "use a machine with more memory"
        ) from None


def huge_page_share() -> float | None:
    """Return the share of new arrays that is in huge pages; None if the system does not say.

    A container, a kernel without them or a host short of memory may grant none.
    """
    sample = _native.alloc(_SAMPLE_BYTES)
    sample[::4096] = 1
    address, inside, sizes = sample.ctypes.data, False, dict[str, int]()
    try:
        lines = _MAPPINGS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, *values = line.split()
        if name.endswith(":"):
            if inside and values[-1:] == ["kB"]:
                sizes[name] = int(values[0])
        else:
            begin, _, end = name.partition("-")
            inside = int(begin, 16) <= address < int(end, 16)
    resident, huge = sizes.get("Rss:", 0), sizes.get("AnonHugePages:")
    return None if huge is None or resident == 0 else round(huge / resident, 3)
