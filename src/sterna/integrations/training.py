"""Models of transformers that `sterna train` trains: floats, masters, or a packed model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import sterna.integrations.transformers  # noqa: F401  (registers packed folders)
from sterna import train
from sterna.errors import RequestError, shown
from sterna.torch import SternaLinear, accelerate
from sterna.torch.layers import kind_of
from sterna.train.linear import QuantLinear
from sterna.train.thawing import thaw

__all__ = ["METHODS", "trainable"]

#: Method -> a layer of training of an nn.Linear.
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
    """The model of a folder in float32, its low-bit layers and norms to be trained, tables frozen.

    method: of METHODS, for a float checkpoint alone. BitNet's masters are trained as they are; the
    layers of a packed model, or of BitNet's packed trits, go on from their levels. Raises
    RequestError, and what transformers raises.
    """
    if method is not None and method not in METHODS:
        raise RequestError(f"method: must be one of {', '.join(METHODS)}, but got {shown(method)}")
    quiet: Any = logging
    quiet.set_verbosity_error()  # it takes names that are not its own for damage
    quiet.disable_progress_bar()
    model: Any = nn.Module.float(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32))
    online = [m for m in model.modules() if kind_of(m) == "AutoBitLinear" and m.online_quant]
    if not online:
        accelerate(model)  # packed trits; floats stay, as no format is given
    packed = any(isinstance(m, SternaLinear) for m in model.modules())
    if (packed or bool(online)) == (method is not None):
        has = "low-bit layers already" if method else "none but float layers"
        raise RequestError(
            f"method: must be given for float checkpoints alone, but {path} has {has}; "
            f"{'leave it out' if method else 'take one of ' + ', '.join(METHODS)}"
        )
    if packed:
        thaw(model)
    elif method is not None:
        train.prepare(model, METHODS[method])
    for table in (model.get_input_embeddings(), model.get_output_embeddings()):
        if table is not None:
            table.weight.requires_grad_(False)
    return model
