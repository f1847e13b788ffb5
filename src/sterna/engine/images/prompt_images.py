"""`PromptImages`: the images of a prompt, by their positions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sterna.engine.images.image_encoder import ImageEncoder
from sterna.engine.images.image_encoding import ProcessedImage
from sterna.engine.images.image_numbers import number_of
from sterna.errors import RequestError

__all__ = ["PromptImage", "PromptImages"]

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


class PromptImage(Protocol):
    """An image of a prompt, such as `sterna.images.PromptImage`.

    positions: int32 [image.tokens], where its rows stand, ascending.
    """

    @property
    def image(self) -> ProcessedImage:
        """The image."""

    @property
    def positions(self) -> I32:
        """Where its rows stand, int32."""


class PromptImages:
    """The positions of a prompt that have rows of images, and the images.

    prompt: token ids, the tower's `image_token` at each such position; images: with the positions
    of their rows, ascending over all. most: positions of a run whose tokens attend to each other,
    since a step takes it whole. RequestError for positions that do not fit.
    """

    def __init__(
        self,
        prompt: SequenceOf[int],
        images: SequenceOf[PromptImage],
        encoder: ImageEncoder,
        most: int,
    ) -> None:
        self.encoder: ImageEncoder = encoder
        self.images: list[ProcessedImage] = [one.image for one in images]
        tokens = np.asarray(prompt, np.int32)
        self._at = np.concatenate([np.zeros(0, np.int32), *(one.positions for one in images)])
        expected = np.flatnonzero(tokens == encoder.tower.image_token)
        if not np.array_equal(self._at, expected):
            raise RequestError(
                f"images: their {len(self._at)} positions must be those of the image token, but "
                f"the prompt has it {len(expected)} times"
            )
        #: Of each position in `_at`: its image, and the row of that.
        counts = [one.image.tokens for one in images]
        self._image_of = np.repeat(np.arange(len(images), dtype=np.int32), counts)
        self._row_of = np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)])
        if len(self._image_of) != len(self._at):
            raise RequestError("images: must have a position for each of their tokens")
        #: Where the run of positions that follow each other begins and ends, of each in `_at`.
        first = np.flatnonzero(np.diff(self._at, prepend=-2) != 1)
        sizes = np.diff(np.append(first, len(self._at)))
        self._begins = np.repeat(self._at[first], sizes)
        self._ends = self._begins + np.repeat(sizes, sizes)
        if encoder.tower.together and len(sizes) and sizes.max() > most:
            raise RequestError(
                f"images: at most {most} tokens may follow each other, but {sizes.max()} do; put "
                "text between images"
            )
        self._coordinates = self._placed(len(tokens))
        #: The prompt's token ids, int32, with numbers of images instead of image tokens.
        self.keys: I32 = self._keys(tokens)

    def _keys(self, tokens: I32) -> I32:
        """The images that a position's keys and values depend on: its image, or all images of its
        run if these attend to each other."""
        keys: I32 = tokens.copy()
        if not self.encoder.tower.together:
            numbers = [number_of(image.digest) for image in self.images]
            keys[self._at] = np.take(np.array(numbers, np.int32), self._image_of)
            return np.asarray(keys)
        for begin in np.unique(self._begins):
            here = self._begins == begin
            sha256 = hashlib.sha256()
            for i, row in zip(self._image_of[here], self._row_of[here], strict=True):
                sha256.update(self.images[i].digest + int(row).to_bytes(8, "little"))
            keys[self._at[here]] = number_of(sha256.digest())
        return np.asarray(keys)

    def _placed(self, length: int) -> I32 | None:
        """Return the coordinates of all positions, and of the next one; int32 [n + 1, 3]."""
        places = self.encoder.tower.places
        if places is None:
            return None
        at = np.ones((length + 1, 3), np.int32)
        for i, image in enumerate(self.images):
            here = self._at[self._image_of == i]
            # A step from each position to the next; the last step leads past the image's largest.
            own = places(image.grid)
            at[here[1:]] = np.diff(own, axis=0)
            at[here[-1] + 1] = own.max() + 1 - own[-1]
        at[0] = 0
        return np.asarray(np.cumsum(at, axis=0, dtype=np.int32))

    def coordinates(self, begin: int, end: int) -> I32 | None:
        """Return the coordinates of positions [begin, end), also after the prompt; int32 [n, 3].
        None where the model has none."""
        if self._coordinates is None:
            return None
        last = len(self._coordinates) - 1
        positions = np.arange(begin, end)
        beyond = np.maximum(positions - last, 0).astype(np.int32)
        return np.asarray(self._coordinates[np.minimum(positions, last)] + beyond[:, None])

    def digests(self, begin: int) -> set[bytes]:
        """Return the digests of the images that have positions from `begin` on."""
        here = np.unique(self._image_of[np.searchsorted(self._at, begin) :])
        return {self.images[i].digest for i in here}

    def missing(self, begin: int) -> int:
        """Count the positions from `begin` on whose image has no rows yet."""
        there = np.array([self.encoder.has(image) for image in self.images], bool)
        return int((~there[self._image_of[np.searchsorted(self._at, begin) :]]).sum())

    def next_images(self, begin: int, end: int) -> list[ProcessedImage]:
        """Return the images whose rows a step from `begin` on needs first: the first one that has
        positions in [begin, end), or all of its run if these attend to each other."""
        first = int(np.searchsorted(self._at, begin))
        if first == len(self._at) or self._at[first] >= end:
            return []
        last = first + 1
        if self.encoder.tower.together:
            last = int(np.searchsorted(self._at, self._ends[first]))
        return [self.images[i] for i in np.unique(self._image_of[first:last])]

    def end_of_step(self, begin: int, end: int) -> int:
        """Return where a step of positions [begin, end) may end: before images without rows, unless
        it begins with them, and not within a run of positions that attend to each other."""
        here = np.unique(self._image_of[slice(*np.searchsorted(self._at, [begin, end]))])
        missing = [i for i in here if not self.encoder.has(self.images[i])]
        if missing:
            first = int(self._at[np.searchsorted(self._image_of, missing[0])])
            end = first if first > begin else end
        at = int(np.searchsorted(self._at, end))
        parted = at < len(self._at) and self._at[at] == end and self._begins[at] < end
        if not self.encoder.tower.together or not parted:
            return end
        first = int(self._begins[at])
        return first if first > begin else int(self._ends[at])

    def rows(self, begin: int, end: int) -> tuple[I32, F32]:
        """Return the positions in [begin, end) that have rows of images, and these rows."""
        here = slice(*np.searchsorted(self._at, [begin, end]))
        images, rows = self._image_of[here], self._row_of[here]
        parts = [self.encoder.rows(self.images[i])[rows[images == i]] for i in np.unique(images)]
        width = self.encoder.tower.width
        return self._at[here], np.concatenate([np.zeros((0, width), np.float32), *parts])

    def together(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the runs of positions in [begin, end) that attend to each other."""
        if not self.encoder.tower.together:
            return []
        here = slice(*np.searchsorted(self._at, [begin, end]))
        runs = dict.fromkeys(
            zip(self._begins[here].tolist(), self._ends[here].tolist(), strict=True)
        )
        return [(max(first, begin), last) for first, last in runs]
