"""Fine-tuning for `sterna train`: of floats, master weights or packed weights in transformers.

Needs `pip install 'sterna[train]'`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import sterna.integrations.transformers  # noqa: F401  (registers packed folders)
from sterna import train
from sterna.checkpoints.assets import FolderAssets
from sterna.checkpoints.directory import Checkpoint
from sterna.errors import RequestError, shown
from sterna.files.writing import require_name
from sterna.torch import Exported, SternaLinear, accelerate
from sterna.torch.layer_packing import kind_of
from sterna.train import loop
from sterna.train.chats import examples, rows_of
from sterna.train.quant_linear import QuantLinear
from sterna.train.unpacking import unpack_for_training

__all__ = ["METHODS", "FineTuned", "fine_tune", "trainable"]

#: Method -> the function that makes its training layer of an nn.Linear.
METHODS: dict[str, Callable[[nn.Linear], QuantLinear]] = {
    "bitlinear": train.BitLinear.of,
    **{f"pareto-{b}": partial(train.ParetoLinear.of, bits=b) for b in (1, 1.58, 2, 3, 4)},
    "group-ternary": train.GroupTernaryLinear.of,
    "deepshift-q": train.DeepShiftQLinear.of,
    "deepshift-ps": train.DeepShiftPSLinear.of,
    "denseshift": train.DenseShiftLinear.of,
    "s3": train.S3Linear.of,
}


def trainable(path: str | Path, method: str | None = None) -> Any:
    """Open a folder's model for training in float32: its low-bit layers and norms, not its tables.

    method: one of METHODS, only for a float checkpoint. BitNet's masters are trained as they are.
    The layers of a packed model, or of BitNet's packed trits, start from their levels. Raises
    RequestError, and the errors of transformers.
    """
    if method is not None and method not in METHODS:
        raise RequestError(f"method: must be one of {', '.join(METHODS)}, but got {shown(method)}")
    quietly()
    model: Any = nn.Module.float(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    online = [m for m in model.modules() if kind_of(m) == "AutoBitLinear" and m.online_quant]
    if not online:
        accelerate(model)  # packed trits; floats stay, as no format is given
    packed = any(isinstance(m, SternaLinear) for m in model.modules())
    if (packed or bool(online)) == (method is not None):
        has = "low-bit layers already" if method else "none but float layers"
        raise RequestError(
            f"method: must be given only for float checkpoints, but {path} has {has}; "
            f"{'leave it out' if method else 'take one of ' + ', '.join(METHODS)}"
        )
    if packed:
        unpack_for_training(model)
    elif method is not None:
        train.prepare(model, METHODS[method])
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        if table is not None:
            table.weight.requires_grad_(False)
    return model


def quietly() -> None:
    """Silence transformers, which reports tensor names other than its own as damage."""
    quiet: Any = logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()


class FineTuned(NamedTuple):
    """The result of a run. cut: examples that were longer than a row; losses: one for each step.

    seconds: the time of all steps.
    """

    n_examples: int
    cut: int
    losses: list[float]
    seconds: float
    exported: Exported


def fine_tune(
    source: Path,
    chats: Path,
    out: Path,
    *,
    method: str | None = None,
    epochs: int = 1,
    lr: float = 3e-4,
    length: int = 512,
    batch: int = 1,
    seed: int = 1,
    checkpointing: bool = False,
    at_once: int = 0,
    bf16: bool = False,
    compiled: bool = False,
    save_every: int = 50,
    threads: int | None = None,
    progress: Callable[[int, int], None] = lambda step, steps: None,
) -> FineTuned:
    """Fine-tune the model of a folder on a file of chats, and write the packed folder `out`.

    The folder `out`.training keeps the state from which an interrupted run resumes. The arguments
    are those of `sterna train`. Raises what `chats.examples`, `trainable`, `loop.train` and
    `train.export` raise.
    """
    require_name(out)
    if out.exists() and (out.is_file() or any(out.iterdir())):
        raise RequestError(f"{out}: must be absent or empty, but has files; take another")
    if not source.is_dir():
        raise RequestError(f"{source}: must be a model's folder to be trained, but is a file")
    if threads:
        torch.set_num_threads(threads)
    assets = FolderAssets.of(source, Checkpoint.open(source).config)
    tokenised = examples(chats, assets.tokenizer(), assets.template())
    rows = rows_of(tokenised, length)
    steps = -(-len(rows.tokens) * epochs // batch)
    settings = loop.TrainingOptions(
        steps,
        lr,
        batch,
        seed=seed,
        checkpointing=checkpointing,
        at_once=at_once,
        bf16=bf16,
        compiled=compiled,
    )
    model, begin = trainable(source, method), time.monotonic()
    state = out.with_name(f"{out.name}.training")
    losses = loop.train(
        model, rows, settings, state, save_every, lambda step, _: progress(step, steps)
    )
    seconds = time.monotonic() - begin
    dtype = assets.config.get("dtype") or assets.config.get("torch_dtype")
    head = {"bfloat16": "bf16", "float16": "f16"}.get(str(dtype))  # tables are frozen
    return FineTuned(
        len(tokenised), rows.cut, losses, seconds, train.export(model, out, source, head)
    )
