"""Weights that stay on disk, where memory does not hold all of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sterna import _native
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import PackedModel, packed_bytes
from sterna.checks import checked_whole
from sterna.errors import RequestError
from sterna.graph.ops import ExpertLinearOp, WeightOp
from sterna.loading.model import Model
from sterna.runtime import available_bytes

__all__ = [
    "HEADROOM_BYTES",
    "WeightsRamError",
    "bytes_for_disk",
    "default_weights_ram",
    "keep_on_disk",
    "require_packed",
]

#: Without a budget, left free for activations, Python and the system.
HEADROOM_BYTES = 512 << 20
#: And this fraction (1 / n) of the available memory, which keys and values may take.
KV_SHARE = 4
#: About the bytes of a part of a matrix: a read that a disk gives at its full speed.
PART_BYTES = 4 << 20
_MOST = 1 << 60


class WeightsRamError(RequestError):
    """`weights_ram` is less than the model's weights need."""


def default_weights_ram() -> int:
    """Return the memory that weights may take: what is available, less that of other uses."""
    available = available_bytes()
    return max(0, available - available // KV_SHARE - HEADROOM_BYTES)


def bytes_for_disk(
    folder: Checkpoint, weights_ram: int | None, format: str | None, mmap: bool
) -> int | None:
    """Return the memory for weights that stay on disk, in bytes, below 0 if the others take more;
    None: all weights are read.

    Without a budget (`weights_ram`), weights stay on disk only if they are more than the available
    memory, and neither `format` nor `mmap` is asked for. Raises WeightsRamError if the budget does
    not hold what cannot stay there.
    """
    sizes = packed_bytes(folder)
    if weights_ram is None:
        if mmap or sizes.all <= available_bytes() - HEADROOM_BYTES:
            return None
        left = default_weights_ram() - sizes.in_memory
        return left if sizes.on_disk and left > 0 and format is None else None
    budget = checked_whole("weights_ram", weights_ram, 1, _MOST)
    if sizes.all <= budget:
        return None
    if not sizes.on_disk:
        raise _too_little(folder, budget, sizes.all, "all weights, none of which can stay on disk")
    if format is not None:
        raise _too_little(folder, budget, sizes.all, "all weights, since another format needs them")
    return budget - sizes.in_memory


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
    """Set the model's cache of weights, of so many bytes; it may have an MTP layer.

    Raises WeightsRamError if these do not hold a part of each size, or are not there.
    """
    sizes, here = packed_bytes(folder), {id(packed.modules[name]) for name in packed.on_disk}
    graphs = [one.graph for one in (model, model.mtp) if one is not None]
    matrices = {
        id(op.weight): (op.weight.native(), *_parts(op))
        for graph in graphs
        for op in graph.linears
        if id(op.weight) in here and isinstance(op, ExpertLinearOp) == sizes.of_experts
    }
    if not matrices:
        return
    weights = list(matrices.values())
    least, _ = _native.cache_bytes(weights)
    in_memory = sizes.in_memory
    if nbytes < least:
        what = "the weights that cannot stay on disk, and a part of each size of the others"
        raise _too_little(folder, in_memory + nbytes, in_memory + least, what)
    try:
        model.weight_cache = _native.WeightCache(weights, nbytes)
    except MemoryError:
        raise WeightsRamError(
            f"weights_ram: must be memory that the system has, but {nbytes} bytes for weights on "
            "disk are refused; give it less"
        ) from None
    if model.mtp is not None:
        model.mtp.weight_cache = model.weight_cache


def _parts(op: WeightOp) -> tuple[int, bool]:
    """Return how many parts a matrix has, which are experts or tiles of about `PART_BYTES`, and
    whether every token reads all of them."""
    if isinstance(op, ExpertLinearOp):
        return op.n_experts, False
    tiles, nbytes = len(op.weight.codes), op.weight.nbytes
    most = max(1, nbytes // PART_BYTES)
    return max(n for n in range(1, min(most, tiles) + 1) if tiles % n == 0), True


def _too_little(folder: Checkpoint, budget: int, least: int, what: str) -> WeightsRamError:
    """Make the error of a budget that does not hold `what`, which takes `least` bytes."""
    return WeightsRamError(
        f"weights_ram: must hold {what}: {least} bytes for {folder.path}, but got {budget}; give "
        f"it {-(-least // (1 << 20))}M or more"
    )
