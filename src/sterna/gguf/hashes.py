"""The hashes that Sterna writes into a GGUF file, and that `sterna verify` checks.

`sterna.sha256.tensors` has a SHA-256 of each tensor with its name, type and shape, in file order;
`sterna.sha256.metadata` has one of the other metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.gguf.metadata import Metadata

__all__ = ["BARE_HASHES", "HASHES", "METADATA_HASH", "heading", "metadata_hash"]

HASHES = "sterna.sha256.tensors"
METADATA_HASH = "sterna.sha256.metadata"
BARE_HASHES = "sterna.sha256"  # hashes of only the bytes, as in files written earlier


def heading(name: str, type: str, shape: Sequence[int]) -> bytes:
    """Return bytes to hash before a tensor's own, so that two tensors cannot swap their names."""
    return f"{name} {type} {list(shape)}\n".encode()


def metadata_hash(metadata: Metadata) -> tuple[str | None, str]:
    """Return the recorded SHA-256 of the metadata, if any, and the computed one.

    Splitting a file changes neither.
    """
    recorded = metadata.text(METADATA_HASH) if METADATA_HASH in metadata else None
    return recorded, metadata.sha256((BARE_HASHES, "split."))
