"""The training loop of `sterna train`: AdamW or Muon, a schedule, and a state to resume from."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sterna.errors import NonFiniteError, RequestError
from sterna.files.writing import replacing_path
from sterna.train.chats import IGNORED, Rows
from sterna.train.round_per_step import round_per_step

__all__ = ["Loss", "TrainingOptions", "train"]

#: Of a model, tokens, positions and labels [rows, length]: the sum over labelled tokens, in nats.
Loss = Callable[[Any, Tensor, Tensor, Tensor], Tensor]

_STATE = "state.pt"
_LOSSES = "losses.tsv"


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training run.

    steps: optimizer steps, of `batch` rows each.
    lr: the peak learning rate of matrices, after a warm-up over the share `warmup` of all steps.
    Vectors, which include scales of rows, have a tenth of it.
    fall: the schedule after the warm-up: a cosine to a tenth, a line to zero, or "none", which may
    end at any step and continue in a run that falls (Hu et al., MiniCPM, 2024, section 4).
    muon: if not 0, the learning rate of matrices other than tables, trained with Muon (Jordan et
    al., 2024) in place of AdamW; for training from scratch.
    clip: the largest norm of the gradient.
    checkpointing: recompute layers for their gradients instead of keeping activations.
    at_once: rows whose gradients are computed together, 0 for all of a step; few fit into caches.
    bf16: multiply in bfloat16, for CPUs with units for it; forward passes keep their bits.
    compiled: use torch.compile, which takes a minute.
    """

    steps: int
    lr: float = 3e-4
    batch: int = 1
    warmup: float = 0.05
    weight_decay: float = 0.0
    clip: float = 1.0
    seed: int = 1
    checkpointing: bool = False
    muon: float = 0.0
    fall: Literal["cosine", "none", "line"] = "cosine"
    at_once: int = 0
    bf16: bool = False
    compiled: bool = False

    def part(self, step: int) -> float:
        """Return a step's factor of the peak learning rate; steps are counted from 0."""
        rise = round(self.warmup * self.steps)
        if step < rise:
            return (step + 1) / rise
        done = (step - rise) / max(1, self.steps - rise)
        if self.fall != "cosine":
            return 1.0 if self.fall == "none" else 1 - done
        return 0.55 + 0.45 * math.cos(math.pi * done)


