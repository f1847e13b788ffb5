"""A file of tensors with a checked header, in any container, and reads from it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checkpoints.safetensors_header import TensorInfo
from sterna.errors import ModelFormatError
from sterna.files.reading import CHUNK_BYTES, FileState, Span, open_regular, read_span, read_spans
from sterna.files.system import handle_of

__all__ = ["TensorFile", "check_hash", "reading"]


class TensorFile:
    """The base of safetensors and GGUF files: tensors at places that were checked once.

    `path`; `tensors`: name -> TensorInfo. No descriptor stays open between reads; a file that has
    changed since its header was checked is refused. Files are read; only `map` maps them.
    """

    path: Path
    tensors: dict[str, TensorInfo]
    scratch: _native.Scratch | None = None  # memory for tensors, set by `reading`
    _state: FileState
    _progress: Callable[[int], None] | None = None

    def info(self, name: str) -> TensorInfo:
        """Return the tensor's place; ModelFormatError if the file does not have it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFormatError(self.path, name, "a tensor", "none of this name") from None

    def read_into(self, buffer: memoryview, spans: list[Span]) -> None:
        """Fill a writable byte buffer from places of the file; large reads use several threads."""
        with open_regular(self.path) as (descriptor, state):
            self._check_unchanged(state)
            read_spans(self.path, descriptor, buffer, spans, self._progress)

    def map(self) -> npt.NDArray[np.uint8] | None:
        """Map the file's bytes, read-only; None if the system cannot.

        They are read on use, from the page cache, which processes share. Computing with a file that
        was truncated or changed meanwhile raises ModelFormatError: in kernels by itself, elsewhere
        by `_native.require_whole`.
        """
        with open_regular(self.path) as (descriptor, state):
            self._check_unchanged(state)
            try:
                return _native.map_file(handle_of(descriptor), state.nbytes, os.fsencode(self.path))
            except OSError:
                return None

    def passed(self, nbytes: int) -> None:
        """Count mapped bytes as read."""
        if self._progress is not None:
            self._progress(nbytes)

    def chunks(self, info: TensorInfo) -> Iterator[memoryview]:
        """Yield the tensor's bytes in bounded pieces; each is valid until the next is taken."""
        buffer = memoryview(bytearray(min(CHUNK_BYTES, info.nbytes)))
        with open_regular(self.path) as (descriptor, state):
            self._check_unchanged(state)
            for at in range(0, info.nbytes, CHUNK_BYTES):
                count = min(CHUNK_BYTES, info.nbytes - at)
                read_span(self.path, descriptor, buffer, Span(info.offset + at, 0, count))
                yield buffer[:count]

    def _check_unchanged(self, state: FileState) -> None:
        if state != self._state:
            rule, got = "the file that was opened", "one changed since"
            raise ModelFormatError(self.path, expected=rule, got=got, remedy="load the model again")


@contextlib.contextmanager
def reading(
    files: Iterable[TensorFile], progress: Callable[[int, int], None] | None = None
) -> Iterator[None]:
    """Reuse memory between tensors while a model is read.

    progress: called with the bytes read so far and the bytes of all tensors, by one thread at a
    time, not always the caller's.
    """
    opened, scratch, lock, done = list(files), _native.Scratch(), threading.Lock(), 0
    total = sum(info.nbytes for file in opened for info in file.tensors.values())

    def add(nbytes: int) -> None:
        nonlocal done
        if progress is not None:
            with lock:
                done = min(done + nbytes, total)
                progress(done, total)

    for file in opened:
        file.scratch, file._progress = scratch, add
    try:
        yield
    finally:
        scratch.close()
        for file in opened:
            file.scratch = file._progress = None


def check_hash(
    file: TensorFile,
    info: TensorInfo,
    expected: str | None,
    progress: Callable[[int], None] | None = None,
    look: Callable[[memoryview], None] | None = None,
    heading: bytes = b"",
) -> None:
    """Read a tensor; ModelFormatError if its SHA-256 differs from the expected one, if any.

    `progress` is called with the bytes done since the last call. `look` gets the bytes, in pieces
    of a multiple of 64 except the last. `heading`: bytes to hash first.
    """
    digest = hashlib.sha256(heading)
    for chunk in file.chunks(info):
        if expected is not None:
            digest.update(chunk)
        if look is not None:
            look(chunk)
        if progress is not None:
            progress(len(chunk))
    if expected not in (None, digest.hexdigest()):
        rule = f"SHA-256 {expected}"
        got = digest.hexdigest()
        remedy = "the file is damaged: make or download it again"
        raise ModelFormatError(file.path, info.name, rule, got, offset=info.offset, remedy=remedy)
