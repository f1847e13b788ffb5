"""What decides among several files of a repository on this machine: memory, and what is here."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from sterna.checkpoints.directory import CONFIG
from sterna.checkpoints.hub.bounded_http import answer, headers, pieces
from sterna.checkpoints.hub.choose import gguf_models
from sterna.checkpoints.hub.fitting import SAFETENSORS, Room
from sterna.checkpoints.hub.listing import Listing, url_of
from sterna.checkpoints.hub.store import Repository, downloads
from sterna.checkpoints.hub_names import HubName
from sterna.checkpoints.model_shape import (
    START_BYTES,
    UNKNOWN,
    Shape,
    shape_of_config,
    shape_of_gguf,
)
from sterna.runtime import available_bytes

__all__ = ["room_of", "room_of_folder", "shape_of_file"]


def room_of(name: HubName, listing: Listing, context: int | None) -> Room:
    """Return what decides among the files that the Hub lists; nothing is asked for yet."""
    repository = Repository(name.repo)

    def is_here(path: str) -> bool:
        return repository.blob(listing.files[path].digest).exists()

    def shape(path: str) -> Shape:
        folder = path == SAFETENSORS
        file = CONFIG if folder else path
        read = _shape_of_json if folder else shape_of_gguf
        # Only the choice needs it: what is wrong is said where the file is fetched
        with contextlib.suppress(Exception):
            if is_here(file):
                with repository.blob(listing.files[file].digest).open("rb") as start:
                    return read(start.read(START_BYTES))
            return read(_start(url_of(name, listing.commit, file)))
        return UNKNOWN

    recorded = [d for d in downloads(name.repo) if d.gguf and d.revision == name.revision]
    whole = {
        first for first, parts in gguf_models(listing.files).items() if all(map(is_here, parts))
    }
    return Room(
        available_bytes(),
        context,
        listing.params,
        shape,
        frozenset(whole.union(d.gguf for d in recorded if d.gguf in listing.files)),
        next((d.gguf for d in recorded if d.default), None),
    )


def room_of_folder(folder: Path, paths: frozenset[str], context: int | None) -> Room:
    """Return what decides among the files of a snapshot, all of which are here."""
    return Room(
        available_bytes(), context, shape=lambda path: shape_of_file(folder / path), here=paths
    )


def shape_of_file(path: Path) -> Shape:
    """Read the sizes of a model from the start of its GGUF file; unknown if it cannot be read."""
    try:
        with path.open("rb") as file:
            return shape_of_gguf(file.read(START_BYTES))
    except OSError:
        return UNKNOWN


def _shape_of_json(text: bytes) -> Shape:
    return shape_of_config(json.loads(text))


def _start(url: str) -> bytes:
    """Fetch the first `START_BYTES` of a file; a server that sends all of it is cut off."""
    data = bytearray()
    wanted = {**headers(), "Range": f"bytes=0-{START_BYTES - 1}"}
    with answer(url, wanted) as response:
        for piece in pieces(response):
            data += piece
            if len(data) >= START_BYTES:
                break
    return bytes(data[:START_BYTES])
