"""Names of tensors in GGUF files by their names in Hugging Face checkpoints, and differences."""

from __future__ import annotations

import re

from sterna.gguf.architectures import ARCHITECTURES_OF, WITH_EXPERTS

__all__ = ["OUTER", "by_head", "gguf_name", "has_module", "is_array", "norm_is_sum", "permutes"]

#: Modules outside the layers.
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


def gguf_name(architecture: str, name: str) -> str:
    """Return a GGUF architecture's tensor for a tensor's name in a Hugging Face checkpoint."""
    inside = _LAYER.fullmatch(name)
    kinds = (ARCHITECTURES_OF[architecture], WITH_EXPERTS.get(architecture))
    arrays = {key: to for kind in kinds if kind for key, to in kind.arrays.items()}
    if inside and inside[2] in arrays:
        return f"blk.{inside[1]}.{arrays[inside[2]]}"
    if inside and inside[2].endswith((".sinks", "layer_scalar")):
        name += ".weight"
    module, _, suffix = name.rpartition(".")
    outer = {**OUTER, **kinds[0].outer}
    if module in outer:
        return f"{outer[module]}.{suffix}"
    match = _LAYER.fullmatch(module)
    assert match is not None, name
    tensor = next(kind.modules[match[2]] for kind in kinds if kind and match[2] in kind.modules)
    return f"blk.{match[1]}.{tensor}.{suffix}"


def has_module(architecture: str, module: str) -> bool:
    """Whether files of an architecture may have a module of a layer."""
    inside = _LAYER.fullmatch(module)
    return inside is not None and inside[2] in ARCHITECTURES_OF[architecture].modules


def is_array(architecture: str, tensor: str) -> bool:
    """Whether a tensor of a layer is an array, whose name has no suffix."""
    kinds = (ARCHITECTURES_OF[architecture], WITH_EXPERTS.get(architecture))
    arrays = {name for kind in kinds if kind for name in kind.arrays.values()}
    return tensor.split(".", 2)[-1] in arrays


def norm_is_sum(architecture: str, name: str) -> bool:
    """Whether a norm's weight is stored as 1 + w, where Hugging Face's checkpoints store w."""
    module = name.removesuffix(".weight")
    stored_alike = module.endswith((".rms_norm", "linear_attn.norm"))
    is_norm = "norm" in module.rpartition(".")[2]
    return ARCHITECTURES_OF[architecture].sums and is_norm and not stored_alike


def permutes(architecture: str, module: str) -> bool:
    """Whether the rows of a linear layer are stored in the order of interleaved rotations."""
    return ARCHITECTURES_OF[architecture].permuted and module.endswith((".q_proj", ".k_proj"))


def by_head(architecture: str, module: str) -> bool:
    """Whether a checkpoint has the rows of q, k and v head by head, and files do not."""
    return ARCHITECTURES_OF[architecture].by_head and module.endswith(".query_key_value")
