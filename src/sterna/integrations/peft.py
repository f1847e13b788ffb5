"""LoRA over packed weights, through PEFT: y = S(x, W) + scaling B A x, W frozen as it is packed.

>>> model = AutoModelForCausalLM.from_pretrained("my-packed-model", dtype=torch.float32)
>>> adapted = get_peft_model(model, lora_config(model, r=8))
>>> ...                                              # any loop; adapted.save_pretrained("adapter")
>>> adapted = load_adapter(model, "adapter")         # later

As in PEFT, a model can hold several adapters, and each row of a batch can use another one
(`adapter_names=`). Sterna computes the forward pass, and `sterna::linear` the gradient of x. Needs
`pip install 'sterna[lora]'`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NoReturn

import torch
from peft import LoraConfig, PeftModel
from peft.tuners import lora
from torch import Tensor, nn

from sterna import ops
from sterna.errors import NonFiniteError, RequestError
from sterna.torch import SternaLinear

__all__ = ["SternaLoraLinear", "load_adapter", "lora_config", "merge"]

_REMEDY = "sterna.integrations.peft.merge rounds the sum, and says what that loses"


class SternaLoraLinear(lora.Linear):
    """PEFT's linear layer with adapters, over a SternaLinear; it cannot merge them in place."""

    def __init__(self, base_layer: SternaLinear, *args: Any, **kwargs: Any) -> None:
        """Wrap a layer, with the arguments that PEFT passes."""
        # PEFT warns that it does not know the class of the layer, but finds its features.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            super().__init__(base_layer, *args, **kwargs)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> NoReturn:
        """Raise RequestError: packed levels cannot hold the sum of weights and adapter."""
        raise RequestError(f"merge: a packed weight takes no adapter in place; {_REMEDY}")

    def unmerge(self) -> NoReturn:
        """Raise RequestError, as `merge` does."""
        raise RequestError("unmerge: nothing was merged")


def lora_config(model: nn.Module, **options: Any) -> LoraConfig:
    """Make PEFT's config for the packed layers of a model.

    options: arguments of LoraConfig. target_modules defaults to all SternaLinear layers, by the
    last parts of their names. Raises RequestError if the model has none.
    """
    if not isinstance(model, nn.Module):
        raise RequestError(f"model: must be a torch.nn.Module, but got {type(model).__name__}")
    names = {n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, SternaLinear)}
    if not names:
        raise RequestError(
            "model: must have a SternaLinear, but got none; open a packed folder, or accelerate it"
        )
    config = LoraConfig(**{"target_modules": sorted(names), **options})
    return _known(config)


def load_adapter(model: nn.Module, path: str | Path) -> PeftModel:
    """Load an adapter that PEFT saved, over the packed layers of its base.

    Raises RequestError if there is none, or if its layers have other names or shapes.
    """
    try:
        config = LoraConfig.from_pretrained(str(path))
        return PeftModel.from_pretrained(model, str(path), config=_known(config))
    except (ValueError, RuntimeError, KeyError) as e:
        reason = " ".join(str(e).split())[:300]
        raise RequestError(
            f"{path}: must be an adapter of this model's layers, but {reason}; open the model that "
            "it was trained on"
        ) from None


def _known(config: LoraConfig) -> LoraConfig:
    config._register_custom_module({SternaLinear: SternaLoraLinear})
    return config


def merge(model: PeftModel, format: str) -> tuple[nn.Module, float]:
    """Merge active adapters into the packed layers of a model, rounded to a format.

    Returns the model without PEFT's layers, and the largest error of a layer: the norm of the error
    divided by the norm of the weights. i8 keeps most of an adapter, ternary formats hardly anything
    of it. Raises RequestError, and NonFiniteError for an adapter that diverged; both name the
    layer.
    """
    if not isinstance(model, PeftModel):
        raise RequestError(f"model: must be a PeftModel, but got {type(model).__name__}")
    base: nn.Module = model.get_base_model()
    worst, made = 0.0, {}
    for name, layer in base.named_modules():
        if not isinstance(layer, SternaLoraLinear):
            continue
        inner: Any = layer.get_base_layer()
        down: Any = layer.lora_A
        up: Any = layer.lora_B
        whole = torch.from_numpy(ops.dequantize(inner.packed))
        for adapter in layer.active_adapters:
            if adapter in down:
                delta: Tensor = up[adapter].weight @ down[adapter].weight
                whole = whole + (delta * layer.scaling[adapter]).detach().float()
        try:
            packed = ops.quantize(whole.numpy(), format)
        except (NonFiniteError, RequestError) as e:
            raise type(e)(f"{name}: {e}") from None
        lost = (torch.from_numpy(ops.dequantize(packed)) - whole).norm() / whole.norm()
        worst = max(worst, float(lost))
        made[name] = SternaLinear(packed, inner.bias, rms_norm=inner.rms_norm)
    for name, merged in made.items():
        parent, _, child = name.rpartition(".")
        setattr(base.get_submodule(parent), child, merged)
    return base, worst
