"""A code layout: how the codes of a matrix lie in tiles.

Its bit map and its kernels are a C++ header, native/layouts/FAMILY/<name>.h. Python asks the native
core about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import _native

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """A code layout by its name."""

    name: str

    @cached_property
    def _facts(self) -> _native._LayoutFacts:
        return _native.layout_facts(self.name)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self._facts["tile_rows"]

    @property
    def step_k(self) -> int:
        """Consecutive k of one step: K is padded to whole ones, of integers to 64."""
        return self._facts["step_k"]

    @property
    def group_scales(self) -> bool:
        """Whether there are kernels for scales in groups of k."""
        return self._facts["group_scales"]

    @property
    def levels(self) -> int:
        """Levels that a weight brings for its kernels to look up; 0: codes are levels."""
        return self._facts["levels"]

    @property
    def level_offset(self) -> int:
        """What kernels add to a level that they look up, at most 255: it is from -offset to
        offset - 1."""
        return self._facts["level_offset"]

    def tile_bytes(self, K: int) -> int:
        """Count the bytes of a tile of `tile_rows` rows and K columns, padding included."""
        return _native.tile_bytes(self.name, K)

    def n_tiles(self, M: int) -> int:
        """Count the tiles of M rows."""
        return -(-M // self.tile_rows)

    def codes_valid(self, codes: npt.NDArray[np.uint8], max_code: int, threads: int) -> bool:
        """Whether packed codes, in any order, are at most `max_code`."""
        return _native.codes_valid(self.name, codes, max_code, threads)
