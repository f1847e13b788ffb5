"""Replaces a model's linear layers in place by packed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from sterna.errors import NonFiniteError, RequestError
from sterna.torch.layer_packing import BITNET, kind_of
from sterna.torch.module import SternaLinear

__all__ = ["Left", "Swapped", "Swaps", "accelerate", "owners_of"]


class Swapped(NamedTuple):
    """A replaced layer; kind: its former class."""

    name: str
    kind: str
    format: str


class Left(NamedTuple):
    """A linear layer that was not replaced, and the reason."""

    name: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Swaps:
    """The result of `accelerate`; it prints as one line."""

    swapped: tuple[Swapped, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        """Count replaced layers by class and format, and the others with reasons."""
        counts = Counter((s.kind, s.format) for s in self.swapped)
        made = ", ".join(f"{n} {kind} to {format}" for (kind, format), n in counts.items())
        line = f"swapped {len(self.swapped)} of {len(self.swapped) + len(self.left)} linear layers"
        reasons = Counter((left.kind, left.reason) for left in self.left)
        for (kind, reason), n in reasons.items():
            first = next(x.name for x in self.left if (x.kind, x.reason) == (kind, reason))
            names = first if n == 1 else f"{n} layers such as {first}"
            made += f"; left {names} ({kind}): {reason}"
        return f"{line}: {made.removeprefix('; ')}" if made else line


def accelerate(
    model: nn.Module,
    format: str | None = None,
    skip: Collection[str] = (),
    int8_gradient: bool = False,
) -> Swaps:
    """Replace BitLinear, AutoBitLinear (of transformers) and nn.Linear by `SternaLinear`, in place.

    format: the format to which weights of nn.Linear are rounded; None leaves nn.Linear unchanged.
    skip: names of layers, or their last parts, that are not replaced. int8_gradient: as in
    `SternaLinear`. BitNet's layers are ternary and become `i2` without loss. These layers stay:
    those that share their weight with another module, such as a tied head, those with hooks, and
    those of nn.TransformerEncoderLayer, which reads their weights itself. The packed layers are
    frozen, except their biases; gradients pass through them.

    All layers are replaced or, if one is refused, none: RequestError or NonFiniteError names it.
    """
    if not isinstance(model, nn.Module):
        raise RequestError(f"model: must be a torch.nn.Module, but got {type(model).__name__}")
    if kind_of(model) is not None:
        raise RequestError("model: must contain layers, but is a linear layer; use SternaLinear.of")
    owners = owners_of(model)
    read = _read_by_torch(model)
    made: dict[nn.Module, SternaLinear] = {}
    swapped: list[Swapped] = []
    left: list[Left] = []
    for name, layer in model.named_modules():
        kind = kind_of(layer)
        if kind is None:
            continue
        reason = _reason_to_leave(layer, kind, name, format, owners)
        if name in skip or name.rpartition(".")[2] in skip:
            reason = "skip names it"
        elif layer in read:
            reason = reason or "torch's TransformerEncoderLayer reads its weight itself"
        if reason is not None:
            left.append(Left(name, kind, reason))
            continue
        of = None if kind in BITNET else format
        made[layer] = packed = _packed(layer, name, of, int8_gradient)
        swapped.append(Swapped(name, kind, packed.format))
    for parent in list(model.modules()):
        for child_name, child in list(parent._modules.items()):  # each place, named_children: once
            if child in made:
                setattr(parent, child_name, made[child])
    return Swaps(tuple(swapped), tuple(left))


def _read_by_torch(model: nn.Module) -> set[nn.Module]:
    """Return the layers of torch's encoder layers, whose weights go to one kernel in eval."""
    return {
        child
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoderLayer)
        for child in module.modules()
    }


def owners_of(model: nn.Module) -> dict[int, list[str]]:
    """Name the modules that have a tensor as their weight, by the address of its memory."""
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        for key, tensor in module.named_parameters(recurse=False):
            if tensor.device.type != "meta" and tensor.numel():
                place = tensor.untyped_storage().data_ptr()
                owners.setdefault(place, []).append(name or key)
    return owners


def _reason_to_leave(
    layer: nn.Module, kind: str, name: str, format: str | None, owners: dict[int, list[str]]
) -> str | None:
    if kind == "Linear" and format is None:
        return "no format given"
    weight: Any = layer.weight
    if weight.device.type != "meta":
        others = [o for o in owners.get(weight.untyped_storage().data_ptr(), []) if o != name]
        if others:
            return f"its weight is that of {others[0]} too"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        return "it has hooks"
    return None


def _packed(layer: nn.Module, name: str, format: str | None, int8_gradient: bool) -> SternaLinear:
    try:
        return SternaLinear.of(layer, format, int8_gradient)
    except (NonFiniteError, RequestError) as e:
        raise type(e)(f"{name}: {e}") from None
