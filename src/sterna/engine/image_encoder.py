"""`ImageEncoder`: rows of an image's tokens, computed once and kept for following requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sterna import _native, formats
from sterna.engine.kv_cache.sequence import pages_of
from sterna.errors import NonFiniteError
from sterna.graph import Graph, identity
from sterna.models.vision.tower import Grid, Tower
from sterna.ops import is_fast
from sterna.runtime import Threads

__all__ = ["ImageEncoder", "ProcessedImage"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

#: Bytes of rows that are kept, those that were used last. A request needs them until its prompt is
#: computed; later ones find keys and values in the prefix cache.
MOST_KEPT = 256 << 20
#: Keys and values of patches, in towers of floats and of integers.
KV_DTYPES = ("f32", "i16")


class ProcessedImage(Protocol):
    """An image as a tower takes it, such as `sterna.images.ProcessedImage`.

    pixels: float32 [tiles, channels, height, width], or rows of patches; grid: as `Encoder.rows`
    takes it; tokens: rows that the tower makes; digest: equal for equal images alone.
    """

    @property
    def pixels(self) -> F32:
        """The input of the tower."""

    @property
    def grid(self) -> Grid:
        """Frames, rows and columns of patches or tiles."""

    @property
    def tokens(self) -> int:
        """Rows that the tower makes."""

    @property
    def digest(self) -> bytes:
        """Equal for equal images alone."""


class ImageEncoder:
    """Runs a model's tower.

    Rows have the same bits with any number of threads and whatever else is computed. threads, isa:
    of the engine; deterministic: as in `LLM`. Any thread may call.
    """

    def __init__(
        self, tower: Tower, threads: Threads, isa: str, deterministic: bool | None
    ) -> None:
        self.tower = tower
        self._threads, self._isa, self._deterministic = threads, isa, deterministic
        self._graphs = (tower.encoder.graph, tower.projector)
        self._encoder, self._projector = (
            graph.compile(self._fast(graph)) for graph in self._graphs
        )
        self._kv_dtype = KV_DTYPES[tower.encoder.graph.rounds_inputs]
        self._heads = [(h.n_kv_heads, h.head_dim) for h in tower.encoder.graph.kv_heads[:1]]
        self._kept: OrderedDict[bytes, F32] = OrderedDict()
        self._lock = threading.Lock()

    def _fast(self, graph: Graph) -> bool:
        """Whether layers use the unit's bf16 products."""
        format = graph.linears[-1].weight.format.name
        return graph.can_be_fast and is_fast(formats.get(format), self._isa, self._deterministic)

    @cached_property
    def identity(self) -> str:
        """All that the bits of rows depend on, except pixels.

        The first access reads all weights.
        """
        parts = [identity.digest(graph) for graph in self._graphs]
        if any(map(self._fast, self._graphs)):
            parts.append(self._isa)
        return " ".join(parts)

    def rows(self, image: ProcessedImage) -> F32:
        """Return the rows of an image's tokens, float32 [image.tokens, tower.width]."""
        with self._lock:
            found = self._kept.get(image.digest)
            if found is None:
                found = self._encoded(image)
                self._keep(image.digest, found)
            self._kept.move_to_end(image.digest)
            return found

    def _keep(self, digest: bytes, rows: F32) -> None:
        self._kept[digest] = rows
        total = sum(one.nbytes for one in self._kept.values())
        while total > MOST_KEPT and len(self._kept) > 1:
            total -= self._kept.popitem(last=False)[1].nbytes

    def _encoded(self, image: ProcessedImage) -> F32:
        tower, made = self.tower, list[F32]()
        tiles = image.pixels if image.pixels.ndim == 4 else [image.pixels]
        places = tower.encoder.coordinates
        at = None if places is None else places(image.grid)
        for tile in tiles:
            features = self._run(self._encoder, tower.encoder.rows(tile, image.grid), at)
            made.append(self._run(self._projector, tower.merged(features, image.grid)))
        return np.concatenate(made)

    def _run(self, program: _native.Program, rows: F32, coordinates: I32 | None = None) -> F32:
        n = len(rows)
        pages = np.arange(pages_of(n), dtype=np.int32)
        cache = _native.KvCache(self._heads, len(pages), self._kv_dtype)
        try:
            out, *_ = program.run(
                cache, np.zeros(n, np.int32), [(0, n, n, pages)], self._isa, self._threads,
                previous_hidden_states=np.ascontiguousarray(rows, np.float32),
                images=(None, [], coordinates),
            )  # fmt: skip
        except FloatingPointError as e:
            raise NonFiniteError(
                f"{e}: activations of an image must be finite, but got NaN or infinity; the "
                "tower's weights are damaged"
            ) from None
        return out
