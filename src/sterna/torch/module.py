"""`SternaLinear`: a linear layer of packed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sterna import formats
from sterna.errors import RequestError, shown
from sterna.formats import PackedWeight
from sterna.torch import operator
from sterna.torch.layer_packing import packed_layer
from sterna.torch.tensors import ALIGNMENT, packed_tensors, packed_weight

__all__ = ["SternaLinear"]


class SternaLinear(nn.Module):
    """y [..., M] = x [..., K] W^T + bias, W packed: the product has the bits of `ops.linear`.

    x: float32, bfloat16 or float16, and y of the same dtype: computed in float32, rounded once,
    before the bias is added. W is frozen; x and the bias have gradients.

    codes, scale: buffers, as `packed_tensors` makes them; bias: a parameter [M] or None; rms_norm:
    the norm of x, for BitNet layers with input norms, or None. int8_gradient: compute the gradient
    of x as an integer product, too, from the gradient of y rounded to int8 (docs/how-to/pytorch.md
    has its error); may be set at any time. A state dict also has the format's name, and a module
    loads only states of its own format.
    """

    codes: Tensor
    scale: Tensor

    def __init__(
        self,
        packed: PackedWeight,
        bias: Tensor | None = None,
        *,
        rms_norm: nn.Module | None = None,
        int8_gradient: bool = False,
    ) -> None:
        """RequestError for a bias that is not [M] of a float dtype, or a format that int8_gradient
        is not for: one of floats, or of scales in groups."""
        super().__init__()
        if int8_gradient:
            operator.check_int8_gradient(str(packed.format))
        self.int8_gradient = int8_gradient
        self.out_features: int = packed.M
        self.in_features: int = packed.K
        self.format: str = str(packed.format)
        codes, scale = packed_tensors(packed)
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        if bias is not None and (bias.shape != (packed.M,) or not bias.is_floating_point()):
            raise RequestError(
                f"bias: must be floats of shape ({packed.M},), but got {bias.dtype} of shape "
                f"{tuple(bias.shape)}"
            )
        if bias is not None and not isinstance(bias, nn.Parameter):
            bias = nn.Parameter(bias, requires_grad=False)
        self.bias = bias
        self.rms_norm = rms_norm

    @classmethod
    def of(
        cls, layer: nn.Module, format: str | None = None, int8_gradient: bool = False
    ) -> SternaLinear:
        """Pack an nn.Linear, or a BitLinear or AutoBitLinear of transformers.

        format: for an nn.Linear, whose weights are rounded to it; BitNet's layers are ternary
        already, and by default `i2`. It shares the bias and the norm with the layer. Raises
        RequestError for another class, device or format, NonFiniteError for NaN and infinities.
        """
        packed = packed_layer(layer, format)
        bias: Any = layer.bias
        norm: Any = getattr(layer, "rms_norm", None)
        made = cls(packed, bias, rms_norm=norm, int8_gradient=int8_gradient)
        return made.train(layer.training)

    @property
    def packed(self) -> PackedWeight:
        """The weights for `sterna.ops`; they share the module's memory."""
        M, K = self.out_features, self.in_features
        return packed_weight(self.codes, self.scale, self.format, M, K)

    @property
    def qweight(self) -> Tensor:
        """The codes, by the name under which PEFT looks for the device of packed weights."""
        return self.codes

    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., K] -> [..., M]; raises as `ops.linear`, and for a bias of another dtype."""
        if self.rms_norm is not None:
            x = self.rms_norm(x)
        M, K = self.out_features, self.in_features
        tensors: dict[str, Any] = (
            self._buffers
        )  # nn.Module's own look-up costs half a microsecond each
        y = operator.linear(
            x, tensors["codes"], tensors["scale"], self.format, M, K, self.int8_gradient
        )
        bias: Tensor | None = self.bias
        if bias is None:
            return y
        if bias.dtype != y.dtype:
            if not torch.is_autocast_enabled("cpu"):
                raise RequestError(
                    f"bias: must have the dtype of x, but got {bias.dtype} for x of {y.dtype}; "
                    "convert the model"
                )
            bias = bias.to(y.dtype)  # as in torch's own layers under autocast
        return y + bias

    def extra_repr(self) -> str:
        """Shape, format and bias, for `print(model)`."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, format={self.format}"
        )

    # ------------------------------------------------------------------------------------- state

    def get_extra_state(self) -> Tensor:
        """Return the format's name as uint8, so that every file of tensors can hold it."""
        return torch.tensor(list(self.format.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Raise RequestError if the state is that of another format."""
        name = bytes(state.tolist()).decode(errors="replace")
        if name != self.format:
            raise RequestError(
                f"format: must be that of the module, {self.format}, but got a state of "
                f"{shown(name)}; make the module from weights of that format"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Everything is checked before anything is loaded; torch itself compares the shapes.
        if (name := state_dict.get(f"{prefix}_extra_state")) is not None:
            self.set_extra_state(name)
        codes = state_dict.get(f"{prefix}codes", self.codes)
        fits = codes.dtype == torch.uint8 and codes.shape == self.codes.shape and codes.is_cpu
        if fits and not formats.get(self.format).codes_valid(codes.contiguous().numpy(), 1):
            raise RequestError(
                f"{prefix}codes: must be codes of {self.format}, but got others; the state is "
                "damaged, or that of another layer"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._align()  # with assign=True the tensors are those of the file

    def _align(self) -> None:
        for name in ("codes", "scale"):
            tensor = getattr(self, name)
            if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
                setattr(self, name, tensor.clone())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SternaLinear:
        scale = self.scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.scale.dtype != scale.dtype:  # model.bfloat16() concerns x and must not round W
            self.scale = scale.to(self.scale.device)
        return self
