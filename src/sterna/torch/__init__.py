"""Sterna's products in PyTorch: `torch.ops.sterna.linear`, a module for it, and `accelerate`.

>>> import sterna.torch
>>> print(sterna.torch.accelerate(model))       # a model of transformers, or any nn.Module
swapped 210 of 211 linear layers: 210 AutoBitLinear to i2; left lm_head (Linear): no format given

Nothing else of Sterna imports torch (`pip install 'sterna[torch]'`). See docs/how-to/pytorch.md.
"""

from __future__ import annotations

from sterna.torch.checkpoint_export import Exported, export_checkpoint
from sterna.torch.layer_swap import Swaps, accelerate
from sterna.torch.module import SternaLinear
from sterna.torch.tensors import packed_tensors

__all__ = ["Exported", "SternaLinear", "Swaps", "accelerate", "export_checkpoint", "packed_tensors"]
