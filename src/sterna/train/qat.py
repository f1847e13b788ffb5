"""Replaces a model's linear layers in place by layers of training."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn

from sterna.errors import RequestError, SternaError
from sterna.torch.layer_swap import owners_of
from sterna.train.quant_linear import QuantLinear

__all__ = ["prepare"]


def prepare(
    model: nn.Module, make: Callable[[nn.Linear], QuantLinear], skip: Collection[str] = ("lm_head",)
) -> list[str]:
    """Replace each nn.Linear by `make(layer)`, in place; return the names of the layers.

    make: such as `BitLinear.of`, or `lambda layer: ParetoLinear.of(layer, bits=2)`. skip: names, or
    their last parts, of layers that stay floats. A layer that is shared by several modules stays
    shared, under its first name. All layers are replaced or, if one is refused, none: RequestError
    or NonFiniteError names it. A layer that shares its weight with another module is refused.
    """
    owners = owners_of(model)
    made: dict[str, QuantLinear] = {}
    instead: dict[nn.Module, QuantLinear] = {}
    for name, layer in model.named_modules():
        if type(layer) is not nn.Linear or name in skip or name.rpartition(".")[2] in skip:
            continue
        if layer.weight.device.type == "meta":
            raise RequestError(
                f"{name}: must have weights to be swapped, but they are on meta; load them first"
            )
        names = owners[layer.weight.untyped_storage().data_ptr()]
        if len(names) > 1:
            other = next(n for n in names if n != name)
            raise RequestError(
                f"{name}: must have a weight of its own, but shares it with {other}; skip it"
            )
        try:
            made[name] = instead[layer] = make(layer)
        except SternaError as e:
            raise type(e)(f"{name}: {e}") from None
    if not made:
        raise RequestError("model: must have an nn.Linear that is not skipped, but got none")
    for parent in list(model.modules()):
        for child_name, child in list(parent._modules.items()):  # each place, named_children: once
            if child in instead:
                setattr(parent, child_name, instead[child])
    return list(made)
