"""Experts that stay on disk, where the memory for weights does not hold all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sterna import _native
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import PackedModel, packed_bytes
from sterna.checks import checked_whole
from sterna.errors import RequestError
from sterna.graph.ops import ExpertLinearOp
from sterna.loading.model import Model
from sterna.runtime import available_bytes

__all__ = [
    "HEADROOM_BYTES",
    "WeightsRamError",
    "bytes_for_experts",
    "default_weights_ram",
    "keep_on_disk",
    "require_packed",
]

#: Without a budget, left free for activations, Python and the system.
HEADROOM_BYTES = 512 << 20
#: And this fraction (1 / n) of the available memory, which keys and values may take.
KV_SHARE = 4
_MOST = 1 << 60


class WeightsRamError(RequestError):
    """`weights_ram` is less than the model's weights need."""


def default_weights_ram() -> int:
    """Return the memory that weights may take: what is available, less that of other uses."""
    available = available_bytes()
    return max(0, available - available // KV_SHARE - HEADROOM_BYTES)


def bytes_for_experts(
    folder: Checkpoint, weights_ram: int | None, format: str | None, mmap: bool
) -> int | None:
    """Return the memory for experts that stay on disk, in bytes; None: all weights are read.

    Without a budget (`weights_ram`), experts stay on disk only if the weights are more than the
    available memory, and neither `format` nor `mmap` is asked for. Raises WeightsRamError if the
    budget does not hold what every token reads.
    """
    resident, experts = packed_bytes(folder)
    if weights_ram is None:
        if mmap or resident + experts <= available_bytes() - HEADROOM_BYTES:
            return None
        left = default_weights_ram() - resident
        return left if experts and left > 0 and format is None else None
    budget = checked_whole("weights_ram", weights_ram, 1, _MOST)
    if resident + experts <= budget:
        return None
    if not experts or format is not None:
        why = "its layers are no experts" if not experts else "another format needs all weights"
        raise _too_little(folder, budget, resident + experts, f" in memory, since {why}")
    return max(0, budget - resident)


def require_packed(source: Path, files: Iterable[Path], weights_ram: int) -> None:
    """Raise WeightsRamError for a model of which no packed form is there, and whose files have
    more bytes than the budget: experts stay on disk as they are packed."""
    budget = checked_whole("weights_ram", weights_ram, 1, _MOST)
    nbytes = sum(file.stat().st_size for file in files)
    if nbytes > budget:
        raise WeightsRamError(
            f"weights_ram: must hold all {nbytes} bytes of {source}, since it is not packed, but "
            f"got {budget}; run `sterna convert {source} FOLDER`, and open the folder"
        )


def keep_on_disk(model: Model, packed: PackedModel, folder: Checkpoint, nbytes: int) -> None:
    """Set the model's cache of experts, of so many bytes; it may have an MTP layer.

    Raises WeightsRamError if these do not hold an expert of each size, or are not there.
    """
    here = {id(packed.modules[name]) for name in packed.on_disk}
    graphs = [one.graph for one in (model, model.mtp) if one is not None]
    matrices = {
        id(op.weight): (op.weight.native(), op.n_experts)
        for graph in graphs
        for op in graph.linears
        if isinstance(op, ExpertLinearOp) and id(op.weight) in here
    }
    if not matrices:
        return
    weights = list(matrices.values())
    least, _ = _native.expert_bytes(weights)
    resident, _ = packed_bytes(folder)
    if nbytes < least:
        raise _too_little(folder, resident + nbytes, resident + least)
    try:
        model.experts = _native.ExpertCache(weights, nbytes)
    except MemoryError:
        raise WeightsRamError(
            f"weights_ram: must be memory that the system has, but {nbytes} bytes for experts are "
            "refused; give it less"
        ) from None
    if model.mtp is not None:
        model.mtp.experts = model.experts


def _too_little(folder: Checkpoint, budget: int, least: int, why: str = "") -> WeightsRamError:
    """Make the error of a budget that does not hold `least` bytes."""
    return WeightsRamError(
        f"weights_ram: must hold the weights that every token reads{why}, {least} bytes for "
        f"{folder.path}, but got {budget}; give it {-(-least // (1 << 20))}M or more"
    )
