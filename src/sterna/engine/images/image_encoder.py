"""`ImageEncoder`: rows of an image's tokens, computed once and kept for following requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.engine.images.encoding_costs import EncodingCosts
from sterna.engine.images.image_encoding import ImageEncoding, ProcessedImage, TowerPrograms
from sterna.errors import NonFiniteError
from sterna.graph import Graph, identity
from sterna.models.vision.tower import Tower
from sterna.ops import is_fast
from sterna.runtime import Threads

__all__ = ["MOST_KEPT", "ImageEncoder"]

F32 = npt.NDArray[np.float32]

#: Bytes of rows that are kept, those that were used last. A request needs them until its prompt is
#: computed; later ones find keys and values in the prefix cache.
MOST_KEPT = 256 << 20
#: Keys and values of patches, in towers of floats and of integers.
KV_DTYPES = ("f32", "i16")


class ImageEncoder:
    """Runs a model's tower, on one image at a time.

    Rows have the same bits with any number of threads, however the work is cut and whatever else is
    computed. threads, isa: the engine's; deterministic: as in `LLM`. Any thread may call.
    """

    def __init__(
        self, tower: Tower, threads: Threads, isa: str, deterministic: bool | None
    ) -> None:
        self.tower = tower
        self._isa, self._deterministic = isa, deterministic
        self._graphs = (tower.encoder.graph, tower.projector)
        encoder, projector = (g.compile_in_parts(self._fast(g)) for g in self._graphs)
        heads = tower.encoder.graph.kv_heads
        kv_dtype = KV_DTYPES[tower.encoder.graph.rounds_inputs]
        self._programs = TowerPrograms(tower, encoder, projector, heads, kv_dtype, threads, isa)
        self._costs = EncodingCosts()
        self._kept: OrderedDict[bytes, F32] = OrderedDict()
        self._now: ImageEncoding | None = None
        self._lock = threading.Lock()
        self._token_s = self._spent_s = 0.0  # of the last image; of the one that is being encoded
        #: Images that were encoded.
        self.encoded: int = 0

    def _fast(self, graph: Graph) -> bool:
        """Whether layers use the unit's bf16 products."""
        format = graph.linears[-1].weight.format.name
        return graph.can_be_fast and is_fast(formats.get(format), self._isa, self._deterministic)

    @cached_property
    def identity(self) -> str:
        """All that the bits of rows depend on, except pixels.

        The first access reads all weights.
        """
        tables = (self.tower.encoder.tables, self.tower.tables)
        parts = list(map(identity.digest, self._graphs, tables))
        if any(map(self._fast, self._graphs)):
            parts.append(self._isa)
        return " ".join(parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept, and of the image that is being encoded."""
        now = self._now
        cached = sum(rows.nbytes for rows in list(self._kept.values()))
        return cached + (0 if now is None else now.nbytes)

    def has(self, image: ProcessedImage) -> bool:
        """Whether an image's rows are there."""
        return image.digest in self._kept

    def has_room(self, image: ProcessedImage, in_use: Collection[bytes]) -> bool:
        """Whether rows of another image may be kept next to those in use; if none is, any may."""
        in_use_bytes = sum(
            rows.nbytes for digest, rows in list(self._kept.items()) if digest in in_use
        )
        return not in_use_bytes or in_use_bytes + 4 * image.tokens * self.tower.width <= MOST_KEPT

    def seconds(self, tokens: int) -> float:
        """Predict the seconds to encode images with `tokens` tokens; 0 for the first image."""
        return tokens * self._token_s

    @property
    def encoding(self) -> bytes | None:
        """The digest of the image that is being encoded."""
        now = self._now
        return None if now is None else now.image.digest

    def stop(self) -> None:
        """Give up the image that is being encoded; a slice that is running is lost at its end."""
        self._now = None

    def rows(self, image: ProcessedImage) -> F32:
        """Return the rows of an image's tokens, float32 [image.tokens, tower.width]."""
        while True:
            with self._lock:
                cached = self._kept.get(image.digest)
                if cached is not None:
                    self._kept.move_to_end(image.digest)
                    return cached
            self.encode(image)

    def encode(
        self, image: ProcessedImage, ms: float = float("inf"), in_use: Collection[bytes] = ()
    ) -> None:
        """Encode for about `ms` milliseconds: this image, or the one that is not complete yet.

        in_use: digests of other images whose rows must be kept. Raises NonFiniteError naming the
        operation.
        """
        began = time.perf_counter()
        with self._lock:
            now = self._now
            if now is None or now.broken:
                if self.has(image):
                    return
                self._spent_s = 0.0
                self._now = now = ImageEncoding(self._programs, image)
            try:
                self._go_on(now, ms, began)
            except NonFiniteError:
                self._now = None
                if now.image.digest == image.digest:
                    raise
                return  # a request of that image meets the error itself
            if now.following is None and self._now is now:
                self._keep(now.image.digest, now.rows(), in_use)
                self._token_s = self._spent_s / now.image.tokens
                self._now = None

    def _go_on(self, now: ImageEncoding, ms: float, began: float) -> None:
        first = True
        while (following := now.following) is not None and self._now is now:
            since = time.perf_counter()
            rows = self._costs.rows(following, ms - (since - began) * 1e3, first)
            if not rows:
                return
            now.run(rows)
            spent = time.perf_counter() - since
            self._costs.learn(following, rows, spent * 1e3)
            self._spent_s += spent
            first = False

    def _keep(self, digest: bytes, rows: F32, in_use: Collection[bytes]) -> None:
        self._kept[digest] = rows
        self.encoded += 1
        total = sum(one.nbytes for one in self._kept.values())
        for old in list(self._kept)[:-1]:
            if total > MOST_KEPT and old not in in_use:
                total -= self._kept.pop(old).nbytes
