"""The rotary embedding of a GGUF file: its base, and the scaling of its context."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sterna.errors import ModelFormatError, UnsupportedModelError, shown
from sterna.gguf.file import GgufModel
from sterna.gguf.metadata import Metadata, require_neutral

__all__ = ["LONGROPE", "ROPE_FACTORS", "rope_of", "scaling_of"]

ROPE_FACTORS, LONGROPE = "rope_freqs.weight", "rope_factors_{}.weight"
#: By architecture: mscale and mscale_all_dim of a yarn_log_multiplier. DeepSeek's are of scores, so
#: that cosines and sines are as they are.
_MULTIPLIED: dict[str, Callable[[float], tuple[float, float]]] = {
    **dict.fromkeys(("deepseek2", "deepseek32"), lambda x: (10 * x, 10 * x)),
    "mistral3": lambda x: (1.0, x),
}
ORIGINAL = "original_max_position_embeddings"


def rope_of(model: GgufModel, name: str) -> dict[str, Any]:
    """Base and scaling of the rotary embedding; Llama 3's scaling is a tensor of factors."""
    m = model.metadata
    settings: dict[str, Any] = {"rope_theta": m.number(f"{name}.rope.freq_base", 10000.0)}
    kind = scaling_of(model, name)
    if kind not in _SCALINGS:
        raise UnsupportedModelError(
            f"{m.path}: {name}.rope.scaling.type must be one of {', '.join(_SCALINGS)}, but got "
            f"{shown(kind)}; Sterna does not run this scaling of the context"
        )
    settings["rope_parameters"] = _SCALINGS[kind](model, name) or {"rope_type": "default"}
    if ROPE_FACTORS in model.tensors:
        settings["rope_factors"] = _factors(model, ROPE_FACTORS)
    return settings


def scaling_of(model: GgufModel, name: str) -> str:
    """Return the type of the scaling; for Phi-3 and 3.5 it is LongRoPE, which files do not say."""
    kind = model.metadata.text(f"{name}.rope.scaling.type", "none")
    phi = name in ("phi3", "phimoe")
    unsaid = phi and kind == "none" and LONGROPE.format("long") in model.tensors
    return "longrope" if unsaid else kind


def _linear_scaling(model: GgufModel, name: str) -> dict[str, Any]:
    m = model.metadata
    factor = m.number(f"{name}.rope.scaling.factor", m.number(f"{name}.rope.scale_linear", 1.0))
    require_neutral(m, f"{name}.rope.scaling.attn_factor", (1.0,))
    return {} if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}


def _yarn_scaling(model: GgufModel, name: str) -> dict[str, Any]:
    """Return YaRN's keys, as llama.cpp reads them for these architectures.

    attn_factor multiplies the paper's factor. yarn_attn_factor is config.json's attention_factor,
    as the converter writes it; 1, which llama.cpp writes when it saves a model, means nothing.
    Readers disagree about yarn_log_multiplier, so it must be neutral but for `_MULTIPLIED`.
    """
    m, at = model.metadata, f"{name}.rope.scaling."
    log_multiplier = m.number(f"{at}yarn_log_multiplier", 0.0)
    if name not in _MULTIPLIED:
        require_neutral(m, f"{at}yarn_log_multiplier", (0.0,))
    require_neutral(m, f"{at}yarn_ext_factor", (1.0, -1.0))  # -1: not said
    factor = m.number(f"{at}factor")
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor, ORIGINAL: _original(m, name)}
    for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if at + theirs in m:
            scaling[ours] = m.number(at + theirs)
    if log_multiplier:
        scaling["mscale"], scaling["mscale_all_dim"] = _MULTIPLIED[name](log_multiplier)
    whole, more = m.number(f"{at}yarn_attn_factor", 1.0), m.number(f"{at}attn_factor", 1.0)
    if whole != 1.0:
        require_neutral(m, f"{at}attn_factor", (1.0,))
        scaling["attention_factor"] = whole
    if more != 1.0:
        scaling["attention_factor_times"] = more
    return scaling


def _longrope_scaling(model: GgufModel, name: str) -> dict[str, Any]:
    m = model.metadata
    return {
        "rope_type": "longrope",
        ORIGINAL: _original(m, name),
        "attention_factor": m.number(f"{name}.rope.scaling.attn_factor", 1.0),
        "short_factor": _factors(model, LONGROPE.format("short")),
        "long_factor": _factors(model, LONGROPE.format("long")),
    }


_SCALINGS: dict[str, Callable[[GgufModel, str], dict[str, Any]]] = {
    "none": _linear_scaling,
    "linear": _linear_scaling,
    "yarn": _yarn_scaling,
    "longrope": _longrope_scaling,
}


def _original(m: Metadata, name: str) -> int:
    """Return the positions before the context was extended."""
    context = m.integer(f"{name}.context_length")
    return m.integer(f"{name}.rope.scaling.original_context_length", context)


def _factors(model: GgufModel, tensor: str) -> list[float]:
    """Read a tensor of factors that divide the frequencies of pairs."""
    info = model.tensors.get(tensor)
    if info is None or info.dtype != "F32" or len(info.shape) != 1:
        raise ModelFormatError(
            model.path if info is None else info.file,
            tensor,
            "a vector of F32",
            info and f"{info.dtype} {list(info.shape)}",
            offset=info and info.offset,
        )
    values: list[float] = model.read(tensor).reshape(-1).view("<f4").astype(np.float64).tolist()
    return values
