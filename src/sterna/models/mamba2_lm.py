"""Mamba-2 only, as Codestral Mamba has it: no layer attends, and states are all that is kept of a
text.

x = x + mamba(norm(x))
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import mamba, mamba2
from sterna.models.builder import ModelBuilder
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture

ARCHITECTURES = ("Mamba2ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    mamba2.DEFAULTS
    | {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "hidden_act": "silu"}
    | {"tie_word_embeddings": False, "rms_norm_eps": 1e-5, "mamba_n_groups": 8}
    | {"mamba_d_state": 128, "mamba_d_head": 64}
)
ALIASES = {
    "num_heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "state_size": "mamba_d_state",
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "expand": "mamba_expand",
    "chunk_size": "mamba_chunk_size",
    "use_bias": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "layer_norm_epsilon": "rms_norm_eps",
}
PREFIXES = mamba.PREFIXES
GGUF = {
    "mamba2": GgufArchitecture(
        ARCHITECTURES[0],
        modules={"norm": "attn_norm", **{f"mixer.{m}": name for m, name in mamba2.MODULES.items()}},
        arrays={f"mixer.{module}": name for module, name in mamba2.ARRAYS.items()},
        keys=mamba2.GGUF_KEYS,
        varied=True,
        attends=False,
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return what configs of models with attention say."""
    return mamba.without_attention(f, f.count("mamba_expand") * f.count("hidden_size"))


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    space = mamba2.StateSpace.of(m.config.fields, m.config.intermediate_size)
    x = m.embedding()
    for i in range(m.config.n_layers):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.norm")
        x = mamba2.layer(m, h, x, f"{p}.mixer", space)
    return m.head(x)
