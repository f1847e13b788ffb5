"""A family, and its reference model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checkpoint_factory as factory
import torch
from checkpoint_factory import Recipe
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

# One linear layer: (master weights [M, K], its name, generator) -> (stored by suffix, real weights)
Store = Callable[[Tensor, str, torch.Generator], tuple[dict[str, Tensor], Tensor]]
LLAMA = Recipe("LlamaForCausalLM", "float", torch.float32, tied=False, hidden=128, intermediate=256)
LLAMA = replace(LLAMA, heads=8, kv_heads=2)


@dataclass(frozen=True)
class Family:
    """A published layout at a tiny size.

    store: how a linear layer is stored, and what it means; format: what Sterna is to run it as;
    rounds: activations are rounded to int8 by the model itself, not only by Sterna; sub_norms:
    the published names of the norms before o_proj and down_proj; grouped: layers whose weights have
    scales in groups, so that Sterna rounds 32 values of their input at a time; unrounded: `store`
    before the file's dtype has rounded the real weights, where Sterna undoes that; float_inputs:
    the format's activations are floats.
    """

    recipe: Recipe
    store: Store
    format: str
    rounds: bool = False
    sub_norms: tuple[str, str] | None = None
    grouped: tuple[str, ...] = ()
    unrounded: Store | None = None
    float_inputs: bool = False

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(what the file holds, the float32 weights that it means), by published names."""
        rng = torch.Generator().manual_seed(100 + self.recipe.seed)
        stored: dict[str, Tensor] = {}
        real: dict[str, Tensor] = {}
        for name, tensor in factory.tensors(replace(self.recipe, weights="float")).items():
            layer = name.removesuffix(".weight")
            if layer.endswith("_proj"):
                parts, real[name] = self.store(tensor.float(), layer, rng)
                stored |= {f"{layer}.{suffix}": part for suffix, part in parts.items()}
            else:
                stored[name] = tensor
                real[name] = tensor.float()
        for i in range(self.recipe.layers if self.sub_norms else 0):
            for norm, size in self._norms():
                weight = 1 + 0.2 * torch.randn(size, generator=rng)
                name = f"model.layers.{i}.{norm}.weight"
                stored[name] = weight.to(self.recipe.dtype)
                real[name] = stored[name].float()
        return stored, real

    def _norms(self) -> list[tuple[str, int]]:
        attention, ffn = self.sub_norms or ("", "")
        q = self.recipe.heads * self.recipe.width
        return [(attention, q), (ffn, self.recipe.intermediate)]

    def write(self, folder: Path) -> Path:
        """Writes the whole model folder and returns it."""
        factory.write(folder, replace(self.recipe, weights="float"))
        save_file(self.tensors()[0], folder / "model.safetensors", {"format": "pt"})
        return folder


def reference(family: Family, rounds: bool) -> LlamaForCausalLM:
    """A float32 Llama with the family's real weights; rounds: inputs of layers become int8."""
    store = family.unrounded if rounds and family.unrounded else family.store
    _, real = replace(family, store=store).tensors()
    config = factory.config(replace(family.recipe, weights="float"))
    model = LlamaForCausalLM(LlamaConfig(**config)).eval().float()
    norms = {name: weight for name, weight in real.items() if is_sub_norm(family, name)}
    plain = {name: weight for name, weight in real.items() if name not in norms}
    missing, unexpected = model.load_state_dict(plain, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    for i, layer in enumerate(model.model.layers):
        for name, module in layer.named_modules():
            if not name.endswith("_proj"):
                continue
            weight = None
            for norm in family.sub_norms or ():
                before = "o_proj" if norm.startswith("self_attn") else "down_proj"
                if name.endswith(before):
                    weight = norms[f"model.layers.{i}.{norm}.weight"]
            eps = config["rms_norm_eps"]
            group = 32 if name.endswith(family.grouped or ("-",)) else 0
            module.register_forward_pre_hook(before_layer(weight, eps, rounds, group))
    return model


def is_sub_norm(family: Family, name: str) -> bool:
    """Whether a tensor is a norm that a plain Llama does not have."""
    return any(norm in name for norm in family.sub_norms or ())


def before_layer(
    norm: Tensor | None, eps: float, rounds: bool, group: int
) -> Callable[..., tuple[Tensor]]:
    """A hook for a layer's input: RMSNorm, and rounding of tokens, or groups, to int8."""

    def hook(_: object, args: tuple[Any, ...]) -> tuple[Tensor]:
        (x,) = args
        if norm is not None:
            x = norm * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        if rounds:
            rows = x.unflatten(-1, (-1, group or x.shape[-1]))
            scale = 127 / rows.abs().amax(-1, keepdim=True).clamp(min=1e-30 if group else 1e-5)
            x = ((rows * scale).round().clamp(-128, 127) / scale).flatten(-2)
        return (x,)

    return hook
