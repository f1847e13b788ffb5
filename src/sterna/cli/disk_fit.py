"""What to expect of a packed model that is larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sterna import _native

if TYPE_CHECKING:
    from sterna.checkpoints.packed_directory import PackedBytes

__all__ = ["disk_words", "of_disk", "sizes_of"]

_READ = 1 << 20  # bytes of a read of the probe, about those of a matrix of an expert
_READS = 64


def sizes_of(path: Path) -> PackedBytes | None:
    """Return the bytes of a packed folder's weights; None for other sources."""
    from sterna.checkpoints.directory import Checkpoint
    from sterna.checkpoints.packed_directory import packed_bytes

    folder = Checkpoint.open(path) if path.is_dir() else None
    return packed_bytes(folder) if folder is not None and folder.is_packed else None


def of_disk(
    path: Path, sizes: PackedBytes, read: float, share: float, bandwidth: float
) -> dict[str, Any] | None:
    """Return what a start without a budget does if not all weights fit; None if they do.

    read: bytes of weights that a token reads; share: of what can stay on disk, the part that it
    reads. bandwidth: of memory, 10^9 bytes a second; 0: unknown. weights_ram, cache_ram:
    bytes for all weights, and for what can stay on disk among them (too few: below 0); disk_gb_s:
    10^9 bytes a second that random reads of the file gave just now; tokens_per_s: at most so many;
    experts are taken to be chosen alike, which is the worst case.
    """
    from sterna.loading.weights_on_disk import HEADROOM_BYTES, default_weights_ram
    from sterna.runtime import available_bytes

    if sizes.all <= available_bytes() - HEADROOM_BYTES or not sizes.on_disk:
        return None
    budget = default_weights_ram()
    here = min(1.0, max(0.0, (budget - sizes.in_memory) / sizes.on_disk))
    missed, disk = sizes.on_disk * share * (1 - here), _disk_speed(path)
    bounds = [speed * 1e9 / n for speed, n in ((bandwidth, read), (disk, missed)) if n]
    return {
        "weights_ram": budget,
        "cache_ram": budget - sizes.in_memory,
        "of_experts": sizes.of_experts,
        "disk_gb_s": round(disk, 2),
        "tokens_per_s": _rounded(min(bounds)) if disk and bandwidth and bounds else None,
    }


def _rounded(x: float) -> float:
    return float(f"{x:.3g}")


def _disk_speed(path: Path) -> float:
    """Read places all over the weights' file; return 10^9 bytes a second, 0 if it cannot."""
    from sterna.checkpoints.directory import WEIGHTS
    from sterna.files.reading import open_regular
    from sterna.files.system import handle_of

    with open_regular(path / WEIGHTS) as (descriptor, state):
        speed = _native.disk_speed(handle_of(descriptor), state.nbytes, _READ, _READS)
    return speed / 1e9


def disk_words(found: dict[str, Any], in_memory: int) -> str:
    """Return a line about weights on disk; in_memory: bytes of those that cannot stay there."""
    from sterna.checkpoints.hub import human

    if found["cache_ram"] <= 0:
        return f"too little memory: {human(in_memory)} of the weights cannot stay on disk"
    speed, experts = found["tokens_per_s"], found["of_experts"]
    most = f", so at most {speed:g} tokens/s" if speed else ""
    return (
        f"{'experts' if experts else 'layers'} stay on disk, {human(found['cache_ram'])} "
        f"of them in memory; the disk gives {found['disk_gb_s']:.1f} GB/s{most}"
        + (" if all are chosen alike" if experts and speed else "")
    )
