"""Evaluates a folder's module of transformers and a model of Sterna on the same tasks.

Needs `pip install 'sterna[transformers]'`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

import sterna.integrations.transformers  # noqa: F401  (registers packed folders)
from sterna.errors import RequestError
from sterna.integrations.training import quietly
from sterna.train.torch_model import Both, evaluate_both

__all__ = ["opened"]


def opened(checkpoint: str | Path) -> Callable[..., Both]:
    """Open a folder with transformers, in float32; return `train.evaluate_both` for its module.

    Raises RequestError if transformers cannot open the folder.
    """
    quietly()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as e:
        reason = " ".join(str(e).split())[:300]
        raise RequestError(
            f"{checkpoint}: must be a folder that transformers opens, but {reason}"
        ) from None
    return partial(evaluate_both, nn.Module.float(model).eval())
