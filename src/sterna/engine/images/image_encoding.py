"""`ImageEncoding`: the encoding of one image, some rows of a part of the tower at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.kv_cache.sequence import pages_of
from sterna.errors import NonFiniteError
from sterna.graph import Heads, Part, Parts
from sterna.models.vision.tower import Grid, Tower
from sterna.runtime import Threads

__all__ = ["ImageEncoding", "ProcessedImage", "TowerPrograms"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class ProcessedImage(Protocol):
    """An image as a tower takes it, such as `sterna.images.ProcessedImage`.

    pixels: float32 [tiles, channels, height, width], or rows of patches; grid: as `Encoder.rows`
    takes it; tokens: rows that the tower makes; digest: a hash of the pixels.
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
        """A hash of the pixels: equal images have the same one."""


@dataclass(frozen=True, eq=False)
class TowerPrograms:
    """Programs of a tower's encoder and projector, and their runtime.

    heads, kv_dtype: of the encoder.
    """

    tower: Tower
    encoder: Parts
    projector: Parts
    heads: Sequence[Heads]
    kv_dtype: str
    threads: Threads
    isa: str


class Slice(NamedTuple):
    """Rows of a part that are computed next. total: rows that these see; macs: multiply-adds per
    row."""

    part: Part
    left: int
    total: int

    @property
    def kind(self) -> tuple[int, int, bool]:
        """A key that is equal for parts whose rows take the same time."""
        return self.part.macs, self.part.seen, self.part.windowed

    @property
    def macs(self) -> int:
        """Multiplications of a row."""
        return self.part.macs + self.part.seen * self.total


class ImageEncoding:
    """An image on its way through a tower. Any number of rows at a time gives the same bits.

    It has floats for each row of a tile: what lies between two parts, keys and values.
    """

    def __init__(self, programs: TowerPrograms, image: ProcessedImage) -> None:
        self.image = image
        self._programs = programs
        self._made = list[F32]()
        #: Whether a run did not come to its end, after which nothing can go on.
        self.broken: bool = False
        self._passes = self._all_passes()
        self._pass: _Pass | None = next(self._passes)

    @property
    def nbytes(self) -> int:
        """Bytes that it has now, the image's pixels left out."""
        now = self._pass
        return sum(one.nbytes for one in self._made) + (now.nbytes if now else 0)

    @property
    def following(self) -> Slice | None:
        """The slice that `run` computes next; None at the end."""
        return None if self._pass is None else self._pass.following

    def run(self, n_rows: int) -> None:
        """Compute at most `n_rows` more rows.

        Raises NonFiniteError naming the operation, and any interrupt.
        """
        assert self._pass is not None
        self.broken = True
        self._pass.run(n_rows)
        if self._pass.following is None:
            self._pass = None  # its memory goes before the next one's comes
            self._pass = next(self._passes, None)
        self.broken = False

    def rows(self) -> F32:
        """Return the rows of the image's tokens at the end, float32 [tokens, tower.width]."""
        return self._programs.tower.arranged(np.concatenate(self._made), self.image.grid)

    def _all_passes(self) -> Iterator[_Pass]:
        """Yield what must be run to its end, in turn."""
        programs, image = self._programs, self.image
        tower = programs.tower
        places, windows = tower.encoder.coordinates, tower.encoder.windows
        at = None if places is None else places(image.grid)
        each = () if windows is None else windows(image.grid)
        tiles = image.pixels if image.pixels.ndim == 4 else [image.pixels]
        for tile in tiles:
            rows = tower.encoder.rows(tile, image.grid)
            features = yield from self._through(programs.encoder, rows, at, each)
            rows = tower.merged(features, image.grid)
            self._made.append((yield from self._through(programs.projector, rows)))

    def _through(
        self, parts: Parts, rows: F32, coordinates: I32 | None = None, windows: Sequence[int] = ()
    ) -> Generator[_Pass, None, F32]:
        one = _Pass(self._programs, parts, rows, coordinates, windows)
        yield one
        return one.made


