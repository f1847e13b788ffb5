"""What to expect of a packed model of experts that is larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sterna import _native

__all__ = ["disk_words", "of_disk", "read_bytes"]

_READ = 1 << 20  # bytes of a read of the probe, about those of a matrix of an expert
_READS = 64


def read_bytes(path: Path, share: float) -> tuple[int, int, int] | None:
    """Return bytes of a packed folder's weights that every token reads, of its experts, and of
    those of one token; None for other sources and models without experts.

    share: of the experts, that a token uses.
    """
    from sterna.checkpoints.directory import Checkpoint
    from sterna.checkpoints.packed_directory import packed_bytes

    folder = Checkpoint.open(path) if path.is_dir() else None
    if folder is None or not folder.is_packed:
        return None
    resident, experts = packed_bytes(folder)
    return (resident, experts, round(experts * share)) if experts else None


def of_disk(path: Path, sizes: tuple[int, int, int], bandwidth: float) -> dict[str, Any] | None:
    """Return what a start without a budget does if not all weights fit; None if they do.

    weights_ram, expert_ram: bytes for all weights, and for experts among them (too few: below 0);
    disk_gb_s: 10^9 bytes a second that random reads of the file gave just now; tokens_per_s: at
    most so many if all experts are chosen alike, which is the worst case. bandwidth: of memory,
    10^9 bytes a second; 0: unknown.
    """
    from sterna.loading.experts_on_disk import HEADROOM_BYTES, default_weights_ram
    from sterna.runtime import available_bytes

    resident, experts, used = sizes
    if resident + experts <= available_bytes() - HEADROOM_BYTES:
        return None
    budget = default_weights_ram()
    missed = used * (1 - min(1.0, max(0.0, (budget - resident) / experts)))
    disk = _disk_speed(path)
    bounds = [speed * 1e9 / n for speed, n in ((bandwidth, resident + used), (disk, missed)) if n]
    return {
        "weights_ram": budget,
        "expert_ram": budget - resident,
        "disk_gb_s": round(disk, 2),
        "tokens_per_s": round(min(bounds), 1) if disk and bandwidth and bounds else None,
    }


def _disk_speed(path: Path) -> float:
    """Read places all over the weights' file; return 10^9 bytes a second, 0 if it cannot."""
    from sterna.checkpoints.directory import WEIGHTS
    from sterna.files.reading import open_regular
    from sterna.files.system import handle_of

    with open_regular(path / WEIGHTS) as (descriptor, state):
        speed = _native.disk_speed(handle_of(descriptor), state.nbytes, _READ, _READS)
    return speed / 1e9


def disk_words(found: dict[str, Any], resident: int) -> str:
    """Return a line about experts on disk."""
    from sterna.checkpoints.hub import human

    if found["expert_ram"] <= 0:
        return f"too little memory: every token reads {human(resident)}"
    speed = found["tokens_per_s"]
    return (
        f"experts stay on disk, {human(found['expert_ram'])} of them in memory; the disk gives "
        f"{found['disk_gb_s']:.1f} GB/s"
        + (f", so at most {speed:g} tokens/s if all are chosen alike" if speed else "")
    )
