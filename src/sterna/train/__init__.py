"""Training of low-bit models in PyTorch, whose forward pass is that of inference.

>>> import sterna.train as train
>>> train.prepare(model, train.BitLinear.of)       # a model of transformers, or any nn.Module
>>> ...                                            # any loop: parameters are float masters
>>> print(train.export(model, "my-model", tokenizer))

Nothing else of Sterna imports torch (`pip install 'sterna[train]'`). See docs/how-to/fine-tune.md.
"""

from __future__ import annotations

from sterna.train.bitlinear import BitLinear
from sterna.train.denseshift import DenseShiftLinear, S3Linear
from sterna.train.group_ternary import GroupTernaryLinear
from sterna.train.hadamard_rotation import Rotation
from sterna.train.packed_export import export
from sterna.train.pareto import ParetoLinear
from sterna.train.qat import prepare
from sterna.train.quant_linear import QuantLinear
from sterna.train.shifts import DeepShiftPSLinear, DeepShiftQLinear
from sterna.train.torch_model import TorchModel, evaluate_both
from sterna.train.unpacking import unpack_for_training

__all__ = [
    "BitLinear",
    "DeepShiftPSLinear",
    "DeepShiftQLinear",
    "DenseShiftLinear",
    "GroupTernaryLinear",
    "ParetoLinear",
    "QuantLinear",
    "Rotation",
    "S3Linear",
    "TorchModel",
    "evaluate_both",
    "export",
    "prepare",
    "unpack_for_training",
]
