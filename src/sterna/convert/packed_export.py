"""Writes a model of any kind to a packed directory, one weight after the other."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sterna import formats, loading, ops
from sterna.checkpoints.packed_directory import CODES
from sterna.checkpoints.packed_writer import PackedWriter, packing
from sterna.convert.job import Job
from sterna.convert.plan import Item, Plan, assets_of, check_assets, plan
from sterna.convert.quantization_check import warn_if_too_lossy
from sterna.convert.targets import check_places
from sterna.errors import RequestError
from sterna.formats import Experts, Format, PackedWeight
from sterna.formats.feedback import Feedback
from sterna.formats.learned_tables import SAMPLE, learned
from sterna.formats.level_tables import Table
from sterna.runtime import resolve_threads
from sterna.weights.loss import Loss
from sterna.weights.packing import layer_scale
from sterna.weights.rounding import Rows, keeps
from sterna.weights.sources import head_format

__all__ = ["directory_overhead", "to_directory"]

SPEC_BYTES = 512  # of a weight in config.json and in the alignment of its tensors, at most

F32 = npt.NDArray[np.float32]


def to_directory(job: Job, format: str | None, method: str | None) -> list[Loss]:
    """Write a packed directory in a format; None keeps each weight's own.

    method: how weights are rounded to powers of two. Returns the loss of each matrix. Without
    method and squares, the model has the bits of `loading.load(src, format=format, head=head)`.
    Raises as that does, and RequestError for a full disk or a `dst` in use.
    """
    check_places(job.src, job.dst, job.force)
    layers = None if format is None else formats.get(format)
    if layers is not None and method is not None:
        layers = formats.with_method(layers, method)
    model, planned = plan(job.src, job.threads, job.i2s)
    check_assets(model, required=False)  # otherwise broken ones would be copied
    if not job.formats:
        warn_if_too_lossy(planned, layers, job.name)
    writing = _Writing(planned, layers, job)
    done = 0
    with _writer(job, job.dst, model, planned, writing.nbytes(), format) as writer:
        for item in planned.items.values():
            for name, made in writing.made(item):
                writer.add(name, made)
            done += item.M * item.K
            if job.progress is not None:
                job.progress(done, planned.n_weights)
        planned.check_all_read(model)
    return writing.losses


def directory_overhead(job: Job) -> int:
    """Return the bytes of a packed directory besides the weights, at most."""
    model, planned = plan(job.src, job.threads, job.i2s)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "empty"
        with _writer(job, place, model, planned, 0, None):
            pass
        written = sum(path.stat().st_size for path in place.iterdir())
    parts = [part.name for item in planned.items.values() for part in item.parts]
    return written + sum(SPEC_BYTES + len(name.encode("utf-8", "replace")) for name in parts)


@contextlib.contextmanager
def _writer(
    job: Job, dst: Path, model: loading.Model, planned: Plan, nbytes: int, format: str | None
) -> Iterator[PackedWriter]:
    longest = max(len(name.encode("utf-8", "replace")) for name in planned.items)
    longest = max(longest, *(len(p.name) for i in planned.items.values() for p in i.parts))
    with (
        assets_of(model).as_folder() as source,
        packing(
            dst,
            model.json,
            nbytes=nbytes,
            name_bytes=longest + len(CODES) + 4,
            n_tensors=2 * sum(len(item.parts) for item in planned.items.values()),
            source=source,
            default_format=format,
            force=job.force,
        ) as writer,
    ):
        yield writer


class _Writing:
    """Makes the output of each item of a plan."""

    def __init__(self, planned: Plan, format: Format | None, job: Job) -> None:
        self._plan, self._format, self._head = planned, format, job.head
        self._threads, self._squares = resolve_threads(job.threads), job.squares
        self._formats, self._rounding, self._vectors = job.formats, job.rounding, job.vectors
        self._learns, self._learned = job.learns, dict[tuple[str, str], Format]()
        self.losses: list[Loss] = []

    def nbytes(self) -> int:
        """Return the least bytes of the weights."""
        total = 0
        for item in self._plan.items.values():
            if item.kind in ("vector", "bias"):
                total += 4 * item.M
            else:  # kept formats have at least a bit for each weight
                f = self._target(item, "", formats.get("i1"))
                total += f.n_tiles(item.M) * f.tile_bytes(item.K)
        return total

    def made(self, item: Item) -> Iterator[tuple[str, PackedWeight | F32]]:
        """Yield an item's output: named weights; consecutive pieces of one format are joined."""
        runs: list[Rows | PackedWeight] = []
        rows_left = item.M
        for name, piece in self._plan.read(item):
            if isinstance(piece, Experts):
                yield name, self._experts(item, name, piece)
                continue
            if not isinstance(piece, PackedWeight):
                yield name, self._vectors.get(name, piece)
                return
            target = self._with_table(item, self._checked_target(item, name, piece.format))
            if rows_left == piece.M and not runs and target == piece.format:
                runs.append(piece)  # as it is, without a copy
                self.losses.append(_kept(name, piece))
            else:
                run = runs[-1] if runs else None
                if not isinstance(run, Rows) or run.format != target:
                    runs.append(run := self._rows(item, target, rows_left))
                self.losses.append(run.add(piece, name))
            rows_left -= piece.M
            del piece
        if len(runs) == 1:
            yield item.name, _finished(runs.pop())
        for i in range(len(runs)):
            yield f"{item.name}.{i}", _finished(runs[i])

    def _experts(self, item: Item, name: str, experts: Experts) -> PackedWeight:
        """Return the output for all experts; each is rounded separately."""
        stored = experts.format
        target = self._with_table(item, self._checked_target(item, name, stored))
        loss = Loss(name, experts.count * experts.M, item.K, stored.name, target.name)
        self.losses.append(loss)
        made = experts
        if target != stored:
            each = (self._expert(item, name, expert, target, loss) for expert in experts)
            made = Experts.of(experts.count, each, name)
        loss.nbytes = made.weight.nbytes
        return made.weight

    def _expert(
        self, item: Item, name: str, expert: PackedWeight, target: Format, loss: Loss
    ) -> PackedWeight:
        rows = self._rows(item, target, expert.M)
        loss.merge(rows.add(expert, name))
        return rows.finish()

    def _checked_target(self, item: Item, name: str, stored: Format) -> Format:
        """Choose as `_target`; RequestError if that would change a layer's arithmetic."""
        target = self._target(item, name, stored)
        if stored.integer and not target.integer:
            raise RequestError(
                f"{name}: must keep an integer format, since its layer ({stored}) also rounds "
                f"activations, but got {target.name}; choose an integer format such as i8"
            )
        return target

    def _target(self, item: Item, name: str, stored: Format) -> Format:
        """Choose the format of a piece of an item that is stored in `stored`."""
        if name in self._formats:
            return self._formats[name]
        if item.kind in ("matrix", "experts"):
            asked = None if item.exact else self._format
        else:
            asked = formats.get(head_format(self._head, stored.name)) if self._head else None
        return stored if asked is None else formats.fitting(asked, item.K)

    def _with_table(self, item: Item, target: Format) -> Format:
        """Return a format with the table of all of an item's rows that are rounded, or `target`."""
        if not (self._learns and isinstance(target, Table)):
            return target
        key = item.name, target.name
        if key not in self._learned:
            rows = self._sample(item, target)
            squares = self._squares.get(item.name)
            if isinstance(squares, Feedback):
                squares = squares.squares
            made = learned(target, rows, squares, self._threads) if len(rows) else target
            self._learned[key] = made
        return self._learned[key]

    def _sample(self, item: Item, target: Format) -> F32:
        """Return rows of all pieces of an item whose levels `target` does not keep, about SAMPLE
        weights, float32 [M, K]."""
        rows, most = list[F32](), max(1, SAMPLE // item.K)
        for _, piece in self._plan.read(item):
            whole = piece.weight if isinstance(piece, Experts) else piece
            if not isinstance(whole, PackedWeight) or keeps(target, whole.format):
                continue
            tile, share = whole.format.tile_rows, max(1, most * whole.M // item.M)
            count = -(-share // tile)
            firsts = np.unique(np.linspace(0, (whole.M - 1) // tile, count).astype(int)) * tile
            for first in firsts.tolist():
                tiles = whole.rows(first, min(tile, whole.M - first))
                rows.append(ops.dequantize(tiles, threads=self._threads)[: -(-share // count)])
        return np.concatenate(rows) if rows else np.empty((0, item.K), np.float32)

    def _rows(self, item: Item, target: Format, M: int) -> Rows:
        target.check_shape(M, item.K, item.name)
        scale = None if item.kind == "table" else layer_scale(target)
        squares = self._squares.get(item.name)
        return Rows(
            target, M, item.K, scale, self._threads, squares=squares, rounding=self._rounding
        )


def _kept(name: str, weight: PackedWeight) -> Loss:
    return Loss(name, weight.M, weight.K, weight.format.name, weight.format.name, weight.nbytes)


def _finished(made: Rows | PackedWeight) -> PackedWeight:
    return made.finish() if isinstance(made, Rows) else made