def train(
    model: Any,
    rows: Rows,
    settings: TrainingOptions,
    folder: Path,
    save_every: int = 50,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    start: Path | None = None,
    loss: Loss | None = None,
) -> list[float]:
    """Train the parameters of a model of transformers that have gradients; returns all losses.

    folder: gets losses.tsv, and the state after every `save_every` steps, from which the same call
    resumes. A resumed run has the bits of an uninterrupted one, on the same machine with as many
    threads. start: the folder of an earlier run of these layers, with other rows or settings, whose
    parameters and moments this one begins with. loss: in place of the cross entropy of the labels.
    Raises RequestError for a folder of another run, NonFiniteError where the loss is not finite.
    """
    torch.manual_seed(settings.seed)
    if settings.checkpointing:
        old = "gradient_checkpointing_enable"  # deprecated if the other exists
        getattr(model, "activation_checkpointing_enable", getattr(model, old))()
    model.train()
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizers = _optimizers(model, trained, settings)
    digest = _digest(rows, settings, trained)
    losses = _restored(folder, digest, trained, optimizers)
    if start is not None and not losses:
        _begin(start, trained, optimizers)
    loss_of = loss or _loss
    if settings.compiled:
        loss_of = torch.compile(loss_of, dynamic=False)
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(len(losses), settings.steps):
        for group in (group for one in optimizers for group in one.param_groups):
            group["lr"] = group["highest"] * settings.part(step)
        value = _step(model, rows, settings, step, loss_of)
        torch.nn.utils.clip_grad_norm_(trained.values(), settings.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(value)
        progress(step + 1, value)
        if (step + 1) % save_every == 0 or step + 1 == settings.steps:
            _save(folder, digest, trained, optimizers, losses)
    model.eval()
    return losses


def _optimizers(
    model: Any, trained: dict[str, nn.Parameter], settings: TrainingOptions
) -> list[torch.optim.Optimizer]:
    """Make an optimizer for matrices and one for vectors.

    A step of Adam is as large for a scale as for a master, since their sizes are alike, but a row
    has one scale, and thousands of masters.
    """
    matrices = [p for p in trained.values() if p.ndim >= 2 and p.shape[-1] != 1]
    vectors = [p for p in trained.values() if p.ndim < 2 or p.shape[-1] == 1]
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    others = [p for table in tables if table is not None for p in table.parameters()]
    orthogonal = [p for p in matrices if settings.muon and all(p is not t for t in others)]
    plain = [p for p in matrices if all(p is not o for o in orthogonal)]
    decay = settings.weight_decay
    adam = torch.optim.AdamW(
        [
            {"params": plain, "highest": settings.lr, "weight_decay": decay},
            {"params": vectors, "highest": 0.1 * settings.lr, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    if not orthogonal:
        return [adam]
    group = {"params": orthogonal, "highest": settings.muon}
    return [adam, torch.optim.Muon([group], weight_decay=decay)]


def _step(model: Any, rows: Rows, settings: TrainingOptions, step: int, loss_of: Loss) -> float:
    """Compute the gradients of the rows of a step, and return their loss."""
    picked = _rows_of_step(len(rows.tokens), settings, step)
    scored = max(1, int((rows.labels[picked][:, 1:] != IGNORED).sum()))
    value = 0.0
    with round_per_step(model, settings.bf16):
        size = settings.at_once or settings.batch
        for part in (picked[i : i + size] for i in range(0, settings.batch, size)):
            with warnings.catch_warnings():  # torch's of checkpoints without gradients to input
                warnings.simplefilter("ignore")
                loss = loss_of(model, *(t[part] for t in rows[:3])) / scored
            value += float(loss.detach())
            if not math.isfinite(value):
                raise NonFiniteError(
                    f"step {step + 1}: the loss must be finite, but is {value}; train with a "
                    "smaller lr"
                )
            torch.autograd.backward(loss)
    return value


def _loss(model: Any, tokens: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of the loss of all predicted tokens, in nats."""
    logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
    flat = logits[:, :-1].flatten(0, 1).float()
    return nn.functional.cross_entropy(flat, labels[:, 1:].flatten(), reduction="sum")


def _rows_of_step(count: int, settings: TrainingOptions, step: int) -> Tensor:
    """Pick the rows of a step: each epoch has all rows, in an order given by its number."""
    picked: list[Tensor] = []
    place, missing = step * settings.batch, settings.batch
    while missing:
        epoch, first = divmod(place, count)
        order = torch.Generator().manual_seed(settings.seed + 1000003 * epoch)
        picked.append(torch.randperm(count, generator=order)[first : first + missing])
        place, missing = place + len(picked[-1]), missing - len(picked[-1])
    return torch.cat(picked)


def _digest(rows: Rows, settings: TrainingOptions, trained: dict[str, nn.Parameter]) -> str:
    sha256 = hashlib.sha256(json.dumps(asdict(settings), sort_keys=True).encode())
    for tensor in (rows.tokens, rows.labels, rows.positions):
        sha256.update(tensor.numpy().tobytes())
    for name, p in trained.items():
        sha256.update(f"{name} {tuple(p.shape)}\n".encode())
    return sha256.hexdigest()


def _save(
    folder: Path,
    digest: str,
    trained: dict[str, nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    losses: list[float],
) -> None:
    state = {
        "digest": digest,
        "trained": {name: p.detach() for name, p in trained.items()},
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "losses": losses,
    }
    nbytes = 12 * sum(p.numel() for p in trained.values())
    with replacing_path(folder / _STATE, nbytes) as path:
        torch.save(state, path)
    lines = [f"{i}\t{loss:.6f}\n" for i, loss in enumerate(losses, 1)]
    (folder / _LOSSES).write_text("step\tloss\n" + "".join(lines))


def _restored(
    folder: Path,
    digest: str,
    trained: dict[str, nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
) -> list[float]:
    """Load the saved state, if any, into the model; return the losses so far."""
    path = folder / _STATE
    if not path.is_file():
        return []
    state = _read(path)
    if state["digest"] != digest:
        raise RequestError(
            f"{path}: is of a run with other data, settings or layers; delete its folder, or take "
            "another"
        )
    _put(state, trained, optimizers)
    return [float(loss) for loss in state["losses"]]


def _begin(
    start: Path, trained: dict[str, nn.Parameter], optimizers: list[torch.optim.Optimizer]
) -> None:
    """Load parameters and moments of another run's state, but keep this run's rates."""
    state = _read(start / _STATE)
    shapes = {name: tuple(p.shape) for name, p in trained.items()}
    if {name: tuple(p.shape) for name, p in state["trained"].items()} != shapes:
        raise RequestError(f"{start / _STATE}: has other layers than those that are to be trained")
    rates = [[dict(group) for group in one.param_groups] for one in optimizers]
    _put(state, trained, optimizers)
    for optimizer, groups in zip(optimizers, rates, strict=True):
        for group, rate in zip(optimizer.param_groups, groups, strict=True):
            group.update(rate)


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, weights_only=True)
        return {name: state[name] for name in ("digest", "trained", "optimizers", "losses")}
    except Exception as e:  # torch has no one class for a damaged file
        raise RequestError(f"{path}: must be a state of training, but {e}; delete it") from None


def _put(
    state: dict[str, Any], trained: dict[str, nn.Parameter], optimizers: list[torch.optim.Optimizer]
) -> None:
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(state["trained"][name])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
