"""`QuantLinear`: a linear layer whose weights are rounded in every forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from sterna.errors import RequestError
from sterna.formats import PackedWeight
from sterna.torch import SternaLinear
from sterna.train.hadamard_rotation import Rotation
from sterna.train.product import packed, product
from sterna.train.straight_through import Rounded, finite

__all__ = ["QuantLinear"]


class QuantLinear(nn.Module, ABC):
    """y [..., M] = S(x, Ŵ) + bias, where Ŵ is `rounded`'s result and S is Sterna's product.

    The forward pass is that of inference, in training and in eval: the bits of `ops.linear` on the
    exported weight, on every CPU. Without gradients the weight is packed once, until a parameter
    changes.

    weight: float masters [M, K]; bias: [M] or None; rms_norm: a norm that x goes through first, of
    models with input norms, or None; rotation: the rotation of x, or None.
    """

    weight: Tensor

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        rms_norm: nn.Module | None = None,
        rotation: Rotation | None = None,
    ) -> None:
        """Masters start from `weight`; RequestError unless it is a float matrix."""
        super().__init__()
        if weight.ndim != 2 or not weight.is_floating_point() or not weight.numel():
            raise RequestError(
                f"weight: must be floats [M, K], but got {weight.dtype} of shape "
                f"{tuple(weight.shape)}"
            )
        self.out_features: int = weight.shape[0]
        self.in_features: int = weight.shape[1]
        if rotation is not None:
            weight = rotation(finite("weight", weight.detach()))
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias: nn.Parameter | None = (
            None if bias is None else nn.Parameter(bias.detach().clone())
        )
        self.rms_norm = rms_norm
        self.rotation = rotation
        self.held: Rounded | None = None  # by `round_per_step`
        self._packed: tuple[object, SternaLinear] | None = None

    @classmethod
    def of(cls, layer: nn.Linear, **options: Any) -> QuantLinear:
        """Make the layer that starts from an nn.Linear; options: those of the class."""
        if not isinstance(layer, nn.Linear):
            raise RequestError(f"layer: must be an nn.Linear, but got {type(layer).__name__}")
        norm = getattr(layer, "rms_norm", None)
        made = cls(layer.weight, layer.bias, rms_norm=norm, **options)
        return made.train(layer.training)

    @abstractmethod
    def rounded(self) -> Rounded:
        """Return the rounded weights; NonFiniteError if training diverged, RequestError."""

    def packed(self) -> PackedWeight:
        """Pack the weights for `sterna.ops`, and for export."""
        with torch.no_grad():
            return packed(self.rounded())

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., K] -> [..., M], of x's dtype; raises as `ops.linear`, or for its device."""
        device = self._masters[0].device
        if x.device != device:
            raise RequestError(
                f"x: must be on {device}, as the layer's weight, but is on {x.device}; move one"
            )
        if self.rms_norm is not None:
            x = self.rms_norm(x)
        if self.rotation is not None:
            x = self.rotation(x)
        if self.held is not None:
            y: Tensor = product(x, self.held)
        elif x.is_cpu and not (torch.is_grad_enabled() and self.trains):
            y = self._frozen()(x)
        else:
            y = product(x, self.rounded())
        return y if self.bias is None else y + self.bias.to(y.dtype)  # masters may be wider

    def extra_repr(self) -> str:
        """Shape, bias and rotation, for `print(model)`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )

    @property
    def _masters(self) -> list[nn.Parameter]:
        """The parameters that `rounded` reads."""
        return [p for name, p in self.named_parameters(recurse=False) if name != "bias"]

    @property
    def trains(self) -> bool:
        """Whether a parameter that `rounded` reads has a gradient."""
        return any(p.requires_grad for p in self._masters)

    def _frozen(self) -> SternaLinear:
        key = [(p.data_ptr(), p._version, p.dtype) for p in self._masters]
        if self._packed is None or self._packed[0] != key:
            self._packed = key, SternaLinear(self.packed())
        return self._packed[1]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the packed weight out: copies and pickles pack their own."""
        return {**self.__dict__, "_packed": None, "held": None}