class _Block(NamedTuple):
    """Rows [begin, end) that see each other, and the pages of their keys and values."""

    begin: int
    end: int
    pages: I32

    def step(self, begin: int, end: int, attends: bool, last: bool) -> tuple[int, int, int, I32]:
        """Return some of its rows as a step of a sequence; last: they are returned.

        A row sees what lies before the last of the step: where all rows are to be seen, the step
        stands at their end. It stores nothing there.
        """
        n = end - begin
        start = self.end - self.begin - n if attends else begin - self.begin
        return start, n, n if last else 0, self.pages


def _blocks(lengths: Sequence[int]) -> list[_Block]:
    """Return blocks of so many rows, in turn, each with pages of its own."""
    blocks, row, page = list[_Block](), 0, 0
    for length in lengths:
        count = pages_of(length)
        pages = np.arange(page, page + count, dtype=np.int32)
        blocks.append(_Block(row, row + length, pages))
        row, page = row + length, page + count
    return blocks


def _n_pages(blocks: Sequence[_Block]) -> int:
    return sum(len(block.pages) for block in blocks)


class _Pass:
    """Rows on their way through the parts of a program. made: float32 [rows, columns], at the
    end. windows: how many rows each has, in turn."""

    def __init__(
        self,
        programs: TowerPrograms,
        parts: Parts,
        rows: F32,
        coordinates: I32 | None = None,
        windows: Sequence[int] = (),
    ) -> None:
        self._programs, self._parts, self._coordinates = programs, parts, coordinates
        self._kept = np.empty((len(rows), parts.width), np.float32)
        self._kept[:, : rows.shape[1]] = rows
        self._whole = _blocks([len(rows)])
        self._windows = _blocks(windows)
        n_pages = max(map(_n_pages, (self._whole, self._windows)))
        heads = [(h.n_kv_heads, h.head_dim) for h in programs.heads]
        self._kv_bytes = sum(_native.kv_bytes(1, *one, programs.kv_dtype) for one in heads)
        self._cache = _native.KvCache(heads, n_pages, programs.kv_dtype)
        self.made: F32 = np.empty((len(rows), parts.columns), np.float32)
        self._at, self._row = 0, 0

    @property
    def nbytes(self) -> int:
        """Bytes of its rows, and of their keys and values."""
        return self._kept.nbytes + self.made.nbytes + len(self._kept) * self._kv_bytes

    @property
    def following(self) -> Slice | None:
        """As `ImageEncoding.following`."""
        if self._at == len(self._parts.parts):
            return None
        part, n = self._parts.parts[self._at], len(self._kept)
        seen = max(one.end - one.begin for one in self._blocks_of(part))
        return Slice(part, n - self._row, seen)

    def _blocks_of(self, part: Part) -> Sequence[_Block]:
        return self._windows if part.windowed else self._whole

    def run(self, n_rows: int) -> None:
        """As `ImageEncoding.run`."""
        part, total = self._parts.parts[self._at], len(self._kept)
        begin, end = self._row, min(self._row + n_rows, total)
        n, last = end - begin, self._at == len(self._parts.parts) - 1
        sequences = [
            one.step(max(begin, one.begin), min(end, one.end), part.attends, last)
            for one in self._blocks_of(part)
            if one.begin < end and one.end > begin
        ]
        at = None if self._coordinates is None else self._coordinates[begin:end]
        try:
            out, *_ = self._parts.program.run(
                self._cache,
                np.zeros(n, np.int32),
                sequences,
                self._programs.isa,
                self._programs.threads,
                images=(None, [], at),
                kept=self._kept[begin:end],
                part=(part.begin, part.end),
            )
        except FloatingPointError as e:
            raise NonFiniteError(
                f"{e}: activations of an image must be finite, but got NaN or infinity; the "
                "tower's weights are damaged"
            ) from None
        if last:
            self.made[begin:end] = out
        self._at, self._row = (self._at + 1, 0) if end == total else (self._at, end)
